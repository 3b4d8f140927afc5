"""Sorted tables of byte strings: LevelDB's file format in the variant that TensorFlow keeps.

- `block`: one block, its checksum and its entries;
- `snappy`: blocks that are compressed;
- `reader`, `writer`: a whole file.

A table knows keys and values, not what they mean.
"""
