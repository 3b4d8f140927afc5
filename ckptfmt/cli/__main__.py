"""``python -m ckptfmt.cli``: the program without its script."""

from ckptfmt.cli.app import main

if __name__ == "__main__":
    main()
