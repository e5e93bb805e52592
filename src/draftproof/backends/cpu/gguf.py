"""GGUF files for the CPU engine; the native parser does the work and checks every number."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from draftproof.backends.cpu.native import require_native
from draftproof.backends.weights import corrupt
from draftproof.core import Shaped
from draftproof.errors import ModelNotFound, OutOfMemory, UnsupportedModel

# What the values that everything relies on must be, where they are there at all. An array's first
# element stands for all: they are of one type.
TOKENIZER = "tokenizer.ggml."
EXPECTED: Mapping[str, tuple[str, ...]] = {
    "a string": (
        "general.architecture",
        f"{TOKENIZER}model",
        f"{TOKENIZER}pre",
        "tokenizer.chat_template",
    ),
    "an array of strings": (f"{TOKENIZER}tokens", f"{TOKENIZER}merges"),
    "an array of numbers": (f"{TOKENIZER}token_type", f"{TOKENIZER}scores"),
    "a whole number": tuple(
        f"{TOKENIZER}{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown", "padding")
    ),
}


@runtime_checkable
class GgufFile(Protocol):
    """A file whose header was read and checked: `draftproof._native.Gguf`.

    The file stays mapped into memory as long as this lives. It may be replaced meanwhile, but must
    not be made shorter in place: reading beyond its new end would kill the process.
    """

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values by key: numbers, booleans, strings, arrays.

        Arrays of numbers are read-only numpy arrays, other arrays are lists. Bytes that are not
        UTF-8 are in strings as `surrogateescape` makes them.
        """

    @property
    def tensors(self) -> Mapping[str, tuple[str | int, tuple[int, ...]]]:
        """The type and the shape of each tensor by name, in the file's order.

        The type is its name, or its code if it has none; the shape begins with the columns.
        """

    @property
    def version(self) -> int:
        """Of the format."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    @property
    def data_offset(self) -> int:
        """Bytes before the tensors' data."""

    def tensor(self, name: str) -> Shaped[np.ndarray, "bytes"]:
        """The bytes of a tensor as they are in the file, not copied; call it within `reading`."""


def open_gguf(path: str | Path) -> GgufFile:
    """Map a GGUF file and read its header.

    Raises:
        MissingExtra: The engine was not built.
        ModelNotFound: There is no such file, or it cannot be opened.
        ModelCorrupt: It is damaged, or a value that tells the model or its tokenizer is of a wrong
            type.
        UnsupportedModel: It is of a version, or for machines, that are not read.
        OutOfMemory: There is no room to map it.
    """
    path = Path(path).expanduser()
    native = require_native()
    with reading(path):
        file: GgufFile = native.Gguf(path)
    for kind, keys in EXPECTED.items():
        for key in keys:
            if key in file.metadata and not _is(kind, file.metadata[key]):
                raise corrupt(path, f"the value of {key} is not {kind}")
    return file


def _is(kind: str, value: Any) -> bool:
    match kind:
        case "a string":
            return isinstance(value, str)
        case "an array of strings":
            return isinstance(value, list) and (not value or isinstance(value[0], str))
        case "an array of numbers":
            return isinstance(value, np.ndarray) and value.dtype.kind in "iuf"
    return isinstance(value, int) and not isinstance(value, bool)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the native parser says of the file at `path` into this package's errors.

    Raises:
        ModelNotFound: The file is not there, or cannot be opened.
        ModelCorrupt: It is damaged, or a tensor is missing.
        UnsupportedModel: It, or a tensor that was asked for, is of a kind that is not read.
        OutOfMemory: There is no room to map it.
    """
    native = require_native()
    try:
        yield
    except native.GgufUnsupported as error:
        raise UnsupportedModel(
            f"{path} cannot be read: {error}",
            why="what is read are little-endian GGUF files of versions 2 and 3, with weights in "
            + ", ".join(native.TENSOR_TYPES),
            remedy="convert or quantise the model again, or run it with --backend torch",
        ) from error
    except native.GgufError as error:
        raise corrupt(path, str(error)) from error
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise OutOfMemory(
                f"{path} cannot be mapped into memory",
                why="the system has no room for a file of that size",
                remedy="choose a smaller model, or raise the limit on address space (ulimit -v)",
            ) from error
        raise ModelNotFound(
            f"{path} cannot be opened: {os.strerror(error.errno or 0)}",
            why="a model is read from a file that this user may read",
            remedy="check the path, or name a model of the catalogue or the hub",
        ) from error
