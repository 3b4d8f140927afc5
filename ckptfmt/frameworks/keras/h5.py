"""The format ``keras-h5``: legacy HDF5 files of Keras 1, 2 and 3, weights alone or a whole model.

Configurations are texts in the tree, looked at only to tell types of layers. Needs h5py (the extra ``hdf5``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptfmt.containers.hdf5.reader import Hdf5File
from ckptfmt.containers.hdf5.writer import Hdf5Writer
from ckptfmt.errors import FormatError
from ckptfmt.frameworks.keras.config import layers, parse
from ckptfmt.frameworks.keras.emit import Told
from ckptfmt.frameworks.keras.emit_legacy import PlannedLegacy
from ckptfmt.frameworks.keras.groups import Untyped
from ckptfmt.frameworks.keras.legacy import CONFIGS, legacy_tree
from ckptfmt.storage.replace import replacing
from ckptfmt.tree.checkpoint import Checkpoint
from ckptfmt.tree.findings import Finding, Severity

if TYPE_CHECKING:
    import os

    from ckptfmt.frameworks.keras.config import Layer
    from ckptfmt.tree.nodes import Tree

__all__ = ["known_layers", "read", "write"]


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a legacy HDF5 file of Keras.

    Tensors stay in the file until they are read. Two raw bytes are bfloat16 where the configuration says that
    their layer is; else they stay raw (finding ``untyped``).

    Parameters
    ----------
    path : str or os.PathLike

    Raises
    ------
    FormatError, TruncatedError, LimitError, UnsupportedVersionError
        The file is malformed or hostile, or its lists of names do not fit its groups.
    NotFoundError, StorageError
        It cannot be opened.
    """
    file = Hdf5File(path)
    try:
        untyped = Untyped(file.name)
        config = file.root.attributes.get(CONFIGS[0])
        known, told = known_layers(config if isinstance(config, str) else None, file.name)
        tree, findings = legacy_tree(file, untyped, known)
    except BaseException:
        file.close()
        raise
    found = (*file.findings, *told, *findings, *untyped.findings())
    return Checkpoint(tree, format="keras-h5", findings=found, close=file.close)


def write(tree: Tree, target: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Finding, ...]:
    """Write a tree as a legacy HDF5 file, which Keras 2, tf-keras and Keras 3 load.

    Parameters
    ----------
    tree : Tree
        As the reader returns it: ``model_weights`` (layers by name, weights nested as their names are) and,
        for a whole model, ``model_config``, ``training_config`` (texts) and ``optimizer_weights``. Layers and
        weights are listed in the order of the keys, which is how Keras loads them.
    target : str or os.PathLike
    overwrite : bool
        Whether a file that is there is replaced.

    Returns
    -------
    tuple of Finding
        ``stored-raw`` for types that no Keras loads from such a file, bfloat16 among them; ``tie-broken``;
        ``order-guessed`` (a loss) where weights are nested and the tag of their mapping does not list them.

    Raises
    ------
    ConversionError
        The tree is no such tree; names the path that does not fit.
    ExistsError, NoSpaceError, StorageError
        The file could not be written; the target is as it was.
    """
    told = Told(loads_bfloat16=False)
    planned = PlannedLegacy(tree, told)
    with replacing(target, overwrite=overwrite) as file, Hdf5Writer(file) as writer:
        planned.write(writer)
    return tuple(told.findings())


def known_layers(text: str | None, file: str) -> tuple[tuple[Layer, ...], tuple[Finding, ...]]:
    """Return the layers that a configuration names, or a finding if it cannot be understood."""
    if text is None:
        return (), ()
    try:
        return layers(parse(text, file=file)), ()
    except FormatError as error:
        message = f"{error.message}: what it says of layers is not known"
        return (), (Finding("config-unreadable", "", Severity.PROBLEM, message, file=file),)
