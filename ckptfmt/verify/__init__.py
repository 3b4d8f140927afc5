"""What can be said of one checkpoint, or of two.

From low to high:

- `opening`: the tree of a path, a checkpoint or a value;
- `digesting`: the digests of any checkpoint, file or tree;
- `numeric`: how far apart two arrays of one type are;
- `checking`: everything that is wrong with one checkpoint;
- `comparing`: everything that differs between two.
"""
