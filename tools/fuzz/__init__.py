"""Fuzzing of every parser: seeds and corpus, structure-aware mutation, coverage as the guide.

- `targets`: what is fed to what, and what must hold;
- `mutation`: how inputs change;
- `loop`: the run, its limits and its report.
"""
