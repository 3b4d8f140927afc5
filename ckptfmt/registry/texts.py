"""What a text is that stands where a checkpoint should: a pointer, a page, JSON, an error message.

Text is looked at as bytes from the head of a file; JSON is parsed only where it is small enough to be an
index. Quotes from a file are shown without control characters.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ckptfmt.containers.safetensors_index import MAX_INDEX
from ckptfmt.registry.table import Format, format_named

if TYPE_CHECKING:
    from ckptfmt.storage.reader import ByteReader

__all__ = ["describe_text", "quoted", "read_json"]

_LFS = re.compile(rb"version https://(?:git-lfs\.github|hawser\.github)\.com/spec/v1\r?\n")
_LFS_SIZE = re.compile(rb"^size ([0-9]{1,19})\r?$", re.MULTILINE)
_MAX_JSON = 64 << 20
_PAGE = re.compile(rb"<!doctype html|<html|<head|<body", re.IGNORECASE)
_TITLE = re.compile(rb"<(title|code|message)>\s*([^<]{1,200})", re.IGNORECASE)


def quoted(data: bytes) -> str:
    """Return bytes as a short quotation of one line."""
    text = " ".join(data.decode("utf-8", "replace").split())
    shown = "".join(mark if mark.isprintable() else "?" for mark in text)
    return f'"{shown[:80]}..."' if len(shown) > 80 else f'"{shown}"'


def describe_text(head: bytes) -> tuple[str, str] | None:
    """Return what a text is and what to do about it; None if it is none that we know.

    Parameters
    ----------
    head : bytes
        Up to 4 KiB from the beginning of the file.
    """
    if _LFS.match(head):
        size = _LFS_SIZE.search(head)
        of = f" of a file of {int(size[1])} bytes" if size else ""
        return f"a git-lfs pointer{of}, not the file itself", "Fetch it: git lfs pull."
    if head.startswith((b"/annex/objects/", b".git/annex/")):
        return "a git-annex pointer, not the file itself", "Fetch it: git annex get."
    if head.startswith((b"outs:\n- md5:", b"md5: ")) and b"path:" in head:
        return "a DVC pointer, not the file itself", "Fetch it: dvc pull."
    if head.startswith(b"model_checkpoint_path:"):
        advice = "Give the directory that it lies in, or the prefix of one of its checkpoints."
        return "a list of TensorFlow checkpoints that tells which is the newest", advice
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if _PAGE.match(start) or (start.startswith((b"<?xml", b"<!--", b"<Error")) and b">" in start):
        return _page(start)
    return _plain(head)


def _page(start: bytes) -> tuple[str, str]:
    kind = "an HTML page" if _PAGE.search(start) else "an XML document"
    title = _TITLE.search(start)
    said = f" that says {quoted(title[2])}" if title else ""
    advice = (
        "It is what a server sent in place of the file: look at the address or log in, and download again."
    )
    return f"{kind}{said}", advice


def _plain(head: bytes) -> tuple[str, str] | None:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # the head may end within a character
            return None
        text = head[: error.start].decode()
    if not text or any(mark < " " and mark not in "\t\r\n\f\x1b" for mark in text):
        return None
    return f"a text that begins {quoted(head[:200])}", "It holds no checkpoint."


def read_json(reader: ByteReader, head: bytes) -> Format | tuple[str, str] | None:
    """Return the format of a JSON file, or what else it is; None if it is no JSON.

    Only an index of safetensors shards, or of weights of Keras, is a format.
    """
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    most = MAX_INDEX if b'"weight_map"' in head else _MAX_JSON
    if not start.startswith((b"{", b"[")) or reader.size > most:
        return None
    try:
        value = json.loads(reader.read(0, reader.size).decode("utf-8-sig"))
    except (UnicodeDecodeError, ValueError, RecursionError):
        return _broken(start)
    weights = value.get("weight_map") if isinstance(value, dict) else None
    if isinstance(weights, dict):
        return _index(weights)
    if isinstance(value, dict) and {"format", "root", "self", "tree"} <= set(value):
        return "the manifest of a checkpoint of ours", "Give the directory that it lies in."
    return "a JSON file", "It holds no tensors; give the file or directory that it belongs to."


def _broken(start: bytes) -> tuple[str, str] | None:
    if b'"weight_map"' in start:
        return "an index of shards that is no longer JSON", "It is cut short or damaged: download it again."
    if re.match(rb'\{\s*("|\})|\[\s*[\[\]{"0-9-]', start) is None or _plain(start) is None:
        return None
    return "a JSON file that is cut short or damaged", "It holds no tensors."


def _index(weights: dict[str, object]) -> Format | tuple[str, str]:
    files = [name for name in weights.values() if isinstance(name, str)]
    if len(files) == len(weights) and all(name.endswith(".safetensors") for name in files):
        return format_named("safetensors")
    if files and all(name.endswith((".bin", ".pt", ".pth")) for name in files):
        return "an index of PyTorch shards", f"Give its directory: the {len(set(files))} files are joined."
    listed = [name for names in weights.values() for name in (names if isinstance(names, list) else [names])]
    if listed and all(isinstance(name, str) and name.endswith(".weights.h5") for name in listed):
        return format_named("keras-weights")
    return "an index of weights in other files", "This release does not read those."
