"""What a model's files say of themselves, read in milliseconds before they are loaded.

Headers alone: they give the number of weights, so that memory can be checked, and where the data
should end, so that a truncated download is caught by name.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.errors import ModelCorrupt, ModelNotFound

SCALARS = "BbHhIif?..Qqd"  # struct codes of GGUF's value types; 8 is a string, 9 an array
STRING, ARRAY = 8, 9
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's weights by its headers.

    Args:
        count: Number of weights.
        stored_bytes: Their size on disk.
        architecture: The name that a GGUF file gives its architecture; "" for safetensors.
    """

    count: int
    stored_bytes: int
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    Args:
        name: Its name there.
        dtype: As safetensors write it: "F32", "BF16", ...
        shape: Rows first.
        offset: Where its data begin, in bytes from the file's beginning.
        bytes: Their size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


def corrupt(path: Path, fault: str) -> ModelCorrupt:
    """The error for a file that is not whole."""
    return ModelCorrupt(
        f"{path} cannot be read: {fault}",
        why="the file is truncated or damaged",
        remedy="delete it and fetch it again",
    )


def read_safetensors(folder: Path) -> Weights:
    """The weights of a folder with `model.safetensors`, in one file or in shards.

    Raises:
        ModelNotFound: There are none.
        ModelCorrupt: A file is missing or not whole.
    """
    count = stored = 0
    for path in safetensors_files(folder):
        tensors = safetensors_header(path)
        count += sum(math.prod(tensor.shape) for tensor in tensors)
        stored += path.stat().st_size
    return Weights(count, stored)


def safetensors_files(folder: Path) -> list[Path]:
    """The files of a folder with `model.safetensors`, in one file or in shards.

    Raises:
        ModelNotFound: There are none.
        ModelCorrupt: One is missing, or the index is damaged.
    """
    index = folder / INDEX
    names = ["model.safetensors"]
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            if not all(Path(name).name == name for name in names):
                raise ValueError("it names files outside of the folder")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise corrupt(index, str(error)) from error
    elif not (folder / names[0]).is_file():
        raise ModelNotFound(
            f"{folder} holds no model.safetensors",
            why="weights are read from safetensors or GGUF files only; others can run code",
            remedy="convert the model to safetensors, or name a .gguf file",
        )
    for name in names:
        if not (folder / name).is_file():
            raise corrupt(folder / name, "it is named in the index but is not there")
    return [folder / name for name in names]


def safetensors_header(path: Path) -> list[StoredTensor]:
    """What a file of safetensors holds.

    The format: the header's size in 8 bytes, the header as a JSON object, the data.

    Raises:
        ModelCorrupt: It is not whole.
    """
    file_size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > file_size - 8:
                raise ValueError("its header is cut off")
            header = json.loads(file.read(size))
        tensors = [
            _stored(name, entry, 8 + size)
            for name, entry in header.items()
            if name != "__metadata__"
        ]
        end = max((tensor.offset + tensor.bytes for tensor in tensors), default=8 + size)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise corrupt(path, str(error)) from error
    if end != file_size:
        raise corrupt(path, f"{file_size} bytes instead of {end}")
    return tensors


def _stored(name: str, entry: Any, start: int) -> StoredTensor:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(f"the shape or place of {name} is no whole number")
    if end < begin:
        raise ValueError(f"{name} ends before it begins")
    return StoredTensor(name, str(entry["dtype"]), shape, start + begin, end - begin)


def read_gguf(path: Path) -> Weights:
    """The weights of a GGUF file (version 2 or 3, little-endian).

    Raises:
        ModelCorrupt: It is not a GGUF file, or it is not whole.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise corrupt(path, "it does not begin like a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _gguf_header(data, path)
            except (struct.error, IndexError, KeyError, ValueError) as error:
                raise corrupt(path, f"its header is cut off or damaged ({error})") from error


def _gguf_header(data: mmap.mmap, path: Path) -> Weights:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    reader = _Reader(data)
    reader.at = 8  # magic and version
    tensors, pairs = reader.scalar("Q"), reader.scalar("Q")
    fields = {}
    for _ in range(pairs):
        key = reader.text()
        fields[key] = reader.value(reader.scalar("I"))
    count = end = 0
    for _ in range(tensors):
        reader.text()
        shape = [reader.scalar("Q") for _ in range(reader.scalar("I"))]
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(reader.scalar("I"))]
        size = math.prod(shape)
        count += size
        end = max(end, reader.scalar("Q") + size // block * block_bytes)
    alignment = fields.get("general.alignment", 32)
    start = -(-reader.at // alignment) * alignment
    if start + end > len(data):
        raise corrupt(path, f"{len(data)} bytes instead of {start + end}")
    return Weights(count, len(data), str(fields.get("general.architecture", "")))


class _Reader:
    """Walks over a GGUF header."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        size = self.scalar("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        """A value; None for an array, which is stepped over."""
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.scalar(SCALARS[kind])
        inner, size = self.scalar("I"), self.scalar("Q")
        if inner in (STRING, ARRAY):
            for _ in range(size):
                self.value(inner)
        else:
            self.at += size * struct.calcsize("<" + SCALARS[inner])
        return None
