"""A smaller model as the drafter (section 2.1 of Leviathan et al. 2023).

Its cache holds committed tokens only between rounds: what the target rejected is rewound as soon as
the verdict is known.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from draftproof.core import (
    Dense,
    Draft,
    Float32,
    Law,
    LogitRow,
    PointMass,
    Prompt,
    Verdict,
    shared_length,
)
from draftproof.drafters.candidates import Certain, Several, likeliest, without
from draftproof.drafters.growth import Growth
from draftproof.drafters.head import Columns, Head
from draftproof.drafters.unguided import UNGUIDED
from draftproof.errors import BadLogits, InvalidSetting
from draftproof.ports import Guide, Model, Standardise, session_over
from draftproof.rng import Chooser, Stream

_LEAVES = 2  # beside a token of the trunk, at most


class DraftModel:
    """Drafts by a model that shares the target's tokenizer.

    The rows of the two output heads may differ in number (padding): the draft's laws are over the
    target's vocabulary, with zero where the draft has no row or the tokenizer no token.

    Args:
        model: The draft model.
        vocab_size: Rows of the *target's* output head.
        allowed: The ids that both tokenizers know: a number (all ids below it) or the ids
            themselves. No other id is drafted. By default every id that both heads have.
        head: Ids below it are drafted, and those of the request's text, where the model can leave
            out the others (`ports.Narrowing`); None for all. See `head`.

    Raises:
        InvalidSetting: `allowed` leaves no id that both heads have.
    """

    def __init__(
        self,
        model: Model,
        vocab_size: int,
        allowed: int | Collection[int] | None = None,
        head: int | None = None,
    ) -> None:
        self.model: Model = model
        self.vocab_size = vocab_size
        self.head = head
        rows = min(model.vocab_size, vocab_size)
        self._usable: Columns
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
        """Open a session; the first draft reads the prompt.

        Raises:
            PromptTooLong: The prompt does not fit in the draft's context.
        """
        seen: tuple[int, ...] = ()
        if isinstance(prompt, tuple):
            seen = prompt = tuple(map(self.readable, prompt))
        head = Head(self.model, self._usable, self.head, seen)
        return ModelProposer(self, head, prompt, standardise)

    def readable(self, token: int) -> int:
        """The token as the draft reads it: its own last id stands for ids that it lacks.

        Only a padded head makes such ids, and what the draft reads cannot change the output.
        """
        return min(token, self.model.vocab_size - 1)

    def nowhere(self) -> LogitRow:
        """Logits over the target's vocabulary by which nothing may be drafted: all -inf."""
        return np.full(self.vocab_size, -np.inf, dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What the draft says of the next token: its law, and how sure it is.

    `row` holds the logits, by the head's columns.
    """

    law: Law
    confidence: float
    row: Float32[np.ndarray, "columns"]


class ModelProposer:
    """One request's session in the draft model. `length` counts its cached tokens.

    Args:
        drafter: Whose it is.
        head: What is computed of the model's output head.
        prompt: The request's prompt.
        standardise: As in `Drafter.begin`.
    """

    def __init__(
        self,
        drafter: DraftModel,
        head: Head,
        prompt: Prompt,
        standardise: Standardise,
    ) -> None:
        self._drafter = drafter
        self._head = head
        self._standardise = standardise
        self._session = session_over(drafter.model, prompt)
        self._prefix = self._session.prefix
        self._scored: list[int] = []  # the cached tokens behind the prefix
        self._committed = 0  # output tokens when the last draft began
        self._seen = 0  # of these, how many the head was told of
        self._wide = drafter.nowhere()  # written anew for each token; a law keeps none of it
        self.reading_seconds = 0.0
        self.confidence = 0.0  # at the place of the trunk's last token

    @property
    def length(self) -> int:
        """Tokens in the draft's cache, prefix included."""
        return self._session.length

    @property
    def unread(self) -> int:
        """Tokens of the prompt that are still to be read, its last one apart."""
        return max(len(self._prefix) - 1 - self._session.length, 0)

    def draft(self, output: Sequence[int], limit: int, stream: Chooser) -> Draft:
        """Score what is new, then draw up to `limit` tokens, one pass each.

        Fewer come back where the draft's context ends, or where the request's bans leave the
        draft's vocabulary nothing.

        Raises:
            BadLogits: The draft returned NaN or infinity.
        """
        return self.follow(output, limit, stream, UNGUIDED)

    def follow(self, output: Sequence[int], limit: int, stream: Chooser, guide: Guide) -> Draft:
        """As `draft`, while `guide` finds another token worth its pass.

        A token's confidence is the draft's largest probability there, before sampling settings.
        Where the guide may branch, likely tokens beside a drafted one become leaves: they cost no
        pass of the draft.
        """
        self.start(output)
        growth = Growth(output, self.several(stream, guide))
        while growth.depth < limit and self.grow(growth, stream, guide):
            pass
        return growth.draft()

    def several(self, stream: Chooser, guide: Guide) -> bool:
        """Whether this round's draft may have candidates beside a token that is drawn."""
        return guide.several and isinstance(stream, Stream)

    def compared(self, growth: Growth, stream: Chooser, guide: Guide) -> bool:
        """Whether any token may stand beside the drafted ones: the target's own choice decides."""
        return guide.branching and (growth.certain or not isinstance(stream, Stream))

    def grow(
        self, growth: Growth, stream: Chooser, guide: Guide, rival: Certain | None = None
    ) -> bool:
        """Draft the trunk's next token, and likely ones beside it, where `guide` values them.

        Args:
            growth: The draft so far.
            stream: Makes the choices.
            guide: Weighs them.
            rival: Another drafter's token for the place. Where drafts are drawn it can only stand
                beside the model's if that is drawn from the other ids.

        Returns:
            Whether the trunk has grown.
        """
        name = self._drafter.name
        after = growth.end
        if guide.value(name, after=after, reads=self.reads(growth)) <= 0:
            return False
        look = self._look(growth.context)
        if look is None:
            return False
        self.confidence = look.confidence
        if growth.several and isinstance(look.law, Dense):
            self._draw(growth, look.law, stream, guide, rival)
            return True
        token = stream.draft(growth.depth, look.law)
        guide.take(name, look.confidence, after=after)
        growth.extend(token, look.law, name)
        if self.compared(growth, stream, guide):
            self._branch(growth, look, after, guide)
        return True

    def _branch(self, growth: Growth, look: Look, after: int, guide: Guide) -> None:
        """Leaves beside a token that the target's own choice is compared with: the likeliest."""
        source = f"{self._drafter.name}, next best"
        drafted, law = growth.context[-1], look.law
        sure = look.confidence  # more than any leaf has
        if isinstance(law, PointMass) or law.prob(drafted) == law.probs.max():
            sure = 1 - sure
        if guide.value(source, sure, after=after) <= 0:
            return
        for token, sure in self._head.likely(look.row, _LEAVES + 1):
            if token == drafted or (isinstance(law, Dense) and law.prob(token) == 0):
                continue
            if guide.value(source, sure, after=after) <= 0:
                break
            guide.take(source, sure, after=after)
            growth.beside(token, PointMass(token), after, source)

    def _draw(
        self, growth: Growth, law: Dense, stream: Chooser, guide: Guide, rival: Certain | None
    ) -> None:
        """One or several candidates, one of them drawn, and the trunk behind the likeliest.

        What is chosen follows from the law and from what others would draft, never from the token
        that is drawn.
        """
        name, after = self._drafter.name, growth.end
        sets = [
            Several((), (name, self.confidence), law),
            *likeliest(law, _LEAVES, name, self.confidence),
        ]
        if rival is not None and rival.token not in [one.token for one in sets[-1].certain[:1]]:
            left = without(law, [rival.token])
            if left is not None:
                against = rival.against(self.confidence)
                sets.append(Several((against,), (f"{name}, beside", self.confidence), left))
        index, lead = guide.choose([one.named for one in sets], after)
        chosen = sets[index]
        candidates: list[tuple[int, Law]] = [
            (one.token, PointMass(one.token)) for one in chosen.certain
        ]
        candidates.append((stream.draft(growth.depth, chosen.left), chosen.left))
        for place in sorted(range(len(candidates)), key=lambda place: place != lead):
            (source, confidence), (token, drawn_from) = chosen.named[place], candidates[place]
            guide.take(source, confidence, after=after)
            if place == lead:
                growth.extend(token, drawn_from, source)
            else:
                growth.beside(token, drawn_from, after, source)

    def start(self, output: Sequence[int]) -> None:
        """Begin a draft behind `output`."""
        self._committed = len(output)

    def _look(self, context: Sequence[int]) -> Look | None:
        """A pass of the draft behind `context`: the output and the trunk so far.

        Returns:
            None where the draft's context ends or the request's bans leave it nothing.
        """
        limit = self._drafter.model.context_length
        if limit is not None and len(self._prefix) + len(context) > limit:
            return None
        self._read(context)
        self._head.see(context[self._seen : self._committed])
        self._seen = self._committed
        row = self._head.score(self._session, self._pending(context))
        self._scored.extend(context[len(self._scored) :])
        confidence = top_probability(row, self._drafter.name, self._session.length - 1)
        try:
            law = self._standardise.law(self._head.widen(row, self._wide), context)
        except InvalidSetting:  # the bans leave the draft nothing; the target may still go on
            return None
        return Look(law, confidence, row)

    def observe(self, verdict: Verdict) -> None:
        """Forget the drafted tokens that were rejected."""
        self._rewind(min(len(self._scored), self._committed + verdict.accepted))

    def close(self) -> None:
        """Free the cache."""
        self._session.close()

    def reads(self, growth: Growth) -> int:
        """Tokens that the pass for the trunk's next one reads, the prompt's reading apart."""
        if self.unread:
            return 1
        return max(len(growth.context) - len(self._scored), 1)

    def _read(self, context: Sequence[int]) -> None:
        """Score, once, all of the prompt and of what follows it but the last token."""
        if self.unread:
            started = perf_counter()
            missing = [self._drafter.readable(token) for token in context]
            *text, _ = *self._prefix[self._session.length :], *missing
            self._session.score(text, keep=0)
            self._scored = list(context[:-1])
            self.reading_seconds += perf_counter() - started

    def _pending(self, context: Sequence[int]) -> list[int]:
        """Rewind to what cache and context share, and return the tokens to score next."""
        shared = min(shared_length(self._scored, context), max(len(context) - 1, 0))
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


def top_probability(row: Float32[np.ndarray, "draft_vocab"], name: str, position: int) -> float:
    """The largest probability of a draft's softmax: how sure it is, before sampling settings.

    Args:
        row: Its logits.
        name: What messages call it.
        position: Of the last token that they were computed from.

    Raises:
        BadLogits: There is NaN or infinity.
    """
    if not np.isfinite(row).all():
        raise BadLogits(
            f"{name} returned NaN or infinity at position {position}",
            why="no law over tokens follows from such logits",
            remedy="load the draft in a wider dtype (float32), or check its weights",
        )
    return 1 / float(np.exp(row - row.max()).sum())
