"""A session of a draft model that follows a text, whatever becomes of the text's end."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from draftproof.core import LogitRow, Logits, shared_length
from draftproof.errors import UnsupportedModel
from draftproof.ports import Model, Session


class Cache:
    """Logits after a sequence of tokens, the session rewound no further than it must be.

    Args:
        model: A decoder-only model.
        tokens: The text's first tokens, which the first call scores; `reading_seconds` says how
            long it took.

    Raises:
        PromptTooLong: They do not fit in the context.
        UnsupportedModel: The model is an encoder-decoder.
    """

    def __init__(self, model: Model, tokens: Sequence[int]) -> None:
        self._model = model
        self._session: Session | None = None
        self.tokens: list[int] = []  # what is cached
        self.reading_seconds = 0.0
        if not tokens:
            return
        probe = model.open(tuple(tokens))
        continues = probe.prefix == tuple(tokens)
        probe.close()
        if not continues:
            raise UnsupportedModel(
                f"the draft {model.name} is an encoder-decoder model with another tokenizer",
                why="only a decoder-only draft continues a text in tokens of its own",
                remedy="choose a decoder-only draft, or draft without a model: --drafter lookup",
            )

    def row(self, tokens: Sequence[int]) -> LogitRow | None:
        """The logits after `tokens`, at least one; None where the context ends."""
        limit = self._model.context_length
        if limit is not None and len(tokens) > limit:
            return None
        if not self.tokens and len(tokens) > 1:
            started = perf_counter()
            self._score(tokens[:-1], keep=0)
            self.reading_seconds += perf_counter() - started
        row: LogitRow = self._score(tokens, keep=1)[0]
        return row

    def close(self) -> None:
        """Free the cache."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def _score(self, tokens: Sequence[int], keep: int) -> Logits:
        shared = min(shared_length(self.tokens, tokens), len(tokens) - 1)
        if self._session is None or self._session.prefix != (tokens[0],):
            # Only the first token is the session's own prefix: a prompt's end may change.
            self.close()
            self._session = self._model.open((tokens[0],))
        elif shared < len(self.tokens):
            self._session.rewind(shared)
        del self.tokens[shared:]
        logits = self._session.score(tokens[shared:], keep)
        self.tokens.extend(tokens[shared:])
        return logits
