"""A tree in a container that holds named arrays only: what all such containers have in common.

- `entries`: what a container holds, as any of them tells it;
- `note`: the structure note, by which a tree comes back whole;
- `planning`: a tree to rows of the container, and whether it needs a note.

A flat mapping of names to tensors that the container can hold as they are is written without a note. Without
a note, names are read as they stand: nothing is split at dots or slashes.
"""
