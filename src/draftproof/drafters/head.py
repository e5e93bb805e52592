"""Which part of a draft model's output head is computed: all, or the ids that are likely.

The head is a third of a small model's bytes, and most of its rows are hardly ever drafted.
Byte-pair vocabularies are in order of frequency, so the first ids are the frequent ones; to them
come those of the request's own text, and the end tokens. Every other id has probability zero in the
draft's law, which every rule allows: what is lost is acceptance where the target writes such an id,
and once it has, the id belongs to the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

import numpy as np

from draftproof.core import Float32, Int64, LogitRow
from draftproof.ports import Batching, Model, Narrowing, Pass, Session

Columns: TypeAlias = "slice | Int64[np.ndarray, 'columns']"
Row: TypeAlias = Float32[np.ndarray, "columns"]

_STRIDE = 16  # an id in so many brings its neighbours along; more ids cost nothing but time here
_GROWTH = 4  # new ids that are worth making the columns anew


class Head:
    """One request's columns.

    Args:
        model: The draft model.
        usable: The target's ids that may be drafted.
        first: Ids below it are computed; None for all.
        seen: Ids that are computed besides.
    """

    def __init__(
        self, model: Model, usable: Columns, first: int | None, seen: Iterable[int]
    ) -> None:
        self._whole = model
        self._usable = usable
        self._model: Model | None = None
        self._source = self._target = usable
        if first is None or not isinstance(model, Narrowing):
            return
        self._first = np.arange(0, min(first, model.vocab_size), _STRIDE)
        self._seen = {*seen, *model.eos}
        self._known = frozenset[int]()
        self._make()

    def see(self, tokens: Sequence[int]) -> None:
        """Take in tokens of the text that the target wrote."""
        if self._model is None:
            return
        new = {token for token in tokens if token not in self._known}
        self._seen |= new
        if len(self._seen) - self._made >= _GROWTH:
            self._make()

    def score(self, session: Session, tokens: Sequence[int]) -> Row:
        """Append `tokens` to a session of the model, and return the logits behind the last."""
        if self._model is None:
            (row,) = session.score(tokens, keep=1)
        else:
            part = Pass(session, tuple(tokens), 1)
            ((row,),) = cast("Batching", self._model).score_together([part])
        return cast("Row", row)

    def widen(self, row: Row, wide: LogitRow) -> LogitRow:
        """The row over the target's vocabulary, in `wide`, which was all -inf at first."""
        wide[self._target] = row[self._source]
        return wide

    def likely(self, row: Row, count: int) -> list[tuple[int, float]]:
        """The likeliest ids and their probabilities by the softmax, surest first."""
        logits = row[self._source]
        order = (
            np.argpartition(-logits, count - 1)[:count]
            if count < len(logits)
            else (np.arange(len(logits)))
        )
        order = order[np.argsort(-logits[order], kind="stable")]
        ids = order if isinstance(self._target, slice) else self._target[order]
        top = float(logits[order[0]])
        total = float(np.exp(logits - top).sum())
        chances = np.exp(logits[order] - top) / total
        return list(zip(ids.tolist(), chances.tolist(), strict=True))

    def _make(self) -> None:
        """Choose the columns anew; those of before stay among them."""
        ids = np.union1d(self._first, np.fromiter(self._seen, np.int64, len(self._seen)))
        assert isinstance(self._whole, Narrowing)
        self._model, columns = self._whole.narrow(ids.tolist())
        if isinstance(self._usable, slice):
            usable = columns < self._usable.stop
        else:
            usable = np.isin(columns, self._usable)
        self._source, self._target = np.flatnonzero(usable), columns[usable]
        self._known = frozenset(columns.tolist())
        self._made = len(self._seen)
