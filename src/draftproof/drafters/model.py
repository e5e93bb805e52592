"""A smaller model as the drafter (section 2.1 of Leviathan et al. 2023).

Its cache holds committed tokens only between rounds: what the target rejected is rewound as soon as
the verdict is known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from draftproof.core import Draft, Float32, Law, LogitRow, Prompt, Verdict
from draftproof.errors import BadLogits, InvalidSetting
from draftproof.ports import Model, Standardise
from draftproof.rng import Chooser


class DraftModel:
    """Drafts by a model that shares the target's tokenizer.

    The rows of the two output heads may differ in number (padding): the draft's laws are over the
    target's vocabulary, with zero where the draft has no row or the tokenizer no token.

    Args:
        model: The draft model.
        vocab_size: Rows of the *target's* output head.
        allowed: The ids that both tokenizers know: a number (all ids below it) or the ids
            themselves. No other id is drafted. By default every id that both heads have.

    Raises:
        InvalidSetting: `allowed` leaves no id that both heads have.
    """

    def __init__(
        self, model: Model, vocab_size: int, allowed: int | Collection[int] | None = None
    ) -> None:
        self.model: Model = model
        self.vocab_size = vocab_size
        rows = min(model.vocab_size, vocab_size)
        self._usable: slice | np.ndarray
        if allowed is None or isinstance(allowed, int):
            count = rows if allowed is None else min(allowed, rows)
            self._usable = slice(0, count)
        else:
            self._usable = np.array(sorted(i for i in allowed if 0 <= i < rows), dtype=np.int64)
            count = len(self._usable)
        if count <= 0:
            raise InvalidSetting(
                f"target and draft {model.name} have no token id in common",
                why="a draft is made of ids that both know",
                remedy="choose a draft with the target's tokenizer",
            )

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    def begin(self, prompt: Prompt, standardise: Standardise) -> ModelProposer:
        """Open a session and score all of the prompt but its last token.

        Raises:
            PromptTooLong: The prompt does not fit in the draft's context.
        """
        if isinstance(prompt, tuple):
            prompt = tuple(map(self.readable, prompt))
        return ModelProposer(self, prompt, standardise)

    def readable(self, token: int) -> int:
        """The token as the draft reads it: its own last id stands for ids that it lacks.

        Only a padded head makes such ids, and what the draft reads cannot change the output.
        """
        return min(token, self.model.vocab_size - 1)

    def widen(self, row: Float32[np.ndarray, "draft_vocab"], wide: LogitRow) -> LogitRow:
        """The draft's logits over the target's vocabulary, in `wide`, which was `nowhere`."""
        wide[self._usable] = row[self._usable]
        return wide

    def nowhere(self) -> LogitRow:
        """Logits over the target's vocabulary by which nothing may be drafted: all -inf."""
        return np.full(self.vocab_size, -np.inf, dtype=np.float32)


class ModelProposer:
    """One request's session in the draft model. `length` counts its cached tokens."""

    def __init__(self, drafter: DraftModel, prompt: Prompt, standardise: Standardise) -> None:
        self._drafter = drafter
        self._standardise = standardise
        self._session = drafter.model.open(prompt)
        self._prefix = self._session.prefix
        self._scored: list[int] = []  # the cached tokens behind the prefix
        self._committed = 0  # output tokens when the last draft began
        self._wide = drafter.nowhere()  # written anew for each token; a law keeps none of it
        if len(self._prefix) > 1:
            try:
                self._session.score(self._prefix[:-1], keep=0)
            except BaseException:
                self._session.close()
                raise

    @property
    def length(self) -> int:
        """Tokens in the draft's cache, prefix included."""
        return self._session.length

    def draft(self, output: Sequence[int], limit: int, stream: Chooser) -> Draft:
        """Score what is new, then draw up to `limit` tokens, one pass each.

        Fewer come back where the draft's context ends, or where the request's bans leave the
        draft's vocabulary nothing.

        Raises:
            BadLogits: The draft returned NaN or infinity.
        """
        self._committed = len(output)
        context = list(output)
        laws: list[Law] = []
        for index in range(self._room(len(output), limit)):
            # Behind the first pass of a draft, only the token just drawn is new.
            pending = [self._drafter.readable(context[-1])] if index else self._pending(context)
            law = self._next_law(pending, context)
            if law is None:
                break
            laws.append(law)
            context.append(stream.draft(index, law))
        return Draft(tuple(context[len(output) :]), tuple(laws))

    def observe(self, verdict: Verdict) -> None:
        """Forget the drafted tokens that were rejected."""
        self._rewind(min(len(self._scored), self._committed + verdict.accepted))

    def close(self) -> None:
        """Free the cache."""
        self._session.close()

    def _room(self, output: int, limit: int) -> int:
        """How many tokens to draft: all but the last must fit in the draft's context."""
        context = self._drafter.model.context_length
        if context is None:
            return limit
        return min(limit, context - len(self._prefix) - output + 1)

    def _pending(self, context: Sequence[int]) -> list[int]:
        """Rewind to what cache and context share, and return the tokens to score next."""
        shared = min(len(self._scored), max(len(context) - 1, 0))
        if self._scored[:shared] != list(context[:shared]):
            pairs = zip(self._scored, context, strict=False)
            shared = next(i for i, (have, want) in enumerate(pairs) if have != want)
        self._rewind(shared)
        if not context:
            self._session.rewind(len(self._prefix) - 1)
            return [self._prefix[-1]]
        missing = [self._drafter.readable(token) for token in context[shared:]]
        return [*self._prefix[self._session.length :], *missing]

    def _rewind(self, scored: int) -> None:
        """Keep the prefix and at most `scored` tokens of the output."""
        if scored < len(self._scored):
            del self._scored[scored:]
            self._session.rewind(len(self._prefix) + scored)

    def _next_law(self, pending: Sequence[int], context: Sequence[int]) -> Law | None:
        """The law after `context`, of which `pending` is not scored yet.

        Returns:
            None where the request's bans leave no token.
        """
        (row,) = self._session.score(pending, keep=1)
        self._scored.extend(context[len(self._scored) :])
        if not np.isfinite(row).all():
            raise BadLogits(
                f"{self._drafter.name} returned NaN or infinity at position "
                f"{self._session.length - 1}",
                why="no law over tokens follows from such logits",
                remedy="load the draft in a wider dtype (float32), or check its weights",
            )
        try:
            return self._standardise.law(self._drafter.widen(row, self._wide), context)
        except InvalidSetting:  # the bans leave the draft nothing; the target may still go on
            return None
