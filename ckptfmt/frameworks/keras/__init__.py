"""The files of Keras 1, 2 and 3, and of tf-keras: legacy HDF5, weights, sharded weights and whole models.

- `config`: what a model's configuration says, as data;
- `variables`, `legacy`: the two layouts in HDF5, groups to tree and back;
- `optimizer`: which parameter a value of an optimizer belongs to, where that is certain;
- `h5`, `weights`, `archive`: readers and writers of the formats ``keras-h5``, ``keras-weights``, ``keras``.
"""
