"""The names of a bundle's files, and the version that is read and written.

Source: ``tensorflow/core/util/tensor_bundle/naming.cc`` and ``tensor_bundle.cc``.
"""

from __future__ import annotations

import os

__all__ = ["VARIANT_NAME", "VERSION", "data_name", "index_name"]

VERSION = 1
"""The version of bundles that is read and written."""

VARIANT_NAME = "tensorflow.Variant"
"""The name of the opaque node that a tensor of variants is; its part ``state`` is `Strings`, an element of
which is one serialised VariantTensorDataProto."""


def index_name(prefix: str | os.PathLike[str]) -> str:
    """Return the path of the table of a bundle."""
    return f"{os.fspath(prefix)}.index"


def data_name(prefix: str | os.PathLike[str], shard: int, shards: int) -> str:
    """Return the path of a file of data of a bundle."""
    return f"{os.fspath(prefix)}.data-{shard:05d}-of-{shards:05d}"
