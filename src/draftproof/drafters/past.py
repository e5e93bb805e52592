"""Outputs of earlier requests, to copy from: bounded, oldest out first, and saved to a file.

An automaton cannot forget, so there are two. The one that is searched takes every output; once it
is half full, a younger one takes them too, and becomes the one that is searched when the first is
full. What is found are the latest outputs: full, at least half the capacity less one output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import RLock

import numpy as np

from draftproof.core import Shaped
from draftproof.drafters.archive import check_vocabulary, open_arrays, save_arrays
from draftproof.drafters.automaton import END, Automaton
from draftproof.errors import InvalidSetting

_VERSION = 1
_WHAT = "store of past outputs"


class PastOutputs:
    """A store that requests share, in any number of threads.

    Args:
        vocab_size: Rows of the target's output head.
        capacity: Most tokens, and one for the end of each output; at least 4. A token takes about
            200 bytes in each automaton, and 10 microseconds to add.
        max_match: Most tokens of a context.

    Raises:
        InvalidSetting: A value is out of range.
    """

    def __init__(self, vocab_size: int, capacity: int = 65_536, max_match: int = 32) -> None:
        least = {
            "vocab_size": (vocab_size, 1),
            "capacity": (capacity, 4),
            "max_match": (max_match, 1),
        }
        for setting, (value, minimum) in least.items():
            if value < minimum:
                raise InvalidSetting(
                    f"{setting} is {value}",
                    why="the store holds token ids, and finds them by what was before them",
                    remedy=f"set {setting} to {minimum} or more",
                )
        self.vocab_size = vocab_size
        self.capacity = capacity
        self.max_match = max_match
        self.lock = RLock()  # held while `index` is read or written
        self._index = Automaton(max_match)
        self._younger = Automaton(max_match)
        self._torn = False

    def __len__(self) -> int:
        """Tokens held, the ends of outputs included: never more than the capacity."""
        return len(self.index)

    @property
    def index(self) -> Automaton:
        """What is searched. Another object, or a longer one, after an `add`; hold the lock."""
        with self.lock:
            if self._torn:
                self._rebuild()
            return self._index

    @property
    def outputs(self) -> list[tuple[int, ...]]:
        """The outputs held, oldest first."""
        with self.lock:
            return [tuple(output) for output in _split(self.index.text)]

    def add(self, output: Sequence[int]) -> None:
        """Add a finished output: of one longer than half the capacity, its end.

        Raises:
            InvalidSetting: A token lies outside the vocabulary.
        """
        foreign = [token for token in output if not 0 <= token < self.vocab_size]
        if foreign:
            raise InvalidSetting(
                f"an output holds token {foreign[0]}, but the vocabulary has {self.vocab_size}",
                why="what is stored is proposed again",
                remedy="keep one store for each target",
            )
        if not output:
            return
        with self.lock:
            index = self.index
            self._torn = True  # an interrupt from here on may leave an automaton half changed
            output = output[-(self.capacity // 2 - 1) :]
            if len(index) + len(output) + 1 > self.capacity:
                self._index, self._younger = self._younger, Automaton(self.max_match)
            _put(output, self._index, self._younger, self.capacity)
            self._torn = False

    def save(self, path: Path) -> None:
        """Write the outputs to a file, whole or not at all."""
        outputs = self.outputs
        save_arrays(
            path,
            {
                "version": np.array([_VERSION, self.vocab_size], dtype=np.int64),
                "lengths": np.array([len(output) for output in outputs], dtype=np.int64),
                "tokens": np.array([t for output in outputs for t in output], dtype=np.int64),
            },
        )

    @classmethod
    def load(
        cls,
        path: Path,
        vocab_size: int | None = None,
        capacity: int = 65_536,
        max_match: int = 32,
    ) -> PastOutputs:
        """Read what `save` wrote: its latest outputs, where the capacity is smaller.

        Args:
            path: The file.
            vocab_size: The target's, where it is to be compared with the store's.
            capacity: See the class.
            max_match: See the class.

        Raises:
            ModelNotFound: There is no such file.
            ModelCorrupt: The file is damaged, or not one of these.
            TokenizerMismatch: The store was made for another vocabulary.
            InvalidSetting: A value is out of range.
        """
        with open_arrays(path, _WHAT, "save one with PastOutputs.save(path)") as arrays:
            version, made_for = (int(value) for value in arrays["version"])
            if version != _VERSION:
                raise ValueError(f"version {version}, expected {_VERSION}")
            lengths, tokens = arrays["lengths"], arrays["tokens"]
            _check(lengths, tokens, made_for)
        check_vocabulary(path, made_for, vocab_size)
        store = cls(made_for, capacity, max_match)
        ends = np.cumsum(lengths).tolist()
        ids = tokens.tolist()
        for length, end in zip(lengths.tolist(), ends, strict=True):
            store.add(ids[end - length : end])
        return store

    def _rebuild(self) -> None:
        """Index the whole outputs anew."""
        index, younger = Automaton(self.max_match), Automaton(self.max_match)
        for output in _split(self._index.text):
            _put(output, index, younger, self.capacity)
        self._index, self._younger = index, younger
        self._torn = False


def _put(output: Sequence[int], index: Automaton, younger: Automaton, capacity: int) -> None:
    """Index an output for which there is room."""
    young = 2 * len(index) >= capacity
    for automaton in (index, younger) if young else (index,):
        automaton.extend(output)
        automaton.end()


def _split(text: Sequence[int]) -> Iterator[Sequence[int]]:
    """The outputs in a text, each up to its end; one without an end is left out."""
    start = 0
    for at, token in enumerate(text):
        if token == END:
            yield text[start:at]
            start = at + 1


def _check(
    lengths: Shaped[np.ndarray, "..."], tokens: Shaped[np.ndarray, "..."], vocab_size: int
) -> None:
    """Refuse arrays that `save` would not have written."""
    if any(part.dtype != np.int64 or part.ndim != 1 for part in (lengths, tokens)):
        raise ValueError("tokens and lengths are rows of integers")
    if vocab_size < 1 or (lengths < 1).any() or lengths.sum() != len(tokens):
        raise ValueError("a vocabulary or a length is out of range")
    if ((tokens < 0) | (tokens >= vocab_size)).any():
        raise ValueError("a token is out of range")
