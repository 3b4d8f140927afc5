"""Which formats there are, what a path holds, and who reads and writes it.

From low to high:

- `table`: the formats as data;
- `calling`: a format's reader or writer, imported when it is first called; live objects;
- `signatures`, `texts`, `archives`, `directories`: what content looks like;
- `detection`: the format of a path, or what else it is.
"""

from ckptfmt.registry.calling import adapt, optimizer_slots, read_foreign, write_foreign
from ckptfmt.registry.detection import detect
from ckptfmt.registry.table import Format, format_named, formats

__all__ = [
    "Format",
    "adapt",
    "detect",
    "format_named",
    "formats",
    "optimizer_slots",
    "read_foreign",
    "write_foreign",
]
