"""Fuzzing of every parser: seeds and corpus, structure-aware mutation, coverage as the guide.

- `targets`: what is fed to what, and what must hold;
- `mutation`, `structure`: how inputs change, as bytes and as what they are;
- `oracles`: what must hold of an input that was read;
- `loop`: the run, its limits and its report.
"""
