"""Every format passes the tests that are shipped for formats."""

from __future__ import annotations

from ckptfmt.testing.format_tests import FormatTests


class TestNative(FormatTests):
    name = "ckptfmt"
    suffix = ""


class TestNpz(FormatTests):
    name = "npz"
    suffix = ".npz"


class TestSafetensors(FormatTests):
    name = "safetensors"
    suffix = ".safetensors"
    checksums = False


class TestTorch(FormatTests):
    name = "torch"
    suffix = ".pt"
