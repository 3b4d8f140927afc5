"""The files of Keras 1, 2 and 3, and of tf-keras: legacy HDF5, weights, sharded weights and whole models.

- `config`: what a model's configuration says, as data;
- `groups`, `variables`, `legacy`: the two layouts in HDF5, from groups to a tree;
- `emit`, `emit_weights`, `emit_legacy`: from a tree to groups;
- `h5`, `weights`, `archive`: readers and writers of the formats ``keras-h5``, ``keras-weights``, ``keras``;
- `optimizer`, `layout`: which parameter a value of an optimizer belongs to, where that is certain;
- `live`: where the variables of a live model lie; the only module that imports Keras.
"""
