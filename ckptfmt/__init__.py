"""ckptfmt: a checkpoint format and conversion toolkit for deep learning.

The names below are all that a user needs. Each is imported when it is first used, so that importing the
package is quick and loads no framework. What a checkpoint is: `ckptfmt.tree`; how it lies on a disk:
``spec/ckptfmt-1.0.md``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ckptfmt.version import __version__

if TYPE_CHECKING:
    from ckptfmt.conversion import ConversionReport, convert, read, write
    from ckptfmt.errors import (
        ChecksumError,
        CkptError,
        ConversionError,
        ExistsError,
        FormatError,
        LimitError,
        LossyError,
        MissingExtraError,
        MissingFileError,
        NoSpaceError,
        NotFoundError,
        OptionError,
        ReplacedError,
        StorageError,
        TreeError,
        TruncatedError,
        UnknownFormatError,
        UnsupportedError,
        UnsupportedVersionError,
        VerificationError,
    )
    from ckptfmt.loading import load
    from ckptfmt.registry import Format, detect, formats
    from ckptfmt.saving import SaveReceipt, save
    from ckptfmt.storage.recovery import leftovers, recover
    from ckptfmt.tree.box import Box
    from ckptfmt.tree.checkpoint import Checkpoint
    from ckptfmt.tree.findings import Finding, Severity
    from ckptfmt.tree.nodes import Composite, Opaque, Strings, Tag, Tree
    from ckptfmt.tree.tensor import Tensor
    from ckptfmt.verify.checking import Report, check
    from ckptfmt.verify.comparing import Comparison, compare
    from ckptfmt.verify.digesting import Digests, digest

__all__ = [
    "Box",
    "Checkpoint",
    "ChecksumError",
    "CkptError",
    "Comparison",
    "Composite",
    "ConversionError",
    "ConversionReport",
    "Digests",
    "ExistsError",
    "Finding",
    "Format",
    "FormatError",
    "LimitError",
    "LossyError",
    "MissingExtraError",
    "MissingFileError",
    "NoSpaceError",
    "NotFoundError",
    "Opaque",
    "OptionError",
    "ReplacedError",
    "Report",
    "SaveReceipt",
    "Severity",
    "StorageError",
    "Strings",
    "Tag",
    "Tensor",
    "Tree",
    "TreeError",
    "TruncatedError",
    "UnknownFormatError",
    "UnsupportedError",
    "UnsupportedVersionError",
    "VerificationError",
    "__version__",
    "check",
    "compare",
    "convert",
    "detect",
    "digest",
    "formats",
    "leftovers",
    "load",
    "read",
    "recover",
    "save",
    "write",
]

_HOMES = {
    "ckptfmt.conversion": ("ConversionReport", "convert", "read", "write"),
    "ckptfmt.errors": tuple(name for name in __all__ if name.endswith("Error")),
    "ckptfmt.loading": ("load",),
    "ckptfmt.registry": ("Format", "detect", "formats"),
    "ckptfmt.saving": ("SaveReceipt", "save"),
    "ckptfmt.storage.recovery": ("leftovers", "recover"),
    "ckptfmt.tree.box": ("Box",),
    "ckptfmt.tree.checkpoint": ("Checkpoint",),
    "ckptfmt.tree.findings": ("Finding", "Severity"),
    "ckptfmt.tree.nodes": ("Composite", "Opaque", "Strings", "Tag", "Tree"),
    "ckptfmt.tree.tensor": ("Tensor",),
    "ckptfmt.verify.checking": ("Report", "check"),
    "ckptfmt.verify.comparing": ("Comparison", "compare"),
    "ckptfmt.verify.digesting": ("Digests", "digest"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'ckptfmt' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
