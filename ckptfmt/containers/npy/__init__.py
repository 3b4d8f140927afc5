"""Arrays as numpy's own files hold them: one header, one block of elements.

- `literal`: the subset of Python's notation that headers are written in, parsed and never evaluated;
- `header`: the header, to and from bytes;
- `descr`: element types, simple and structured;
- `objects`: the one pickle that is understood, None;
- `sources`: bytes in another byte order or index order;
- `values`: elements to nodes of a tree, read when asked.

Source of the format: ``numpy/lib/format.py``, versions 1.0 to 3.0.
"""
