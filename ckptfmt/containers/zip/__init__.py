"""Zip archives under one strict policy, for listing and for reading alike.

- `checksum`: CRC-32, by a faster library where one is installed;
- `records`: the structures of the format, as bytes;
- `directory`: the end records and the central directory to entries;
- `archive`: members by name;
- `members`: the bytes of one member, stored or deflated, checked against its checksum;
- `writer`: reproducible archives of aligned, stored members.

Two readers that disagree about what an archive holds are how hostile files pass checks, so whatever is
ambiguous is refused: duplicate names, overlapping records, headers that contradict each other.
"""
