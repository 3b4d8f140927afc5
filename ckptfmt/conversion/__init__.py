"""Read any format, write any format, and turn one into another.

From low to high:

- `targets`: a target's format and options, and what is refused from the start;
- `passes`: progress over all passes;
- `rehearsal`: a writer's findings before anything is written;
- `converting`: read, write, convert.
"""

from ckptfmt.conversion.converting import ConversionReport, convert, read, write
from ckptfmt.conversion.targets import target_format

__all__ = ["ConversionReport", "convert", "read", "target_format", "write"]
