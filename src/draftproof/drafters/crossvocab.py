"""A draft model with another tokenizer (Timor et al., ICML 2025, arXiv 2502.05202).

The draft reads the text so far in its own tokens. What it reads changes no law of the target, so
that only acceptance depends on it. It drafts in one of two ways:

tokens (the paper's TLI)
    Its law is restricted to the tokens that both vocabularies have, renormalised and written in the
    target's ids: a law over the target's vocabulary like any other, for the rejection rules.
strings (the paper's SLEM)
    It chooses its own most probable tokens, of any kind, and their text is cut into the target's
    tokens. These are certain choices: exact wherever the target chooses for itself, which is what
    greedy and coupled decoding do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.core import Draft, LogitRow, PointMass, Prompt, Verdict
from draftproof.drafters.cache import Cache
from draftproof.drafters.growth import Growth
from draftproof.drafters.model import top_probability
from draftproof.drafters.unguided import UNGUIDED
from draftproof.errors import InvalidSetting, UnsupportedModel
from draftproof.ports import Guide, Model, Standardise, Tokenizer
from draftproof.rng import Chooser, Shared
from draftproof.text import Retokenizer, Spelling, common_tokens, continuation

PATIENCE = 2  # draft tokens that may be spent on each of the target's, where strings are drafted


class CrossVocab:
    """Drafts by a decoder-only model whose tokenizer is not the target's.

    Args:
        model: The draft model.
        tokenizer_draft: Its tokenizer.
        tokenizer_target: The target's.
        vocab_size_target: Rows of the target's output head.

    Raises:
        TokenizerMismatch: The vocabularies have no token in common.
    """

    def __init__(
        self,
        model: Model,
        tokenizer_draft: Tokenizer,
        tokenizer_target: Tokenizer,
        vocab_size_target: int,
    ) -> None:
        self.model: Model = model
        self.vocab_size = vocab_size_target
        self.target = Spelling(tokenizer_target)
        self.draft = Spelling(tokenizer_draft)
        rows = (vocab_size_target, model.vocab_size)
        self.to_draft = common_tokens(self.target, self.draft, rows)
        self.to_target = {own: common for common, own in self.to_draft.items()}
        # Where common tokens stand in either model's logits.
        self.columns = np.fromiter(self.to_draft.values(), np.int64, len(self.to_draft))
        self.common = np.fromiter(self.to_draft, np.int64, len(self.to_draft))

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    def begin(self, prompt: Prompt, standardise: Standardise) -> CrossProposer:
        """Put the prompt into the draft's tokens; the first draft scores them.

        Raises:
            PromptTooLong: They do not fit in the draft's context.
            UnsupportedModel: The prompt is no text, or the draft is an encoder-decoder model.
        """
        if not isinstance(prompt, tuple):
            raise UnsupportedModel(
                f"{self.name} drafts for another tokenizer, and the prompt is sound",
                why="it reads the prompt as text, in its own tokens",
                remedy="draft without a model: --drafter lookup",
            )
        return CrossProposer(self, prompt, standardise)

    def nowhere(self) -> LogitRow:
        """Logits over the target's vocabulary by which nothing may be drafted: all -inf."""
        return np.full(self.vocab_size, -np.inf, dtype=np.float32)

    def greedy(self, standardise: Standardise) -> bool:
        """Whether a request's laws are certain choices."""
        row = self.nowhere()
        row[self.common] = 1  # any law of theirs would do
        try:
            return isinstance(standardise.law(row, ()), PointMass)
        except InvalidSetting:  # the bans leave the draft nothing
            return False


