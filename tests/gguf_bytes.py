"""GGUF files put together piece by piece, wrong pieces too, which a proper writer would refuse."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

# Codes of value types.
U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, elements: Sequence[bytes], count: int | None = None) -> bytes:
    return struct.pack("<IQ", kind, len(elements) if count is None else count) + b"".join(elements)


def entry(name: str, shape: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def build(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: int = 0,
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A file with so many bytes of data, aligned to 32 bytes."""
    tensor_count, pair_count = counts or (len(tensors), len(pairs))
    header = b"GGUF" + struct.pack("<IQQ", version, tensor_count, pair_count)
    header += b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32 + data)


def number(code: str, value: Any) -> bytes:
    return struct.pack("<" + code, value)
