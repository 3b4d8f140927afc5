"""Places that hold bytes: how they are read, written and committed. Knows no format.

- `reader`: random access to files and memory.
"""