class CrossProposer:
    """One request's session in the draft model, and the text so far in the draft's tokens."""

    def __init__(self, drafter: CrossVocab, prompt: tuple[int, ...], law: Standardise) -> None:
        self._drafter = drafter
        self._standardise = law
        self._greedy = drafter.greedy(law)
        self._wide = drafter.nowhere()  # written anew for each token; a law keeps none of it
        special = drafter.target.special
        self._reading = Retokenizer(
            drafter.target,
            drafter.draft,
            {mine: own for mine, own in drafter.to_draft.items() if mine in special},
        )
        self._reading.extend(prompt)
        self._before = prompt
        self._cache = Cache(drafter.model, self._reading.ids)

    @property
    def length(self) -> int:
        """Tokens in the draft's cache."""
        return len(self._cache.tokens)

    @property
    def reading_seconds(self) -> float:
        """Seconds spent on scoring the prompt."""
        return self._cache.reading_seconds

    def draft(self, output: Sequence[int], limit: int, stream: Chooser) -> Draft:
        """Up to `limit` tokens; `output` extends the last one.

        Nothing is drafted in the middle of a character, nor where the draft's context ends or the
        request's bans leave it nothing.

        Raises:
            BadLogits: The draft returned NaN or infinity.
        """
        return self.follow(output, limit, stream, UNGUIDED)

    def follow(self, output: Sequence[int], limit: int, stream: Chooser, guide: Guide) -> Draft:
        """As `draft`, while `guide` finds another token worth its pass."""
        self._reading.extend(output[self._reading.read - len(self._before) :])
        if not self._reading.ids or not self._reading.whole:
            return Draft()
        if self._greedy or isinstance(stream, Shared):
            return self._strings([*self._before, *output], limit, guide)
        return self._tokens(output, limit, stream, guide)

    def observe(self, verdict: Verdict) -> None:
        """Nothing to learn: the cache follows the text."""

    def close(self) -> None:
        """Free the cache."""
        self._cache.close()

    def _tokens(self, output: Sequence[int], limit: int, stream: Chooser, guide: Guide) -> Draft:
        """Draw from the draft's law over the common tokens."""
        drafter, name = self._drafter, self._drafter.name
        growth, read = Growth(output), list(self._reading.ids)
        while growth.depth < limit and guide.value(name) > 0:
            row = self._cache.row(read)
            if row is None:
                break
            confidence = top_probability(row, name, len(read) - 1)
            self._wide[drafter.common] = row[drafter.columns]
            try:
                law = self._standardise.law(self._wide, growth.context)
            except InvalidSetting:  # the bans leave the draft nothing; the target may still go on
                break
            token = stream.draft(growth.depth, law)
            guide.take(name, confidence)
            growth.extend(token, law, name)
            read.append(drafter.to_draft[token])
            if read[-1] in drafter.model.eos:
                break
        return growth.draft()

    def _strings(self, before: Sequence[int], limit: int, guide: Guide) -> Draft:
        """Let the draft write, and cut what it wrote into the target's tokens.

        A token that a pass of the draft adds is as sure as that pass. The last token of all may be
        the beginning of a longer one; it was paid for, so it stays.
        """
        name = self._drafter.name
        written = Writing(self._drafter, before, self._reading.ids)
        taken = passes = 0
        while taken < limit and passes < PATIENCE * limit and guide.value(name) > 0:
            if written.ended or not written.go_on(self._cache, taken):
                break
            passes += 1
            for more in range(min(len(written.tokens), limit) - taken):
                if more and guide.value(name, written.sure) <= 0:
                    return written.draft(taken)
                guide.take(name, written.sure)
                taken += 1
        return written.draft(taken)


class Writing:
    """What the draft writes in one round.

    Args:
        drafter: Whose it is.
        before: The target's tokens so far.
        read: The draft's.
    """

    def __init__(self, drafter: CrossVocab, before: Sequence[int], read: Sequence[int]) -> None:
        self._drafter, self._before = drafter, before
        self._read = list(read)
        self._written = b""
        self.tokens: tuple[int, ...] = ()  # the target's
        self.sure = 0.0  # the draft's largest probability in the last pass
        self.ended = False

    def go_on(self, cache: Cache, least: int) -> bool:
        """Write one more token.

        Args:
            cache: The draft's.
            least: How many of the target's tokens there must be.

        Returns:
            False where the draft has no more context, or where there would be fewer tokens.
        """
        drafter = self._drafter
        row = cache.row(self._read)
        if row is None:
            return False
        self.sure = top_probability(row, drafter.name, len(self._read) - 1)
        own = int(np.argmax(row))
        self._read.append(own)
        if own in drafter.draft.bytes:
            self._written += drafter.draft.bytes[own]
            return self._cut(least)
        self.ended = True
        if own in drafter.to_target:  # a special token of both
            self.tokens = (*self.tokens, drafter.to_target[own])
        return True

    def draft(self, count: int) -> Draft:
        """The first `count` tokens."""
        tokens = self.tokens[:count]
        laws = tuple(PointMass(token) for token in tokens)
        return Draft(tokens, laws, sources=(self._drafter.name,) * count)

    def _cut(self, least: int) -> bool:
        """Cut the text, as far as it is whole characters, into the target's tokens."""
        text = self._written.decode(errors="ignore")
        tokens = continuation(self._drafter.target, self._before, text)
        rows = self._drafter.vocab_size
        usable = next((at for at, token in enumerate(tokens) if token >= rows), len(tokens))
        if usable < least:
            return False
        self.tokens = tokens[:usable]
        return True
