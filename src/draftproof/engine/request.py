"""One request: what was asked (`Request`) and how far it is (`Running`)."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal, TypeAlias

from draftproof.core import FinishReason, Limits, Prompt, Round, Rule, Token
from draftproof.engine.stats import Stats
from draftproof.errors import EmptyPrompt, InvalidSetting, PromptTooLong
from draftproof.ports import (
    Branching,
    Drafter,
    Ending,
    Guide,
    Guided,
    Guiding,
    Joining,
    LengthPolicy,
    Lengths,
    Model,
    Proposer,
    Reading,
    Tokenizer,
    resumes,
    session_over,
)
from draftproof.rng import SEEDS, Chooser, Independent, Noise, Shared, Stream
from draftproof.sampling import Sampling, Standardiser, check_vocabulary
from draftproof.text import Detokenizer, Stopper

RuleChoice: TypeAlias = Rule | Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to generate, and how.

    Args:
        prompt: Token ids, or an encoder's input features.
        sampling: How the target's logits become a law.
        limits: Where the output ends.
        seed: Makes the output reproducible; None draws one.
        rule: The verification rule; "auto" is `coupled` where a seed was given, else `block`.
        logprobs: Report log-probabilities, with this many most probable tokens; None is off.
    """

    prompt: Prompt
    sampling: Sampling
    limits: Limits
    seed: int | None = None
    rule: RuleChoice = "auto"
    logprobs: int | None = None

    def __post_init__(self) -> None:
        check_ends(self.limits, self.logprobs)
        if len(self.prompt) == 0:
            raise EmptyPrompt(
                "the prompt is empty",
                why="the first token's law needs a context",
                remedy="give a prompt of at least one token",
            )


