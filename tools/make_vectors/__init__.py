"""Conformance vectors: a second writer, the cases, and what stores them. ``python -m tools.make_vectors``."""
