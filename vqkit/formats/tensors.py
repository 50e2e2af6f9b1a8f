"""safetensors with a declared layout: what may be in a file is known before the file is opened.

A layout maps each tensor's name to (numpy dtype name, shape). Reading checks the file against its layout before any
array is made, and then that the bytes are exactly what writing these tensors gives, so that one set of tensors has
one spelling and nothing can hide in a header or a gap.
"""

import math
import struct

import numpy as np
import safetensors
from safetensors.numpy import load, save

from vqkit.errors import Rejected

_MAX_HEADER = 1 << 16


def size_limit(layout):
    """The largest number of bytes that a file of this layout can have."""
    return 8 + _MAX_HEADER + sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in layout.values())


def encode(tensors, layout):
    """The file bytes of ``tensors`` (name → array), which must have exactly the layout's names, types and shapes."""
    _require(tensors, layout, "tensors")
    return save({name: np.ascontiguousarray(tensors[name]) for name in layout})


def decode(data, layout, *, where):
    """The arrays in ``data`` (bytes of one file), name → array.

    Raises:
        Rejected: E_TENSORS when a name, type or shape is not the layout's, or the bytes are not their own spelling.
    """
    if len(data) > size_limit(layout):
        raise Rejected("E_TENSORS", where, f"at most {size_limit(layout)} bytes", f"{len(data)} bytes")
    if len(data) < 8 or struct.unpack("<Q", data[:8])[0] > _MAX_HEADER:
        raise Rejected("E_TENSORS", where, "a safetensors header", "none")
    try:
        tensors = load(bytes(data))
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise Rejected("E_TENSORS", where, "a safetensors file", str(error)[:200]) from None
    _require(tensors, layout, where)
    if encode(tensors, layout) != data:
        raise Rejected("E_TENSORS", where, "the one spelling of these tensors", "another header or hidden bytes")
    return tensors


def _require(tensors, layout, where):
    found = {name: (array.dtype.name, tuple(array.shape)) for name, array in tensors.items()}
    expected = {name: (dtype, tuple(shape)) for name, (dtype, shape) in layout.items()}
    if found != expected:
        odd = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        wanted = ", ".join(f"{name} {expected.get(name, 'absent')}" for name in odd[:4])
        raise Rejected("E_TENSORS", where, wanted, ", ".join(f"{name} {found.get(name, 'absent')}" for name in odd[:4]))
