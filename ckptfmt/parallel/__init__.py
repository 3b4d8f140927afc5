"""How one checkpoint is written and read by several workers; who writes what never shows in the bytes.

From low to high:

- `spans`: the runs of chunks that are written as one, and their pages;
- `pipeline`: digest, code and write spans with threads;
- `opened`: a checkpoint's manifest, and its files held open;
- `rowsource`: verified bytes of one row;
- `verifying`: everything that is wrong with an opened checkpoint.
"""
