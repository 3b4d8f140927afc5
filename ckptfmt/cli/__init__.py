"""The command line: one module for each command, each a function from arguments to a `Result`.

Only `output` prints, only `app` ends the process. Commands import what they need when they run, so that
``ckptfmt --help`` is quick.
"""
