# SPDX-License-Identifier: Apache-2.0
"""Bytes of an image as numpy arrays and torch tensors, without a copy.

numpy has no bfloat16 and no float8: with ml_dtypes installed arrays have its types, else they show the raw bits as
uint16 or uint8 of the same shape. Types of 4 and 6 bits are shown packed, as uint8 in one dimension.
"""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from firsttouch._image import Tensor
from firsttouch.errors import UnsupportedError

NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
ML_DTYPES = {
    "BF16": ("bfloat16", "<u2"),
    "F8_E4M3": ("float8_e4m3fn", "u1"),
    "F8_E5M2": ("float8_e5m2", "u1"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "u1"),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "u1"),
    "F8_E8M0": ("float8_e8m0fnu", "u1"),
}
PACKED = ("F4", "F6_E2M3", "F6_E3M2")
TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


@cache
def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy type that shows elements of DTYPE; see the module for those that numpy lacks."""
    if dtype in NUMPY:
        return np.dtype(NUMPY[dtype])
    if dtype in PACKED:
        return np.dtype("u1")
    name, raw = ML_DTYPES[dtype]
    try:
        kind: type[Any] = getattr(importlib.import_module("ml_dtypes"), name)
    except (ImportError, AttributeError):
        return np.dtype(raw)
    return np.dtype(kind)


def as_numpy(buffer: memoryview, tensor: Tensor) -> npt.NDArray[Any]:
    """TENSOR of the image BUFFER as a read-only array that keeps the mapping alive."""
    dtype = numpy_dtype(tensor.dtype)
    part = buffer[tensor.offset : tensor.offset + tensor.bytes]
    flat = np.frombuffer(part, dtype=dtype) if tensor.bytes else np.empty(0, dtype)
    flat.flags.writeable = False
    return flat if tensor.dtype in PACKED else flat.reshape(tensor.shape)


def as_torch(buffer: memoryview, tensor: Tensor) -> Any:
    """TENSOR as a torch tensor. torch knows no read-only ones: to write in place ends this process with SIGSEGV."""
    torch = torch_module()
    name = TORCH.get(tensor.dtype, "uint8")
    dtype = getattr(torch, name, None)
    if dtype is None:
        raise UnsupportedError(f"this torch has no {name}", hint="install a newer torch, or use numpy")
    if not tensor.bytes:
        return torch.empty(tensor.shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        flat = torch.frombuffer(buffer[tensor.offset : tensor.offset + tensor.bytes], dtype=dtype)
    return flat if tensor.dtype in PACKED else flat.reshape(tensor.shape)


def torch_module() -> Any:
    """torch, or UnsupportedError with how to get it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise UnsupportedError("torch is not installed", hint="pip install torch, or use numpy") from error
