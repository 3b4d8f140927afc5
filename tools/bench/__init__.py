"""Figures beside those of peers and of the disk, in one run; no test asserts any of them."""
