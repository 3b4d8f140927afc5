"""Bundles of tensors: a sorted table of entries beside files of plain data (TensorFlow's V2 checkpoints).

- `names`: its files, and its version;
- `kinds`: the types of elements and their numbers;
- `messages`: headers, entries, shapes and slices as they stand in the table;
- `keys`: under which key the table holds a slice;
- `strings`: tensors of strings, and of variants;
- `sources`: data that is verified before it is handed out;
- `entries`: a tensor of an open bundle;
- `reader`, `writer`: a whole bundle;
- `placing`: files that take their places together.

A bundle holds named arrays; which object of a program they belong to is not known here.
"""
