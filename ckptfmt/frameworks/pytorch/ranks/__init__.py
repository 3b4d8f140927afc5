"""A set of files, one of each rank, to global tensors.

- `mesh`: a DeviceMesh as its pickle has it: whose coordinate, and who else is in it;
- `placements`: which boxes of a global tensor a rank holds;
- `shards`: DTensor and ShardedTensor nodes to a rank's pieces;
- `joining`: the trees of all ranks to one;
- `reader`: the files of a directory.
"""
