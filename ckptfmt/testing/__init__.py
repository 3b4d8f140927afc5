"""For tests of ckptfmt and of what plugs into it. Nothing in the package itself imports it.

- `faults`: a `System` that fails, shortens or kills at the k-th call
- `processes`: a function in a process of its own
- `simple`: a small checkpoint directory with known contents
"""
