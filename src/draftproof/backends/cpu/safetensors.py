"""A folder with config.json and safetensors, as the metadata and tensors of a GGUF file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from draftproof.backends.cpu.huggingface import HubConfig, gguf_name, is_norm, read_hub_config
from draftproof.backends.cpu.quantize import BLOCK, BLOCK_BYTES, quantize_rows
from draftproof.backends.weights import (
    StoredTensor,
    corrupt,
    safetensors_files,
    safetensors_header,
)
from draftproof.core import Float32, Shaped
from draftproof.errors import ModelNotFound, UnsupportedModel

Quantize: TypeAlias = Literal["8", "4"]

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
UNUSED = ".rotary_emb.inv_freq"  # what old Llama files hold besides weights
BOUNDARY = ("token_embd.weight", "output.weight")


class FolderTensor(NamedTuple):
    """A tensor, ready for the engine.

    Args:
        name: Its GGUF name.
        type: Its number format's GGUF name.
        rows: Of a matrix; 1 for a vector.
        cols: Of a matrix, or the size of a vector.
        data: Its bytes, uint8, row after row.
    """

    name: str
    type: str
    rows: int
    cols: int
    data: Shaped[np.ndarray, "bytes"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor is, and what becomes of it.

    Args:
        path: Its file.
        stored: What the file's header says of it.
        name: Its GGUF name.
        type: The number format in which it is handed on.
    """

    path: Path
    stored: StoredTensor
    name: str
    type: str

    @property
    def rows_cols(self) -> tuple[int, int]:
        """A vector is a single row."""
        shape = self.stored.shape
        return (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0])

    @property
    def bytes(self) -> int:
        """Its size in the format in which it is handed on."""
        rows, cols = self.rows_cols
        if self.type in BLOCK_BYTES:
            return rows * cols // BLOCK * BLOCK_BYTES[self.type]
        return rows * cols * ITEM_BYTES[self.type]


class Folder:
    """A model's folder whose headers were read and checked.

    Args:
        path: The folder.
        config: Its config.json.
        places: Its tensors.
    """

    def __init__(self, path: Path, config: HubConfig, places: list[Place]) -> None:
        self.path = path
        self.metadata: Mapping[str, Any] = config.metadata
        self.vocab_size = config.vocab_size
        self.eos = _ends(path, config)
        self.rope_factors = config.rope_factors
        self._places = places

    @property
    def stored_bytes(self) -> int:
        """What all tensors take in the formats in which they are handed on."""
        return sum(place.bytes for place in self._places)

    @property
    def tensors(self) -> Iterator[FolderTensor]:
        """Every tensor, read when it is asked for.

        Raises:
            ModelCorrupt: A file is shorter than it was, or a weight cannot be quantised.
        """
        gemma = self.metadata["general.architecture"] == "gemma3"
        for place in self._places:
            yield FolderTensor(place.name, place.type, *place.rows_cols, _read(place, gemma))


def open_folder(path: str | Path, quantize: Quantize | None = None) -> Folder:
    """Read and check the headers of a folder.

    Args:
        path: With config.json and safetensors of one of the models that the CPU engine runs.
        quantize: Quantise the matrices to 8 or 4 bits per group of 32. With 4 bits the embedding
            and the output keep 8; matrices whose rows are no multiple of 32 stay as they are.

    Raises:
        ModelNotFound: There is no such folder, config.json or model.safetensors.
        ModelCorrupt: A file is missing or damaged.
        UnsupportedModel: The CPU engine does not run the model.
    """
    folder = Path(path)
    config = read_hub_config(_config(folder), folder.name)
    architecture = config.metadata["general.architecture"]
    places: dict[str, Place] = {}
    for file in safetensors_files(folder):
        for stored in safetensors_header(file):
            if stored.name.endswith(UNUSED):
                continue
            name = gguf_name(stored.name, architecture)
            if name is None:
                raise UnsupportedModel(
                    f"{folder.name} has the weights {stored.name}",
                    why=f"the CPU engine has no use for them in a model of {architecture}",
                    remedy="run the model with --backend torch",
                )
            _check(file, stored)
            if name in places:
                raise corrupt(file, f"{stored.name} is there twice")
            if name != "output.weight" or not config.tied:
                places[name] = Place(file, stored, name, _kind(stored, name, quantize))
    if not config.tied and "output.weight" not in places:
        raise corrupt(folder, "lm_head.weight is missing, and config.json does not tie it")
    return Folder(folder, config, list(places.values()))


