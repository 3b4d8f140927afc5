"""Stub until the public names land."""
