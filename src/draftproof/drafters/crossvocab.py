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

PATIENCE = 4  # draft tokens that may be spent on one of the target's: a character has four bytes


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
        """That it drafts across tokenizers, and the model's name."""
        return f"crossvocab, {self.model.name}"

    def begin(self, prompt: Prompt, standardise: Standardise) -> CrossProposer:
        """Put the prompt into the draft's tokens; the first draft scores them.

        Raises:
            PromptTooLong: They do not fit in the draft's context.
            UnsupportedModel: The prompt is no text, or the draft is an encoder-decoder model.
        """
        if not isinstance(prompt, tuple):
            raise UnsupportedModel(
                f"{self.model.name} drafts for another tokenizer, and the prompt is sound",
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
        special = drafter.target.special
        self._reading = Retokenizer(
            drafter.target,
            drafter.draft,
            {mine: own for mine, own in drafter.to_draft.items() if mine in special},
        )
        self._reading.extend(prompt)
        self._before = prompt
        self._cache = Cache(drafter.model, self._reading.ids)
        self._way: Drawing | Writing | None = None  # how this draft is made
        self._depth = 0  # of the trunk, when it last grew
        self._known = 0  # tokens of output and trunk that it has read, but for the last

    @property
    def length(self) -> int:
        """Tokens in the draft's cache."""
        return len(self._cache.tokens)

    @property
    def reading_seconds(self) -> float:
        """Seconds spent on scoring the prompt."""
        return self._cache.reading_seconds

    @property
    def unread(self) -> int:
        """Tokens of the prompt, the target's, that are still to be read."""
        return 0 if self._cache.tokens else len(self._before) - 1

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
        self.start(output)
        growth = Growth(output)
        while growth.depth < limit and self.grow(growth, stream, guide):
            pass
        return growth.draft()

    def start(self, output: Sequence[int]) -> None:
        """Begin a draft behind `output`."""
        self._reading.extend(output[self._reading.read - len(self._before) :])
        self._way = None
        self._known = min(self._known, max(len(output) - 1, 0))

    def reads(self, growth: Growth) -> int:
        """Of the target's tokens, how many the pass for the trunk's next one has to read."""
        if self.unread:
            return 1
        return max(len(growth.context) - self._known, 1)

    def grow(self, growth: Growth, stream: Chooser, guide: Guide) -> bool:
        """Draft the trunk's next token where `guide` values one.

        The trunk may hold others' tokens: then the draft reads its text anew.

        Returns:
            Whether the trunk has grown.
        """
        reads = self.reads(growth)
        if self._way is None or growth.depth != self._depth:
            self._way = self._resume(growth, stream)
        grown = self._way is not None and self._way.grow(growth, stream, guide, reads)
        self._depth = growth.depth
        if grown:
            self._known = len(growth.context) - 1
        return grown

    def observe(self, verdict: Verdict) -> None:
        """Nothing to learn: the cache follows the text."""

    def close(self) -> None:
        """Free the cache."""
        self._cache.close()

    def _resume(self, growth: Growth, stream: Chooser) -> Drawing | Writing | None:
        """Draft behind the trunk; None where there is no text, or it ends within a character."""
        reading = self._reading
        if growth.depth:
            reading = reading.fork()
            reading.extend(growth.trunk)
        if not reading.ids or not reading.whole:
            return None
        if self._greedy or isinstance(stream, Shared):
            before = [*self._before, *growth.context]
            return Writing(self._drafter, self._cache, reading.ids, before)
        return Drawing(self._drafter, self._cache, reading.ids, self._standardise)


class Drawing:
    """Draws from the draft's law over the common tokens.

    Args:
        drafter: Whose it is.
        cache: The draft's.
        read: Its tokens so far.
        standardise: As in `Drafter.begin`.
    """

    def __init__(
        self, drafter: CrossVocab, cache: Cache, read: Sequence[int], standardise: Standardise
    ) -> None:
        self._drafter, self._cache, self._standardise = drafter, cache, standardise
        self._read = list(read)
        self._wide = drafter.nowhere()  # written anew for each token; a law keeps none of it
        self._ended = False

    def grow(self, growth: Growth, stream: Chooser, guide: Guide, reads: int) -> bool:
        """As in `CrossProposer`, where a pass reads so many tokens."""
        drafter, name = self._drafter, self._drafter.name
        if self._ended or guide.value(name, after=growth.end, reads=reads) <= 0:
            return False
        row = self._cache.row(self._read)
        if row is None:
            return False
        confidence = top_probability(row, drafter.model.name, len(self._read) - 1)
        self._wide[drafter.common] = row[drafter.columns]
        try:
            law = self._standardise.law(self._wide, growth.context)
        except InvalidSetting:  # the bans leave the draft nothing; the target may still go on
            return False
        token = stream.draft(growth.depth, law)
        guide.take(name, confidence, after=growth.end)
        growth.extend(token, law, name)
        self._read.append(drafter.to_draft[token])
        self._ended = self._read[-1] in drafter.model.eos
        return True


class Writing:
    """Lets the draft write, and cuts what it has written into the target's tokens.

    More text may cut a token anew that was drafted before. The last token of all may be the
    beginning of a longer one; it was paid for, so it stays.

    Args:
        drafter: Whose it is.
        cache: The draft's.
        read: Its tokens so far.
        before: The target's tokens so far.
    """

    def __init__(
        self, drafter: CrossVocab, cache: Cache, read: Sequence[int], before: Sequence[int]
    ) -> None:
        self._drafter, self._cache, self._before = drafter, cache, before
        self._read = list(read)
        self._written = b""
        self._tokens: tuple[int, ...] = ()  # the target's
        self._taken = 0  # of these, in the draft
        self._sure = 0.0  # the draft's largest probability in the last pass
        self._ended = False

    def grow(self, growth: Growth, stream: Chooser, guide: Guide, reads: int) -> bool:
        """As in `CrossProposer`, where a pass reads so many tokens.

        A token that a pass adds is as sure as that pass.
        """
        name, written = self._drafter.name, self._taken < len(self._tokens)
        sure = self._sure if written else None
        if guide.value(name, sure, after=growth.end, reads=reads) <= 0:
            return False
        if not written:
            written = self._write()
            growth.respell(self._tokens[: self._taken])
        if not written:
            return False
        token = self._tokens[self._taken]
        self._taken += 1
        guide.take(name, self._sure, after=growth.end)
        growth.extend(token, PointMass(token), name)
        return True

    def _write(self) -> bool:
        """Write until there is another of the target's tokens; False where none comes."""
        for _ in range(PATIENCE):
            if self._ended or not self._go_on():
                return False
            if len(self._tokens) > self._taken:
                return True
        return False

    def _go_on(self) -> bool:
        """Write one token; False where the draft has no more context, or the text cannot be cut."""
        drafter = self._drafter
        row = self._cache.row(self._read)
        if row is None:
            return False
        self._sure = top_probability(row, drafter.model.name, len(self._read) - 1)
        own = int(np.argmax(row))
        self._read.append(own)
        if own in drafter.draft.bytes:
            self._written += drafter.draft.bytes[own]
            return self._cut()
        self._ended = True
        if own in drafter.to_target:  # a special token of both
            self._tokens = (*self._tokens, drafter.to_target[own])
        return True

    def _cut(self) -> bool:
        """Cut the text, as far as it is whole characters; False where that takes tokens away."""
        text = self._written.decode(errors="ignore")
        tokens = continuation(self._drafter.target, self._before, text)
        rows = self._drafter.vocab_size
        usable = next((at for at, token in enumerate(tokens) if token >= rows), len(tokens))
        if usable < self._taken:
            return False
        self._tokens = tokens[:usable]
        return True
