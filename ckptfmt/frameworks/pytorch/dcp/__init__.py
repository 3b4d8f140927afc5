"""Directories of torch.distributed.checkpoint (DCP): a `.metadata` and files of items, `__<rank>_<i>.distcp`.

- `metadata`: the pickle `.metadata`, read inertly, to plain rows;
- `flattening`: a tree to named items and back, as DCP's planners do it;
- `items`: the bytes of one item: a file of `torch.save` within a file;
- `reader`: a directory to a checkpoint;
- `emit`, `writer`: a tree to a directory that DCP's own readers load.
"""
