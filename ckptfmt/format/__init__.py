"""Our bytes, as section numbers of ``spec/ckptfmt-1.0.md`` say them; no I/O and no framework.

From low to high:

- `constants`: limits and names of version 1;
- `digests`: chunk, tensor, node, root and bag (sections 4.3 and 6);
- `codecs`: chunks to stored bytes and back (section 9.3);
- `planning`: which tensor lies where, a pure function (section 8.5);
- `header`: the header of a shard (section 9.1);
- `sealed`: documents that carry their own digest (section 5.2);
- `rows`: the tensor table (section 8.2);
- `manifest`: the commit record (section 8).
"""
