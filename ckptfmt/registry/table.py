"""The formats of this release as data: one row for each, sorted by name.

Readers and writers are dotted names, so that listing formats imports none of them. Our own format has
neither: `saving` and `loading` lie above this layer, and `conversion` calls them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckptfmt.errors import UnknownFormatError

__all__ = ["NATIVE", "Format", "format_named", "formats"]

NATIVE = "ckptfmt"
"""The name of our own format."""


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes
    ----------
    name : str
        What a user types.
    summary : str
        What it is, in a few words.
    container : str
        What its bytes are: ``"directory"``, ``"zip"`` or ``"safetensors"``.
    extensions : tuple of str
        Endings of the targets that mean this format where none is named: with the dot, lower case; empty for
        no ending at all. Never used to tell what a file holds.
    reader, writer : str or None
        ``"module:function"``. Both None for our own format; `writer` alone None where files are only read.
    codecs : tuple of str
        How its data can be stored, the default first.
    shards : bool
        Whether it can be spread over files of a given size.
    extra : str or None
        The extra that reading and writing need.
    instead : str or None
        Of a format that is only read: what to write, as the name of a format.
    slots : str or None
        ``"module:function"`` that tells which parameter each value of an optimizer belongs to.
    """

    name: str
    summary: str
    container: str
    extensions: tuple[str, ...]
    reader: str | None
    writer: str | None
    codecs: tuple[str, ...] = ("raw",)
    shards: bool = False
    extra: str | None = None
    instead: str | None = None
    slots: str | None = None

    @property
    def writable(self) -> bool:
        """Whether files of this format can be written."""
        return self.writer is not None or self.name == NATIVE


