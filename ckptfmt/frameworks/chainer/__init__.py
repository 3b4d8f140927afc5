"""How Chainer names and nests what it serialises.

- `hierarchy`: flat names with ``/`` to nested mappings, and back;
- `members`: a tree to what Chainer's serialisers would have written, and what else a note must tell;
- `npz`, `hdf5`: the two kinds of file;
- `multinode`: the files of several ranks as one checkpoint;
- `live`: objects in memory; the only module that imports Chainer.

Sources: ``chainer/serializers/npz.py``, ``chainer/serializers/hdf5.py`` and ``chainer/training/trainer.py``
of Chainer 7.8.1.
"""
