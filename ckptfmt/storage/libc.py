"""System calls that Python does not offer, through the C library; each raises OSError as `os` would.

Linux: fallocate, renameat2, statfs. macOS: renameatx_np. Where a call is missing it raises
ENOSYS, so that callers need one fallback and not two.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["allocate", "exchange", "file_system_type", "rename_new"]

_NOREPLACE, _EXCHANGE = 1, 2  # <linux/fs.h>
_DARWIN_EXCL, _DARWIN_SWAP = 4, 2  # <sys/stdio.h>
_RENAMEAT2_NUMBERS = {"x86_64": 316, "aarch64": 276, "riscv64": 276, "ppc64le": 357, "s390x": 347}
_AT_FDCWD = -2 if sys.platform == "darwin" else -100
_ARGUMENTS: dict[str, list[type[ctypes._SimpleCData]]] = {
    "fallocate": [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64],
    "fallocate64": [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64],
    "renameat2": [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint],
    "renameatx_np": [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint],
    "statfs": [ctypes.c_char_p, ctypes.c_void_p],
}


@cache
def _function(*names: str) -> Callable[..., int] | None:
    """Return the first of the C library's functions of these names that it has."""
    if os.name != "posix":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    for name in names:
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes = _ARGUMENTS.get(name)
            return lambda *arguments, call=function: int(call(*arguments))
    return None


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _missing() -> OSError:
    return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def allocate(fd: int, size: int) -> None:
    """Reserve the first `size` bytes of a file; unlike posix_fallocate this never writes zeros instead."""
    function = _function("fallocate64", "fallocate") if sys.platform == "linux" else None
    if function is None:
        raise _missing()
    _checked(function(fd, 0, 0, size))


def exchange(dir_fd: int | None, first: str, second: str) -> None:
    """Exchange two directory entries in one atomic step."""
    _rename(dir_fd, first, second, _DARWIN_SWAP if sys.platform == "darwin" else _EXCHANGE)


def rename_new(dir_fd: int | None, source: str, target: str) -> None:
    """Rename an entry in one atomic step that fails with EEXIST where the target exists."""
    _rename(dir_fd, source, target, _DARWIN_EXCL if sys.platform == "darwin" else _NOREPLACE)


def _rename(dir_fd: int | None, source: str, target: str, flags: int) -> None:
    start = _AT_FDCWD if dir_fd is None else dir_fd
    arguments = (start, os.fsencode(source), start, os.fsencode(target), flags)
    function = _function("renameatx_np" if sys.platform == "darwin" else "renameat2")
    if function is not None:
        _checked(function(*arguments))
        return
    number = _RENAMEAT2_NUMBERS.get(platform.machine())  # C libraries older than the kernel call
    system_call = _function("syscall") if sys.platform == "linux" else None
    if number is None or system_call is None:
        raise _missing()
    _checked(system_call(ctypes.c_long(number), *(_word(value) for value in arguments)))


def _word(value: int | bytes) -> ctypes.c_long | ctypes.c_char_p:
    return ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_long(value)


def file_system_type(path: str) -> int:
    """Return statfs' ``f_type`` of the file system that holds `path` (Linux)."""
    function = _function("statfs") if sys.platform == "linux" else None
    if function is None:
        raise _missing()
    out = ctypes.create_string_buffer(512)  # f_type comes first; the whole struct is under 200 bytes
    _checked(function(os.fsencode(path), ctypes.cast(out, ctypes.c_void_p)))
    return int(ctypes.c_uint32.from_buffer(out, 0 if sys.byteorder == "little" else _BIG_ENDIAN_LOW).value)


_BIG_ENDIAN_LOW = 0 if platform.machine() == "s390x" else ctypes.sizeof(ctypes.c_long) - 4