_FORMATS = (
    Format(
        "chainer-hdf5",
        "the same arrays as chainer.serializers.save_hdf5 keeps them",
        "hdf5",
        (),
        "ckptfmt.frameworks.chainer.hdf5:read",
        "ckptfmt.frameworks.chainer.hdf5:write",
        codecs=("raw", "deflate"),
        extra="chainer",
    ),
    Format(
        "chainer-npz",
        "arrays as chainer.serializers.save_npz names them, and snapshots of trainers",
        "zip",
        (),
        "ckptfmt.frameworks.chainer.npz:read",
        "ckptfmt.frameworks.chainer.npz:write",
        codecs=("raw", "deflate"),
    ),
    Format(
        "chainermn",
        "the snapshots of several ranks of ChainerMN, read as one",
        "directory",
        (),
        "ckptfmt.frameworks.chainer.multinode:read",
        None,
        instead="chainer-npz",
    ),
    Format(
        NATIVE,
        "a directory with a manifest, safetensors shards and a digest of every byte",
        "directory",
        ("", ".ckptfmt"),
        None,
        None,
        codecs=("raw", "zstd", "planes+zstd"),
        shards=True,
    ),
    Format(
        "dcp",
        "a directory as torch.distributed.checkpoint writes",
        "directory",
        (".dcp",),
        "ckptfmt.frameworks.pytorch.dcp.reader:read",
        "ckptfmt.frameworks.pytorch.dcp.writer:write",
        shards=True,
        slots="ckptfmt.frameworks.pytorch.optimizers:slots",
    ),
    Format(
        "hdf5",
        "an HDF5 file of arrays in groups",
        "hdf5",
        (".h5", ".hdf5"),
        "ckptfmt.frameworks.flat.hdf5:read",
        "ckptfmt.frameworks.flat.hdf5:write",
        codecs=("raw", "deflate"),
        extra="hdf5",
    ),
    Format(
        "keras",
        "a whole model in a zip archive, as Keras 3 and tf-keras write (.keras)",
        "zip",
        (".keras",),
        "ckptfmt.frameworks.keras.archive:read",
        "ckptfmt.frameworks.keras.archive:write",
        extra="hdf5",
        slots="ckptfmt.frameworks.keras.optimizer:slots",
    ),
    Format(
        "keras-h5",
        "legacy HDF5 of Keras 1 to 3: weights by layer, or a whole model",
        "hdf5",
        (),
        "ckptfmt.frameworks.keras.h5:read",
        "ckptfmt.frameworks.keras.h5:write",
        extra="hdf5",
        slots="ckptfmt.frameworks.keras.optimizer:slots",
    ),
    Format(
        "keras-weights",
        "weights of Keras 3 (.weights.h5); sharded ones (.weights.json) are read",
        "hdf5",
        (".weights.h5",),
        "ckptfmt.frameworks.keras.weights:read",
        "ckptfmt.frameworks.keras.weights:write",
        extra="hdf5",
        slots="ckptfmt.frameworks.keras.optimizer:slots",
    ),
    Format(
        "npz",
        "NumPy arrays in a zip archive, as numpy.savez and Chainer write",
        "zip",
        (".npz",),
        "ckptfmt.frameworks.flat.npz:read",
        "ckptfmt.frameworks.flat.npz:write",
        codecs=("raw", "deflate"),
    ),
    Format(
        "pickle",
        "a bare pickle that holds arrays and plain values",
        "pickle",
        (),
        "ckptfmt.frameworks.pytorch.bare:read",
        None,
        instead="torch",
    ),
    Format(
        "safetensors",
        "one safetensors file, or shards with an index",
        "safetensors",
        (".safetensors", ".safetensors.index.json"),
        "ckptfmt.frameworks.flat.safetensors:read",
        "ckptfmt.frameworks.flat.safetensors:write",
        shards=True,
    ),
    Format(
        "tensorflow",
        "a TensorFlow checkpoint (V2): an index and files of data; also of a SavedModel",
        "bundle",
        (".index",),
        "ckptfmt.frameworks.tensorflow.reader:read",
        "ckptfmt.frameworks.tensorflow.writer:write",
        shards=True,
    ),
    Format(
        "tensorflow-v1",
        "a TensorFlow checkpoint of before 0.12 (V1)",
        "table",
        (),
        "ckptfmt.frameworks.tensorflow.reader_v1:read",
        None,
        instead="tensorflow",
    ),
    Format(
        "torch",
        "a zip archive as torch.save writes since 1.6",
        "zip",
        (".pt", ".pth"),
        "ckptfmt.frameworks.pytorch.reader:read",
        "ckptfmt.frameworks.pytorch.writer:write",
        slots="ckptfmt.frameworks.pytorch.optimizers:slots",
    ),
    Format(
        "torch-export",
        "a program of torch.export (.pt2): its weights and constants",
        "zip",
        (),
        "ckptfmt.frameworks.pytorch.export:read",
        None,
        instead="torch",
    ),
    Format(
        "torch-legacy",
        "a stream of pickles as torch.save wrote from 0.1.10 to 1.5",
        "stream",
        (),
        "ckptfmt.frameworks.pytorch.stream:read",
        "ckptfmt.frameworks.pytorch.stream_writer:write",
        slots="ckptfmt.frameworks.pytorch.optimizers:slots",
    ),
    Format(
        "torch-ranks",
        "a directory with one torch.save file of each rank, whose shards are joined",
        "directory",
        (),
        "ckptfmt.frameworks.pytorch.ranks.reader:read",
        None,
        instead="torch",
    ),
    Format(
        "torch-tar",
        "a tar archive as torch.save wrote before 0.1.10",
        "tar",
        (),
        "ckptfmt.frameworks.pytorch.tarred:read",
        None,
        instead="torch",
        slots="ckptfmt.frameworks.pytorch.optimizers:slots",
    ),
    Format(
        "torchscript",
        "a TorchScript program: the attributes of its module, and its constants",
        "zip",
        (),
        "ckptfmt.frameworks.pytorch.script:read",
        None,
        instead="torch",
    ),
)


def formats() -> tuple[Format, ...]:
    """Return all formats of this release, sorted by name."""
    return _FORMATS


def format_named(name: str) -> Format:
    """Return the format of a name.

    Raises
    ------
    UnknownFormatError
        There is none; the message lists those there are.
    """
    for known in _FORMATS:
        if known.name == name:
            return known
    known_names = ", ".join(known.name for known in _FORMATS)
    raise UnknownFormatError(f"no format is called {name!r}; there are {known_names}")
