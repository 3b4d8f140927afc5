"""The names in PyTorch's pickles: element types, storage classes, functions that make tensors.

Data only. Facts from ``torch/storage.py`` and ``torch/_utils.py`` of 2.13 and what older releases wrote. The
composites that a reader makes, and writers and `live` understand, are named here too:

================== ==================================== ==================================================
name               attributes                           parts
================== ==================================== ==================================================
sparse_coo         size, is_coalesced                   indices, values
sparse_csr, _bsr   size                                 crow_indices, col_indices, values
sparse_csc, _bsc   size                                 ccol_indices, row_indices, values
torch.quantized    dtype, qscheme, and scale,           values (i8, u8, i32, u4 or u2), and per channel
                   zero_point or axis                   scales, zero_points
torch.nested                                            buffer, sizes, strides, offsets
torch.complex32                                         values (f16, one more dimension: real, imaginary)
torch.bits         dtype                                values (u8 or u16)
torch.meta         dtype, size, stride, requires_grad
================== ==================================== ==================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from ckptfmt.containers.pickle.nodes import Global

__all__ = [
    "BITS",
    "BY_DTYPE",
    "BY_NAME",
    "BY_STORAGE",
    "COMPLEX_HALF",
    "META",
    "NESTED",
    "PARAMETER",
    "QUANTIZED",
    "SPARSE_PARTS",
    "TENSOR",
    "UNTYPED_STORAGE",
    "ElementType",
    "storage_element",
    "torch_function",
]

QUANTIZED = "torch.quantized"
NESTED = "torch.nested"
COMPLEX_HALF = "torch.complex32"
BITS = "torch.bits"
META = "torch.meta"
SPARSE_PARTS: dict[str, tuple[str, ...]] = {
    "sparse_coo": ("indices", "values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
"""The parts of each sparse layout, in the order in which its pickles have them."""

PARAMETER = "torch.nn.parameter.Parameter"
TENSOR = "torch.Tensor"
UNTYPED_STORAGE = Global("torch.storage", "UntypedStorage")


@dataclass(frozen=True, slots=True)
class ElementType:
    """One of PyTorch's element types.

    Attributes
    ----------
    name : str
        As in ``torch.<name>``.
    dtype : str
        The name of the tree's type that holds its elements, or the halves of them.
    width : int
        Bytes of one element of a storage: two or four elements of the packed types share one.
    lanes : int
        Numbers in an element: 2 for complex ones.
    storage : str or None
        Its storage class; None for the types that pickles keep in untyped storages.
    role : str
        ``plain``, or how else it appears in a tree: ``quantized``, ``packed``, ``bits``, ``complex-half``.
    """

    name: str
    dtype: str
    width: int
    lanes: int = 1
    storage: str | None = None
    role: str = "plain"


_TYPES = (
    ElementType("float64", "f64", 8, storage="DoubleStorage"),
    ElementType("float32", "f32", 4, storage="FloatStorage"),
    ElementType("float16", "f16", 2, storage="HalfStorage"),
    ElementType("bfloat16", "bf16", 2, storage="BFloat16Storage"),
    ElementType("int64", "i64", 8, storage="LongStorage"),
    ElementType("int32", "i32", 4, storage="IntStorage"),
    ElementType("int16", "i16", 2, storage="ShortStorage"),
    ElementType("int8", "i8", 1, storage="CharStorage"),
    ElementType("uint8", "u8", 1, storage="ByteStorage"),
    ElementType("bool", "bool", 1, storage="BoolStorage"),
    ElementType("complex128", "c128", 16, 2, "ComplexDoubleStorage"),
    ElementType("complex64", "c64", 8, 2, "ComplexFloatStorage"),
    ElementType("qint8", "i8", 1, storage="QInt8Storage", role="quantized"),
    ElementType("qint32", "i32", 4, storage="QInt32Storage", role="quantized"),
    ElementType("quint8", "u8", 1, storage="QUInt8Storage", role="quantized"),
    ElementType("quint4x2", "u4", 1, storage="QUInt4x2Storage", role="quantized"),
    ElementType("quint2x4", "u2", 1, storage="QUInt2x4Storage", role="quantized"),
    ElementType("uint16", "u16", 2),
    ElementType("uint32", "u32", 4),
    ElementType("uint64", "u64", 8),
    ElementType("float8_e4m3fn", "f8_e4m3fn", 1),
    ElementType("float8_e5m2", "f8_e5m2", 1),
    ElementType("float8_e4m3fnuz", "f8_e4m3fnuz", 1),
    ElementType("float8_e5m2fnuz", "f8_e5m2fnuz", 1),
    ElementType("float8_e8m0fnu", "f8_e8m0fnu", 1),
    ElementType("float4_e2m1fn_x2", "f4_e2m1fn", 1, role="packed"),
    ElementType("complex32", "f16", 4, 2, role="complex-half"),
    ElementType("bits8", "u8", 1, role="bits"),
    ElementType("bits16", "u16", 2, role="bits"),
    ElementType("bits1x8", "u8", 1, role="bits"),
    ElementType("bits2x4", "u8", 1, role="bits"),
    ElementType("bits4x2", "u8", 1, role="bits"),
)

BY_NAME: dict[str, ElementType] = {kind.name: kind for kind in _TYPES}
BY_STORAGE: dict[str, ElementType] = {kind.storage: kind for kind in _TYPES if kind.storage}
BY_DTYPE: dict[str, ElementType] = {kind.dtype: kind for kind in _TYPES if kind.role in ("plain", "packed")}
"""The plain element type of each type of a tree that PyTorch has."""

_STORAGE_MODULES = ("torch", "torch.cuda")


def storage_element(cls: Global) -> ElementType | None:
    """Return the element type of a storage class, or None for the untyped one and for what is none."""
    return BY_STORAGE.get(cls.name) if cls.module in _STORAGE_MODULES else None


def torch_function(name: str) -> Global:
    """Return the name of one of the functions of ``torch._utils`` that make tensors."""
    return Global("torch._utils", name)
