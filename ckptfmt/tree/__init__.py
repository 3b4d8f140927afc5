"""What a checkpoint is: a tree of plain values whose leaves may be tensors.

Knows no file, no framework and no rank. From low to high:

- `findings`: what is worth telling, as values;
- `dtypes`: the element types;
- `options`: what users ask for, checked;
- `paths`: keys, their canonical encoding, display and globs;
- `box`: hyper-rectangles;
- `source`: where canonical bytes come from;
- `nodes`, `tensor`: the kinds of node;
- `walk`: traversals;
- `pieces`: one tensor out of pieces that lie in different places;
- `capture`: any Python value to a tree;
- `document`: a tree as canonical JSON;
- `restoration`: a tree into objects that are there;
- `checkpoint`: what a reader returns.
"""
