"""A model that remembers: repeated prefixes cost no passes.

A row of logits is stored the first time that its prefix is scored and comes from the store from
then on. So the law at a prefix is one fixed row, also in low precision, where passes over different
numbers of tokens round differently. A `score` with something new in it makes one pass.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from draftproof.core import Int64, LogitRow, Logits, Prompt, shared_length
from draftproof.ports import Model, Narrowing, Pass, Session

STORE_BYTES = 2**28
FEWEST_ROWS = 64


@dataclass(slots=True)
class Inner:
    """The one real session of a prompt, moved from prefix to prefix, and what it has scored."""

    session: Session
    tokens: list[int] = field(default_factory=list)


class MemoModel:
    """A model with a bounded store of logits by prefix, for many short runs of a few prompts.

    Args:
        model: The model behind it.
        capacity: Most rows in the store, the least recently used leaving first; by default what
            fits in 256 MiB.
    """

    def __init__(self, model: Model, capacity: int | None = None) -> None:
        self.name = model.name
        self.vocab_size = model.vocab_size
        self.context_length = model.context_length
        self.eos = model.eos
        self.banned = model.banned
        self.banned_first = model.banned_first
        self.weight_bytes = model.weight_bytes
        self.cache_bytes_per_token = model.cache_bytes_per_token
        self.passes = 0
        self._model = model
        self._capacity = capacity or max(FEWEST_ROWS, STORE_BYTES // (4 * model.vocab_size))
        self._rows: OrderedDict[Hashable, LogitRow] = OrderedDict()
        self._inner: dict[Hashable, Inner] = {}
        self._columns: Int64[np.ndarray, "rows"] | None = None  # of a narrowed one

    def open(self, prompt: Prompt) -> MemoSession:
        """A session over the prompt's one real session, which has read the prompt by then."""
        key = prompt if isinstance(prompt, tuple) else prompt.tobytes()
        if key not in self._inner:
            session = self._model.open(prompt)
            read = session.prefix[:-1]
            if read:
                session.score(read, keep=0)
            self._inner[key] = Inner(session, list(read))
        return MemoSession(self, key, self._inner[key].session.prefix)

    def narrow(self, ids: Sequence[int]) -> tuple[MemoModel, Int64[np.ndarray, "rows"]]:
        """As `ports.Narrowing`: the columns that the model behind it would compute."""
        columns = np.unique(np.asarray(ids, np.int64))
        if isinstance(self._model, Narrowing):
            _, columns = self._model.narrow(ids)
        narrowed = copy.copy(self)
        narrowed._columns = columns
        return narrowed, columns

    def score_together(self, passes: Sequence[Pass]) -> list[Logits]:
        """As `ports.Batching`, one session after another; chains only."""
        rows = (part.session.score(part.tokens, part.keep) for part in passes)
        return [row if self._columns is None else row[:, self._columns] for row in rows]

    def close(self) -> None:
        """Free the caches of the real sessions; the store stays."""
        for inner in self._inner.values():
            inner.session.close()
        self._inner.clear()

    def rows(self, key: Hashable, context: Sequence[int], keep: int) -> Logits:
        """The logits after each of the last `keep` (at least 1) tokens of `context`."""
        ends = range(len(context) - keep + 1, len(context) + 1)
        addresses = [(key, tuple(context[:end])) for end in ends]
        found = [self._rows.get(address) for address in addresses]
        missing = next((i for i, row in enumerate(found) if row is None), None)
        if missing is not None:
            fresh = self._pass(self._inner[key], context, keep - missing)
            for i in range(missing, keep):
                if found[i] is None:
                    found[i] = fresh[i - missing].copy()
        rows = [row for row in found if row is not None]
        for address, row in zip(addresses, rows, strict=True):
            self._rows[address] = row
            self._rows.move_to_end(address)
        while len(self._rows) > max(self._capacity, keep):
            self._rows.popitem(last=False)
        return np.stack(rows)

    def _pass(self, inner: Inner, context: Sequence[int], keep: int) -> Logits:
        """Score the end of `context` behind what the real session shares with it."""
        shared = min(shared_length(inner.tokens, context), len(context) - keep)
        inner.session.rewind(shared)
        del inner.tokens[shared:]
        logits = inner.session.score(context[shared:], keep=keep)
        inner.tokens.extend(context[shared:])
        self.passes += 1
        return logits


class MemoSession:
    """One sequence in a `MemoModel`: a list of tokens."""

    def __init__(self, model: MemoModel, key: Hashable, prefix: tuple[int, ...]) -> None:
        self.prefix = prefix
        self._model = model
        self._key = key
        self._tokens: list[int] = []
        self._nodes: list[tuple[int, int]] = []  # of the open tree: token and parent

    @property
    def length(self) -> int:
        """Tokens that count as cached."""
        return len(self._tokens)

    def score(self, tokens: Sequence[int], keep: int) -> Logits:
        """As in `ports.Session`; a pass is made only where a row is new."""
        self._tokens.extend(tokens)
        if keep == 0:
            return np.empty((0, self._model.vocab_size), dtype=np.float32)
        return self._model.rows(self._key, self._tokens, keep)

    def score_tree(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """As in `ports.Branching`; each path is a chain of its own."""
        rows = []
        for node in zip(tokens, parents, strict=True):
            self._nodes.append(node)
            path = self._path(len(self._nodes) - 1)
            rows.append(self._model.rows(self._key, [*self._tokens, *path], 1)[0])
        return np.stack(rows)

    def keep(self, path: Sequence[int]) -> None:
        """As in `ports.Branching`."""
        self._tokens.extend(self._nodes[node][0] for node in path)
        self._nodes = []

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        del self._tokens[length:]
        self._nodes = []

    def close(self) -> None:
        """Nothing to free: the prompt's session serves the next run."""

    def _path(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            token, node = self._nodes[node]
            path.append(token)
        return path[::-1]
