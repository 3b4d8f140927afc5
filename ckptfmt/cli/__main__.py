"""``python -m ckptfmt.cli``: the program without its script."""

import sys

from ckptfmt.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
