"""TensorFlow's checkpoints and objects. No module but `live` needs TensorFlow.

- `graph`: the object graph of a TensorFlow 2 checkpoint, as a message and as nodes;
- `names`: what the values of a graph are called, and which are an optimizer's;
- `objects`: the tree of an object-based checkpoint;
- `state_file`, `prefixes`: which bundle a path means;
- `reader`, `reader_v1`: bundles, and checkpoints of before them, to a tree;
- `emit`: a tree to the entries of a bundle and a graph;
- `writer`: a tree to a bundle that TensorFlow restores;
- `live`: variables, modules, models and optimizers in memory, to a tree and back.
"""
