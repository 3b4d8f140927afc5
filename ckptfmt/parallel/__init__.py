"""How one checkpoint is written and read by several workers; who writes what never shows in the bytes.

From low to high:

- `spans`: the runs of chunks that are written as one, and their pages;
- `pipeline`: digest, code and write spans with threads.
"""
