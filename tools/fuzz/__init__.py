"""Fuzzing of every parser: seeds and corpus, structure-aware mutation, coverage as the guide.

- `targets`, `native`, `real_torch`: what is fed to what;
- `mutation`, `structure`: how inputs change, as bytes and as what they are;
- `oracles`: what must hold of an input that was read;
- `target`: what these share;
- `loop`: the run, its limits and its report.
"""
