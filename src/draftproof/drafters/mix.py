"""Two drafters in one draft: what costs nothing where it is sure, a model where it is not.

Each token comes from the one that is worth more at its place: the next token of a match in the text
(`suffix`), which is free and tells its confidence beforehand, or the model's, which is paid for
before anything is known of it. So a model's first tokens may lead into a match, a match may end in
a model's token, and where both have nothing to offer nothing is drafted. Where the target can score
a tree and the two differ, both may stand: the model's token, and beside it the match's with what
follows it there, which costs a row each and no pass.

Which one drafts a token depends on the text before it and on the past alone, never on the target's
answer; each token's law is its own drafter's, so any rule stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftproof.core import Draft, PointMass, Prompt, Verdict
from draftproof.drafters.candidates import Certain
from draftproof.drafters.growth import Growth
from draftproof.drafters.model import ModelProposer
from draftproof.drafters.suffix import SuffixDrafter, SuffixProposer
from draftproof.drafters.unguided import UNGUIDED
from draftproof.ports import Drafter, Guide, Model, Reading, Standardise
from draftproof.rng import Chooser


class Growing(Reading, Protocol):
    """A proposer that drafts a token at a time, wherever the draft has got to."""

    def start(self, output: Sequence[int]) -> None:
        """Begin a draft behind `output`."""
        ...

    def reads(self, growth: Growth) -> int:
        """Tokens that the pass for the trunk's next one reads, the prompt's reading apart."""
        ...

    def grow(self, growth: Growth, stream: Chooser, guide: Guide) -> bool:
        """Extend the trunk by a token where `guide` values one.

        Returns:
            Whether the trunk has grown.
        """
        ...


class Costly(Drafter, Protocol):
    """A drafter that is paid for: by a model, whatever its tokenizer."""

    def begin(self, prompt: Prompt, standardise: Standardise) -> Growing:
        """As in `ports.Drafter`."""
        ...


class Mix:
    """Drafts by a model and by matches in the text.

    Args:
        model: The drafter that is paid for.
        suffix: The one that is not.
    """

    name = "mix"

    def __init__(self, model: Costly, suffix: SuffixDrafter) -> None:
        self.costly = model
        self.suffix = suffix

    @property
    def model(self) -> Model | None:
        """The draft model."""
        return self.costly.model

    def begin(self, prompt: Prompt, standardise: Standardise) -> MixProposer:
        """Index the prompt. The model reads it before its first token.

        Raises:
            PromptTooLong: The prompt does not fit in the draft's context.
        """
        return MixProposer(
            self, self.costly.begin(prompt, standardise), self.suffix.begin(prompt, standardise)
        )


class MixProposer:
    """One request's two proposers."""

    def __init__(self, drafter: Mix, model: Growing, suffix: SuffixProposer) -> None:
        self._drafter = drafter
        self._model = model
        self._suffix = suffix
        self._drafted = Draft()

    @property
    def reading_seconds(self) -> float:
        """What the model spent on reading the prompt."""
        return self._model.reading_seconds

    @property
    def unread(self) -> int:
        """Tokens of the prompt that the model has still to read."""
        return self._model.unread

    def draft(self, output: Sequence[int], limit: int, stream: Chooser) -> Draft:
        """Up to `limit` tokens: matches as far as they go, the model's elsewhere."""
        return self.follow(output, limit, stream, UNGUIDED)

    def follow(self, output: Sequence[int], limit: int, stream: Chooser, guide: Guide) -> Draft:
        """Each token from the drafter whose token `guide` values more, while it values one.

        Where the match has another token than the model, both may stand: the match then goes on in
        a branch of its own.
        """
        self._model.start(output)
        by_model, by_match = self._drafter.costly.name, self._drafter.suffix.name
        model = self._model if isinstance(self._model, ModelProposer) else None
        growth = Growth(output, model is not None and model.several(stream, guide))
        while growth.depth < limit:
            after, trunk = growth.end, growth.trunk
            match = self._suffix.peek(output, trunk)
            free = 0.0
            if match is not None:
                free = guide.value(by_match, match[1], after=after)
            reads = self._model.reads(growth)
            if guide.value(by_model, after=after, reads=reads) > max(free, 0.0):
                if model is None or match is None:
                    grown = self._model.grow(growth, stream, guide)
                else:
                    rival = Certain(match[0], f"{by_match}, beside", match[1])
                    grown = model.grow(growth, stream, guide, rival)
                    if grown and (growth.several or model.compared(growth, stream, guide)):
                        self._branch(growth, [*trunk, match[0]], after, rival, limit, guide)
                if grown:
                    continue
            if match is None or free <= 0:
                break
            guide.take(by_match, match[1], after=after)
            growth.extend(match[0], PointMass(match[0]), by_match)
        self._drafted = growth.draft()
        return self._drafted

    def _branch(
        self,
        growth: Growth,
        path: list[int],
        after: int,
        rival: Certain,
        limit: int,
        guide: Guide,
    ) -> None:
        """The match in a branch beside the model's token, as far as `guide` values it.

        Args:
            growth: The draft so far.
            path: The trunk before the branch, and the match's first token.
            after: What that token follows.
            rival: That token.
            limit: Most tokens on a path.
            guide: As in `follow`.
        """
        assert isinstance(self._model, ModelProposer)
        by_match = self._drafter.suffix.name
        output = growth.context[: len(growth.context) - growth.depth]
        node = growth.child(after, rival.token)
        if node is None and not growth.several:
            against = rival.against(self._model.confidence)
            if guide.value(against.source, against.confidence, after=after) > 0:
                guide.take(against.source, against.confidence, after=after)
                node = growth.beside(rival.token, PointMass(rival.token), after, rival.source)
        if node is None or node == growth.end:  # not worth it, or the model says the same
            return
        while len(path) < limit:
            match = self._suffix.peek(output, path)
            if match is None or guide.value(by_match, match[1], after=node) <= 0:
                return
            guide.take(by_match, match[1], after=node)
            node = growth.beside(match[0], PointMass(match[0]), node, by_match)
            path.append(match[0])

    def observe(self, verdict: Verdict) -> None:
        """Tell both."""
        self._model.observe(verdict)
        self._suffix.remember(self._drafted, verdict)

    def close(self) -> None:
        """Free the cache and the index."""
        self._model.close()
        self._suffix.close()
