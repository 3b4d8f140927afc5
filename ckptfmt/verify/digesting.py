"""The digests of any checkpoint, file or tree in memory: computed from the data, never just believed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptfmt.format.digests import digest_tensor, root_digest, tree_bag
from ckptfmt.parallel.pipeline import Progress, thread_count
from ckptfmt.tree.paths import display
from ckptfmt.tree.walk import survey, tensors
from ckptfmt.verify.opening import tree_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ckptfmt.tree.nodes import Tree
    from ckptfmt.tree.tensor import Tensor

__all__ = ["Digests", "digest"]


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of a tree.

    Attributes
    ----------
    root : bytes
        Of typed paths and values.
    bag : bytes
        Of the multiset of tensors, whatever they are called.
    tensors : dict of str to bytes
        Tensor digests by displayed path.
    """

    root: bytes
    bag: bytes
    tensors: dict[str, bytes]


def digest(
    tree: object,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    paths: bool = True,
) -> Digests:
    """Return the digests of a checkpoint or of any Python value that `save` takes.

    Parameters
    ----------
    tree : str, os.PathLike, Checkpoint or object
        The path of a checkpoint of any format, an opened one, or nested containers with arrays. All tensors
        are read.
    threads : int, optional
    progress : callable, optional
        Called with bytes done and bytes in all.
    paths : bool
        Whether `tensors` is filled: that takes time and memory for each path through a shared container, of
        which a small file can have millions.

    Raises
    ------
    TreeError, LimitError
        The value cannot be kept.
    FormatError, StorageError
        A tensor cannot be read, or is not what its checkpoint says.
    """
    with tree_of(tree) as opened:
        return tree_digests(opened, threads=threads, progress=progress, paths=paths)


def tree_digests(
    tree: Tree,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    paths: bool = True,
) -> Digests:
    """Return the digests of a tree, as `digest`; tied tensors are read once."""
    places = survey(tree)
    unique = {_key(place.tensor): place.tensor for place in places}
    counter = Progress(progress, sum(tensor.nbytes for tensor in unique.values()))

    def one(tensor: Tensor) -> bytes:
        value = digest_tensor(tensor)
        counter.add(tensor.nbytes)
        return value

    with ThreadPoolExecutor(thread_count(threads), thread_name_prefix="ckptfmt") as pool:
        done = dict(zip(unique, pool.map(one, unique.values()), strict=True))

    def of(tensor: Tensor) -> bytes:
        return done[_key(tensor)]

    by_path = {display(path): of(tensor) for path, tensor in tensors(tree)} if paths else {}
    return Digests(root_digest(tree, of), tree_bag(places, of), by_path)


def _key(tensor: Tensor) -> object:
    return id(tensor) if tensor.identity is None else tensor.identity
