"""N-gram tables as the drafter: the longest context that was seen decides, down to none at all.

The law is the counted one, taken down the same road as any model's: log-counts are logits, so
temperature, top-p, penalties and bans of the request apply to it. Where the bans exclude all that
followed a context, the next shorter context decides.

What was counted comes from two places that add up: a table, made from texts or from a target's
output by `NGram.count` and never changed afterwards; and the request's own prompt and output, seen
by that request alone, so that no request depends on another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from draftproof.core import Draft, Law, LogitRow, Prompt, Shaped, Verdict
from draftproof.drafters.archive import check_vocabulary, open_arrays, save_arrays
from draftproof.errors import InvalidSetting
from draftproof.ports import Standardise
from draftproof.rng import Chooser

# How often each token followed a context.
Table: TypeAlias = "dict[tuple[int, ...], dict[int, int]]"

_VERSION = 1


class NGram:
    """Drafts from counts.

    Args:
        vocab_size: Rows of the target's output head.
        order: Tokens in the longest n-gram; 3 is a trigram.
        table: What `count` counted; empty by default, so that the request's own text is all.

    Raises:
        InvalidSetting: `order` or `vocab_size` is below 1.
    """

    name = "ngram"
    model = None

    def __init__(self, vocab_size: int, order: int = 3, table: Table | None = None) -> None:
        for setting, value in (("order", order), ("vocab_size", vocab_size)):
            if value < 1:
                raise InvalidSetting(
                    f"{setting} is {value}",
                    why="an n-gram has at least one token, of a vocabulary of at least one",
                    remedy=f"set {setting} to 1 or more",
                )
        self.vocab_size = vocab_size
        self.order = order
        self.table: Table = {} if table is None else table

    @classmethod
    def count(cls, texts: Iterable[Sequence[int]], vocab_size: int, order: int = 3) -> NGram:
        """Count the n-grams of texts, each a sequence of token ids.

        Raises:
            InvalidSetting: A token lies outside the vocabulary.
        """
        ngram = cls(vocab_size, order)
        for text in texts:
            foreign = [token for token in text if not 0 <= token < vocab_size]
            if foreign:
                raise InvalidSetting(
                    f"a text holds token {foreign[0]}, but the vocabulary has {vocab_size}",
                    why="an n-gram drafter proposes what it counted",
                    remedy="encode the texts with the target's own tokenizer",
                )
            _count(ngram.table, text, 0, order)
        return ngram

    def begin(self, prompt: Prompt, standardise: Standardise) -> NGramProposer:
        """Count the prompt. Speech features hold no tokens."""
        return NGramProposer(self, prompt if isinstance(prompt, tuple) else (), standardise)

    def save(self, path: Path) -> None:
        """Write the table to a file, whole or not at all."""
        arrays: dict[str, Any] = {
            "version": np.array([_VERSION, self.vocab_size, self.order], dtype=np.int64)
        }
        for n in range(self.order):
            rows = sorted(
                (*context, token, count)
                for context, followers in self.table.items()
                if len(context) == n
                for token, count in followers.items()
            )
            arrays[f"n{n + 1}"] = np.array(rows, dtype=np.int64).reshape(len(rows), n + 2)
        save_arrays(path, arrays)

    @classmethod
    def load(cls, path: Path, vocab_size: int | None = None) -> NGram:
        """Read a table that `save` wrote.

        Args:
            path: The file.
            vocab_size: The target's, where it is to be compared with the table's.

        Raises:
            ModelNotFound: There is no such file.
            ModelCorrupt: The file is damaged, or not one of these.
            TokenizerMismatch: The table was counted for another vocabulary.
        """
        remedy = "write one with NGram.count(...).save(path)"
        with open_arrays(path, "n-gram table", remedy) as arrays:
            version, counted, order = (int(value) for value in arrays["version"])
            if version != _VERSION:
                raise ValueError(f"version {version}, expected {_VERSION}")
            table: Table = {}
            for n in range(order):
                _read(table, arrays[f"n{n + 1}"], n, counted)
        check_vocabulary(path, counted, vocab_size)
        return cls(counted, order, table)


class NGramProposer:
    """One request's own counts beside the table."""

    def __init__(self, ngram: NGram, prompt: tuple[int, ...], standardise: Standardise) -> None:
        self._ngram = ngram
        self._standardise = standardise
        self._text = list(prompt)
        self._start = len(prompt)
        self._own: Table = {}
        _count(self._own, self._text, 0, ngram.order)

    def draft(self, output: Sequence[int], limit: int, stream: Chooser) -> Draft:
        """Up to `limit` tokens; none while nothing was counted. `output` extends the last one."""
        known = len(self._text)
        self._text.extend(output[known - self._start :])
        _count(self._own, self._text, known, self._ngram.order)
        context = list(output)
        recent = self._text[max(0, len(self._text) - self._ngram.order + 1) :]
        laws: list[Law] = []
        for index in range(limit):
            law = self._law(recent, context)
            if law is None:
                break
            laws.append(law)
            token = stream.draft(index, law)
            context.append(token)
            recent = [*recent, token][max(0, len(recent) + 2 - self._ngram.order) :]
        return Draft(tuple(context[len(output) :]), tuple(laws))

    def observe(self, verdict: Verdict) -> None:
        """Nothing to learn: the next output holds it all."""

    def close(self) -> None:
        """Free the counts."""
        self._own.clear()

    def _law(self, recent: Sequence[int], output: Sequence[int]) -> Law | None:
        """The law after the longest suffix of `recent` that was seen; None where none is left."""
        for start in range(len(recent) + 1):
            context = tuple(recent[start:])
            seen = [t[context] for t in (self._ngram.table, self._own) if context in t]
            if not seen:
                continue
            try:
                return self._standardise.law(self._logits(seen), output)
            except InvalidSetting:  # everything that followed this context is banned
                continue
        return None

    def _logits(self, seen: Sequence[dict[int, int]]) -> LogitRow:
        """The logarithm of the summed counts; -inf for what was never counted."""
        counts = np.zeros(self._ngram.vocab_size, dtype=np.float32)
        for followers in seen:
            counts[list(followers)] += np.fromiter(followers.values(), np.float32, len(followers))
        with np.errstate(divide="ignore"):
            logits: LogitRow = np.log(counts)
        return logits


def _count(table: Table, text: Sequence[int], start: int, order: int) -> None:
    """Count the n-grams that end at text position `start` or later."""
    for at in range(start, len(text)):
        token = int(text[at])
        for n in range(min(order, at + 1)):
            followers = table.setdefault(tuple(text[at - n : at]), {})
            followers[token] = followers.get(token, 0) + 1


def _read(table: Table, rows: Shaped[np.ndarray, "..."], n: int, vocab_size: int) -> None:
    """Put the saved (context of n tokens, token, count) rows into the table."""
    if rows.shape[1:] != (n + 2,):
        raise ValueError(f"{n + 1}-grams have {rows.shape[1:]} columns")
    tokens = rows[:, :-1]
    if rows.size and (tokens.min() < 0 or tokens.max() >= vocab_size or rows[:, -1].min() < 1):
        raise ValueError("a token or a count is out of range")
    for *context, token, count in rows.tolist():
        table.setdefault(tuple(context), {})[token] = count
