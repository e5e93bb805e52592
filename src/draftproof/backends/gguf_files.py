"""GGUF files read once.

To load a model, transformers builds `gguf.GGUFReader` for the configuration, for the weights and
for the tokenizer, and the table of tensor names for every module. The reader goes through each
token of the vocabulary in slices of a memory map, which are slow to make. While a model is loaded,
both are made once, and the reader slices a plain array over the same memory.

transformers looks both names up in `gguf` when it needs them. Should it come to do otherwise, it
gets the originals: the same model, later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

_TURN = threading.RLock()  # what is replaced is global: other threads wait


@contextmanager
def read_once() -> Iterator[None]:
    """Share readers and tables of names until the end; nested uses share the outermost one's."""
    import gguf

    replacements = {"GGUFReader": _fast_reader, "get_tensor_name_map": _as_it_is}
    with _TURN:
        # What `cache` wraps is here already in a nested use.
        originals = {
            name: getattr(gguf, name)
            for name in replacements
            if hasattr(gguf, name) and not hasattr(getattr(gguf, name), "cache_info")
        }
        for name, original in originals.items():
            setattr(gguf, name, cache(replacements[name](original)))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(gguf, name, original)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _fast_reader(reader: Any) -> Any:
    """The reader with its memory map seen as a plain array, which is quicker to slice."""

    class Reader(reader):  # type: ignore[misc]  # gguf is untyped
        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, value: Any) -> None:
            self._data = np.asarray(value)

    return Reader
