"""One name for each class, whatever the release that wrote it called it.

The table of Annex B of ``spec/ckptfmt-1.0.md``: it enters the digests of opaque nodes, so it is frozen with
major version 1. Only names are compared; nothing is imported.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["CLASS_ALIASES", "MODULE_ALIASES", "PACKAGE_ALIASES", "canonical_class"]

MODULE_ALIASES: dict[str, str] = {
    "UserDict": "collections",
    "UserList": "collections",
    "UserString": "collections",
    "__builtin__": "builtins",
    "cPickle": "pickle",
    "copy_reg": "copyreg",
    "exceptions": "builtins",
    "pathlib._local": "pathlib",
    "torch.distributed._tensor.api": "torch.distributed.tensor",
    "torch.distributed._tensor.device_mesh": "torch.distributed.device_mesh",
    "torch.distributed.tensor._api": "torch.distributed.tensor",
    "torch.tensor": "torch._tensor",
}
"""Whole modules, by exact name."""

PACKAGE_ALIASES: dict[str, str] = {
    "numpy._core": "numpy.core",
    "torch.distributed._tensor": "torch.distributed.tensor",
}
"""Packages with everything below them; modules named above go first."""

CLASS_ALIASES: dict[tuple[str, str], tuple[str, str]] = {
    ("builtins", "long"): ("builtins", "int"),
    ("builtins", "unicode"): ("builtins", "str"),
    ("builtins", "xrange"): ("builtins", "range"),
    ("torch", "TypedStorage"): ("torch.storage", "TypedStorage"),
    ("torch", "UntypedStorage"): ("torch.storage", "UntypedStorage"),
    ("torch._utils", "_rebuild_xla_tensor"): ("torch._utils", "_rebuild_device_tensor_from_numpy"),
    ("torch.optim.lr_scheduler", "_LRScheduler"): ("torch.optim.lr_scheduler", "LRScheduler"),
    ("torch.storage", "_TypedStorage"): ("torch.storage", "TypedStorage"),
    ("torch.storage", "_UntypedStorage"): ("torch.storage", "UntypedStorage"),
}
"""Single classes and functions, after the modules."""


@lru_cache(maxsize=4096)
def canonical_class(module: str, name: str) -> tuple[str, str]:
    """Return the module and the name under which a class or function is known.

    Parameters
    ----------
    module, name : str
        As the object, or the file that mentions it, has them; `name` may be dotted.
    """
    module = MODULE_ALIASES.get(module, module)
    for package, known in PACKAGE_ALIASES.items():
        if module == package or module.startswith(f"{package}."):
            module = known + module[len(package) :]
    return CLASS_ALIASES.get((module, name), (module, name))
