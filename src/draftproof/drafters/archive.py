"""Arrays of token ids on the disk: written whole or not at all, and refused where damaged."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.errors import ModelCorrupt, ModelNotFound, TokenizerMismatch
from draftproof.files import replacing

# What np.load and a look at its arrays raise on files that `save_arrays` did not write.
_DAMAGE = (
    AttributeError,
    EOFError,
    KeyError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays to a file, whole or not at all."""
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)


@contextmanager
def open_arrays(path: Path, what: str, remedy: str) -> Iterator[Mapping[str, Any]]:
    """The arrays of a file, while the caller reads them and checks what they hold.

    Args:
        path: The file.
        what: What it should be, for messages.
        remedy: How to make one.

    Raises:
        ModelNotFound: There is no such file.
        ModelCorrupt: It is damaged, or the caller found it wrong.
    """
    if not path.is_file():
        raise ModelNotFound(
            f"no {what} at {path}", why="the drafter reads it from that file", remedy=remedy
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            yield arrays
    except _DAMAGE as error:
        raise ModelCorrupt(
            f"{path} is not a whole {what}",
            why=str(error) or type(error).__name__,
            remedy=remedy,
        ) from error


def check_vocabulary(path: Path, made_for: int, vocab_size: int | None) -> None:
    """Refuse token ids of another vocabulary; None compares nothing.

    Raises:
        TokenizerMismatch: As it says.
    """
    if vocab_size not in (None, made_for):
        raise TokenizerMismatch(
            f"{path} was made for a vocabulary of {made_for}, not {vocab_size}",
            why="its token ids mean other strings to this target",
            remedy="make it from texts encoded with the target's own tokenizer",
        )
