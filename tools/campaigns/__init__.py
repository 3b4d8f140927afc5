"""Long runs that look for what tests do not reach; ``python -m tools.campaigns`` fuzzes every parser.

- `fuzz_parsers`: changed inputs to every parser;
- `flip_bits`: single faults in checkpoints, and whether `check` names them;
- `kill_at_syscall`: a save that is killed, or fails, at every system call that writes.
"""