def _ends(folder: Path, config: HubConfig) -> frozenset[int]:
    """Tokens that end a sequence: those of generation_config.json, else the configuration's.

    Raises:
        ModelCorrupt: generation_config.json is damaged.
    """
    path = folder / "generation_config.json"
    ends = _json(path).get("eos_token_id") if path.is_file() else None
    if ends is None:
        return config.eos
    ids = ends if isinstance(ends, list) else [ends]
    if not all(isinstance(token, int) for token in ids):
        raise corrupt(path, f"eos_token_id is {ends!r}")
    return frozenset(ids)


def _config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise ModelNotFound(
            f"{folder} holds no config.json",
            why="the model's shape is read from it",
            remedy="name a folder of Hugging Face's layout, or a .gguf file",
        )
    return _json(path)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise corrupt(path, str(error)) from error
    if not isinstance(document, dict):
        raise corrupt(path, "it is no JSON object")
    return document


def _check(path: Path, stored: StoredTensor) -> None:
    """Refuse a number format that is not read, and a size that does not fit the shape."""
    if stored.dtype not in ITEM_BYTES:
        raise UnsupportedModel(
            f"{path.parent.name} stores {stored.name} as {stored.dtype}",
            why=f"the CPU engine reads {', '.join(ITEM_BYTES)}",
            remedy="convert the weights, or run the model with --backend torch",
        )
    if len(stored.shape) not in (1, 2):
        raise corrupt(path, f"{stored.name} has {len(stored.shape)} dimensions")
    if stored.bytes != math.prod(stored.shape) * ITEM_BYTES[stored.dtype]:
        raise corrupt(path, f"the bytes of {stored.name} do not fit its shape")


def _kind(stored: StoredTensor, name: str, quantize: Quantize | None) -> str:
    """The number format in which a tensor is handed on."""
    if is_norm(name):
        return "F32"
    if quantize is None or len(stored.shape) == 1 or stored.shape[1] % BLOCK:
        return stored.dtype
    return "Q4_0" if quantize == "4" and name not in BOUNDARY else "Q8_0"


def _read(place: Place, gemma: bool) -> Shaped[np.ndarray, "bytes"]:
    stored = place.stored
    data = np.fromfile(place.path, np.uint8, count=stored.bytes, offset=stored.offset)
    if data.size != stored.bytes:
        raise corrupt(place.path, f"it ends within {stored.name}")
    if is_norm(place.name):
        # Gemma multiplies by 1 + weight; a GGUF file holds the sum.
        return (_floats(data, stored.dtype) + np.float32(gemma)).view(np.uint8)
    if place.type == stored.dtype:
        return data
    rows, cols = place.rows_cols
    row_bytes = cols * ITEM_BYTES[stored.dtype]
    out = np.empty((rows, place.bytes // max(rows, 1)), np.uint8)
    step = max(1, (1 << 24) // row_bytes)  # 16 MiB of the file at once
    try:
        for start in range(0, rows, step):
            part = _floats(data[start * row_bytes : (start + step) * row_bytes], stored.dtype)
            out[start : start + step] = quantize_rows(part.reshape(-1, cols), place.type)
    except ValueError as error:
        raise corrupt(place.path, f"{stored.name}: {error}") from error
    return out.reshape(-1)


def _floats(data: Shaped[np.ndarray, "bytes"], dtype: str) -> Float32[np.ndarray, "values"]:
    """Little-endian F32, F16 or BF16 as float32, exactly."""
    if dtype == "BF16":
        return (data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return data.view("<f4" if dtype == "F32" else "<f2").astype(np.float32)
