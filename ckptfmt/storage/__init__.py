"""Places that hold bytes: how they are read, written and committed. Knows no format.

From low to high:

- `libc`: system calls that Python does not offer
- `reader`: random access to files and memory
- `slices`: a range of a reader as a reader
- `pool`: many files, of which few are open at a time
- `directory`: a directory held open
- `places`: what kind of file system holds a path
- `system`: every system call that writes, behind one object
- `failures`: from a system error to a typed one
- `files`: writing one file, from several threads, past the page cache
- `removal`: removing a checkpoint directory
- `owner`: names and records of work in progress
- `claim`: one writer's names and record beside one target
- `commit`: the one commit protocol for checkpoint directories
- `replace`: replacing one file
- `recovery`: what killed writers left
"""
