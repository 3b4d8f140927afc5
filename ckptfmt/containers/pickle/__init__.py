"""Pickles as data: nothing that a file names is ever imported or called.

- `nodes`: what stands for a class, a call or a reference to something outside;
- `interpreter`: the opcodes of protocols 0 to 5 to nodes;
- `values`: nodes of Python's own classes to values of a tree;
- `arrays`: nodes of numpy arrays, scalars and types to numpy values;
- `emitter`: plain values to a reproducible pickle of protocol 2.
"""
