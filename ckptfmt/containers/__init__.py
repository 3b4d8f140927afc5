"""Foreign bytes: files of named arrays, archives and records. Knows no framework and no convention."""
