"""Fuzz the parsers, as ``fuzz_parsers.py`` does; the other campaigns are scripts beside it."""

from __future__ import annotations

import sys

from tools.campaigns.fuzz_parsers import main

if __name__ == "__main__":
    sys.exit(main())