class Running:
    """A request in progress: its session, its noise, its output and its account.

    Args:
        request: What was asked.
        target: The model whose text this is.
        tokenizer: Gives the text; None where only token ids matter.
        drafter: Makes drafts; None for plain decoding.
        lengths: Makes the draft length policy.

    Raises:
        PromptTooLong: The prompt does not fit in the target's or the draft's context.
        InvalidSetting: A setting does not fit this model.
    """

    def __init__(
        self,
        request: Request,
        target: Model,
        tokenizer: Tokenizer | None,
        drafter: Drafter | None,
        lengths: Lengths,
    ) -> None:
        check_vocabulary(request.sampling, target.vocab_size)
        check_context(request.prompt, target, "target")
        if drafter is not None and drafter.model is not None:
            check_context(request.prompt, drafter.model, "draft")
        if tokenizer is None and request.limits.stop:
            raise InvalidSetting(
                "stop strings were given without a tokenizer",
                why="without text there is nothing to compare them with",
                remedy="pass the tokenizer, or end on token ids with `eos`",
            )
        self.request = request
        self.seed = secrets.randbelow(SEEDS) if request.seed is None else request.seed
        self.output: list[int] = []
        self.tokens: list[Token] = []
        self.rounds: list[Round] = []
        self.finish_reason: FinishReason | None = None
        self.prefill_seconds = 0.0
        self.read_seconds = 0.0  # of these the target's, on the prompt's tokens
        self._noise = Noise(self.seed)
        self._drafter = drafter
        self._proposer: Proposer | None = None
        self._stopper = Stopper(request.limits.stop)
        self._collected = 0
        self._closed = False
        reproducible = request.seed is not None and not self.coupled
        self._policy: LengthPolicy = lengths.begin(request.prompt, reproducible)
        # What can do what is asked once: such a question takes as long as some tokens' search.
        self._guiding = self._policy if isinstance(self._policy, Guiding) else None
        self._resumes = drafter is not None and resumes(drafter.model)
        self._free = drafter is not None and (drafter.model is None or isinstance(drafter, Joining))
        self.guided: Guided | None = None
        self._reading: Reading | None = None
        self.target = target
        started = perf_counter()
        self.session = session_over(target, request.prompt)
        self._to_read = len(self.unread)
        self._branching = isinstance(self.session, Branching)
        prefix = self.session.prefix
        self.standardiser = Standardiser(
            request.sampling,
            prefix,
            request.limits.eos,
            request.limits.min_tokens,
            target.banned_first,
        )
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer, prefix)
        self._context = target.context_length
        self.prefill_seconds += perf_counter() - started

    @property
    def coupled(self) -> bool:
        """Whether draft and target share their noise."""
        rule, seed = self.request.rule, self.request.seed
        return rule == "coupled" or (rule == "auto" and seed is not None)

    @property
    def rule(self) -> Rule:
        """The rule for drafts that were sampled."""
        if self.coupled:
            return "coupled"
        return "token" if self.request.rule == "token" else "block"

    def stream(self) -> Stream | Chooser:
        """The noise of the next round."""
        start = len(self.output)
        if self.coupled:
            return Shared(self._noise, start)
        return Independent(self._noise, start, attempt=len(self.rounds))

    @property
    def last(self) -> int:
        """The one committed token that the target has not scored yet."""
        return self.output[-1] if self.output else self.session.prefix[-1]

    @property
    def unread(self) -> tuple[int, ...]:
        """The prompt's tokens that the first round has to score before it can draft."""
        return self.session.prefix[self.session.length : -1] if not self.rounds else ()

    def room(self) -> int:
        """Most tokens that the next round may emit; 0 where the context is full."""
        room = self.request.limits.max_tokens - len(self.output)
        if self._context is not None:
            room = min(room, self._context - self.session.length)
        return room

    def proposer(self, limit: int) -> Proposer | None:
        """Where drafts come from, begun on first use."""
        if self._drafter is None or limit < 1:
            return None
        if self._proposer is None:
            started = perf_counter()
            self._proposer = self._drafter.begin(self.request.prompt, self.standardiser)
            self.guided = self._proposer if isinstance(self._proposer, Guided) else None
            self._reading = self._proposer if isinstance(self._proposer, Reading) else None
            self.prefill_seconds += perf_counter() - started
        return self._proposer

    @property
    def drafter_name(self) -> str:
        """What drafts."""
        return "" if self._drafter is None else self._drafter.name

    def guide(self) -> Guide | None:
        """The next round's guide, where the length policy has one."""
        if self._guiding is None:
            return None
        return self._guiding.guide(
            branching=self._branching,
            room=self.request.limits.max_tokens - len(self.output),
            unread=self._unread_seconds(),
        )

    def _unread_seconds(self) -> float:
        """Seconds that the target would take to read what the draft has to before it can draft."""
        unread = self._draft_unread()
        if not unread:
            return 0.0
        if not self._to_read:  # the target had all of it cached: nobody knows what reading costs
            return math.inf
        return self.read_seconds * (unread + len(self.output)) / self._to_read

    def _draft_unread(self) -> int:
        """Tokens of the prompt that a draft model has not read."""
        if self._drafter is None or self._drafter.model is None:
            return 0
        if self._resumes:
            self.proposer(1)  # its session knows how many are cached
        if self._proposer is None:
            return len(self.session.prefix) - 1
        return 0 if self._reading is None else self._reading.unread

    @property
    def draft_read_seconds(self) -> float:
        """Seconds that the drafter has spent on reading the prompt."""
        return 0.0 if self._reading is None else self._reading.reading_seconds

    def draft_limit(self, guide: Guide | None) -> int:
        """Most tokens on a path of the draft: the policy's word, and one less than may be emitted.

        A drafter without a model is asked also where the policy would not pay for a draft: its
        tokens cost nothing.
        """
        most = self._policy.length()
        if guide is not None and (most > 0 or self._free):
            most = guide.nodes
        return min(most, self.room() - 1)

    def commit(self, tokens: Sequence[Token], account: Round, path: Sequence[int] = ()) -> None:
        """Take a round's tokens up to the end of the output, and rewind the target.

        Args:
            tokens: What the round emits.
            account: The round's.
            path: Where the draft was a tree, the scored rows to keep of it.
        """
        before = len(self.output)
        for token in tokens:
            self._append(token)
            if self.finish_reason is not None:
                break
        account = replace(account, emitted=len(self.output) - before)
        told = len(self._policy.reasons)
        self._policy.observe(account)
        self.rounds.append(replace(account, reasons=self._policy.reasons[told:]))
        if path:
            self.session.keep(path)  # type: ignore[attr-defined]  # a tree was scored
        self.session.rewind(len(self.session.prefix) + len(self.output) - 1)
        if self.finish_reason is None and self.room() < 1:
            self.finish_reason = "context"
        if self.finish_reason is not None:
            self.close()

    def collect(self) -> list[Token]:
        """The tokens delivered since the last call."""
        fresh = self.tokens[self._collected :]
        self._collected += len(fresh)
        return fresh

    def close(self) -> None:
        """Deliver what was held back and free the caches; further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        if self.finish_reason is None:
            self.finish_reason = "interrupted"
        if self._detokenizer is not None and self._stopper.stopped is None:
            self.tokens.extend(self._stopper.finish(self._detokenizer.flush()))
            if self._stopper.stopped is not None:
                self.finish_reason = "stop"
        if self._proposer is not None:
            self._proposer.close()
        self.session.close()
        if isinstance(self._policy, Ending):
            self._policy.close(self.finish_reason in ("eos", "stop"))

    def stats(self) -> Stats:
        """The account so far."""
        return Stats.of(self.rounds, len(self.tokens), self.prefill_seconds, self._policy.reasons)

    def _append(self, token: Token) -> None:
        """Take one token, and see whether the output ends with it."""
        limits = self.request.limits
        self.output.append(token.id)
        if self._detokenizer is None:
            self.tokens.append(token)
        else:
            piece = self._detokenizer.push(token.id)
            may_stop = len(self.output) > limits.min_tokens
            self.tokens.extend(self._stopper.push(token, piece, may_stop))
        if self._stopper.stopped is not None:
            self.finish_reason = "stop"
        elif token.id in limits.eos:
            self.finish_reason = "eos"
        elif len(self.output) >= limits.max_tokens:
            self.finish_reason = "length"


def check_ends(limits: Limits, logprobs: int | None) -> None:
    """Refuse limits that no output can satisfy.

    Raises:
        InvalidSetting: As it says.
    """
    holds = {
        f"max_tokens is {limits.max_tokens}": (limits.max_tokens >= 1, "at least 1"),
        f"min_tokens is {limits.min_tokens}": (
            0 <= limits.min_tokens <= limits.max_tokens,
            f"from 0 to max_tokens ({limits.max_tokens})",
        ),
        f"logprobs is {logprobs}": (logprobs is None or logprobs >= 0, "0 or above, or left out"),
    }
    for what, (fine, allowed) in holds.items():
        if not fine:
            raise InvalidSetting(
                what, why="no output can satisfy it", remedy=f"set it to {allowed}"
            )


def check_context(prompt: Prompt, model: Model, role: str) -> None:
    """Refuse a prompt that leaves no room for a token.

    Raises:
        PromptTooLong: As it says; an encoder's features are checked by their model.
    """
    limit = model.context_length
    if isinstance(prompt, tuple) and limit is not None and len(prompt) > limit:
        raise PromptTooLong(
            f"the prompt has {len(prompt)} tokens, and the context of the {role} "
            f"{model.name} is {limit}",
            why="tokens beyond the context would be dropped or read wrongly",
            remedy=f"shorten the prompt to {limit} tokens"
            + ("" if role == "target" else ", choose another draft, or use prompt lookup"),
        )
