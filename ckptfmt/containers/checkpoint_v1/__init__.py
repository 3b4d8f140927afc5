"""TensorFlow's V1 checkpoints, read only: tables whose values are slices of tensors, data included.

- `messages`: what stands in the tables;
- `values`: the elements of a slice, from the typed lists that hold them;
- `reader`: a checkpoint of one file or a set of them.
"""
