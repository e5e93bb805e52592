"""Where the parts meet: engine, drafters and backends know each other only through these protocols.

A part that is shared (`Model`, `Drafter`, `Lengths`) makes, per request, a part that holds state
(`Session`, `Proposer`, `LengthPolicy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np

from draftproof.core import Draft, Int64, Law, LogitRow, Logits, Prompt, Round, Verdict
from draftproof.rng import Chooser


@runtime_checkable
class Session(Protocol):
    """One sequence in one model, and its cache."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """The decoder's tokens before the first output token: never empty.

        For a decoder-only model the prompt; for an encoder-decoder model its start tokens.
        """
        ...

    @property
    def length(self) -> int:
        """Tokens in the cache, prefix included."""
        ...

    def score(self, tokens: Sequence[int], keep: int) -> Logits:
        """Append `tokens` (at least one) and score them in one pass.

        Args:
            tokens: What follows the cached tokens.
            keep: How many of the last positions to return logits for; 0 for none.

        Returns:
            Row i holds the logits after the i-th of the last `keep` tokens; float32, on the CPU.
        """
        ...

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens, in constant time."""
        ...

    def close(self) -> None:
        """Free the cache. The session is not used afterwards."""
        ...


@runtime_checkable
class Model(Protocol):
    """Weights that can be shared by any number of sessions."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of the output head; may exceed the tokenizer's vocabulary (padding)."""
        ...

    @property
    def context_length(self) -> int | None:
        """Most tokens in a session, prefix included; None where there is no limit."""
        ...

    @property
    def eos(self) -> frozenset[int]:
        """Token ids that end a sequence."""
        ...

    @property
    def banned(self) -> tuple[tuple[int, ...], ...]:
        """Token sequences that the model's own generation settings forbid."""
        ...

    @property
    def banned_first(self) -> frozenset[int]:
        """Tokens that the model's own generation settings forbid as the first output token."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        ...

    @property
    def cache_bytes_per_token(self) -> int:
        """Memory that a session takes per token."""
        ...

    def open(self, prompt: Prompt) -> Session:
        """A new session. Decoder-only: nothing is scored yet. Encoder-decoder: encodes `prompt`.

        Raises:
            PromptTooLong: The prompt does not fit in the context.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """What one session takes part with in a pass over several.

    Args:
        session: One of the model's own sessions; in a pass at most once.
        tokens: As in `Session.score`.
        keep: As in `Session.score`.
        parents: As in `Branching.score_tree`, where the tokens are a tree; empty for a chain.
    """

    session: Session
    tokens: tuple[int, ...]
    keep: int
    parents: tuple[int, ...] = ()


@runtime_checkable
class Branching(Session, Protocol):
    """An optional capability of a `Session`: scoring a tree of tokens, and keeping one path of it.

    It is asked for with `isinstance` before use; without it, drafts are chains.
    """

    def score_tree(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Score a tree that hangs from the cached tokens.

        Until `keep` or `rewind` chooses, the tree is open: `length` does not count it, and a
        further tree's nodes may follow its nodes.

        Args:
            tokens: The nodes, each behind the one that it follows; at least one.
            parents: For each the node that it follows, counted over all that were scored since the
                tree was opened; -1 for the cached tokens' end.

        Returns:
            The logits after each of these nodes, those of a chain over its path, float32.
        """
        ...

    def keep(self, path: Sequence[int]) -> None:
        """Append the open tree's nodes on `path`, from the root on, and forget the others."""
        ...


@runtime_checkable
class Narrowing(Protocol):
    """An optional capability of a `Model`: logits of a part of the vocabulary."""

    def narrow(self, ids: Sequence[int]) -> tuple[Model, Int64[np.ndarray, "rows"]]:
        """The same weights with a smaller output head.

        Args:
            ids: The token ids whose logits are wanted.

        Returns:
            A model, `Batching` too, whose logits have a column for each of the ids beside it,
            rising; `ids` are among them, and neighbours that cost nothing more. It scores this
            model's own sessions.
        """
        ...


@runtime_checkable
class Shallowing(Protocol):
    """An optional capability of a `Model`: running its first layers alone."""

    @property
    def layers(self) -> int:
        """How many it has."""
        ...

    def shallow(self, layers: int) -> Model:
        """The first `layers` layers (at least 1) under the same head, in the same memory."""
        ...


@runtime_checkable
class Batching(Protocol):
    """An optional capability of a `Model`: scoring several of its sessions in one pass.

    It is asked for with `isinstance` before use; a model without it scores one after another.
    """

    def score_together(self, passes: Sequence[Pass]) -> Sequence[Logits]:
        """Append and score every session's tokens in one pass.

        Returns:
            What `Session.score` would have returned for each, in order. An error leaves all
            sessions as they were.
        """
        ...


@runtime_checkable
class Remembering(Protocol):
    """An optional capability of a `Model`: sessions that go on from what closed ones had cached."""

    @property
    def remembers(self) -> bool:
        """Whether caches of closed sessions are kept."""
        ...

    def remember(self, sessions: int) -> None:
        """Keep the caches of the latest so many closed sessions: none at first."""
        ...

    def resume(self, prompt: Prompt) -> Session:
        """A session over `prompt`, of which the beginning is cached that a kept one shares with it.

        All but its last token may be: its `length` says how much. Logits are those of `open`, and
        so is what it raises.
        """
        ...


def resumes(model: Model | None) -> TypeGuard[Remembering]:
    """Whether sessions over a text may begin with what closed ones had cached."""
    return isinstance(model, Remembering) and model.remembers


def session_over(model: Model, prompt: Prompt) -> Session:
    """A session for a request: one that is resumed, where the model remembers any."""
    return model.resume(prompt) if resumes(model) else model.open(prompt)


@dataclass(frozen=True, slots=True)
class Threads:
    """What computes passes: `count` threads, which the system places, or each on its processor."""

    count: int
    pinned: bool = False


@runtime_checkable
class Threaded(Protocol):
    """An optional capability of a `Model`: being computed by other threads after it was loaded."""

    @property
    def threads(self) -> Threads:
        """What computes it now."""
        ...

    def use_threads(self, threads: Threads) -> None:
        """Be computed so from the next pass on; logits stay the same."""
        ...

    def choices(self) -> Sequence[Threads]:
        """What may suit this machine, the usual choice first."""
        ...

    def trial(self, threads: Threads) -> Model:
        """A part of the model, enough to time `threads`, computed by them beside the model."""
        ...


@runtime_checkable
class Reporting(Protocol):
    """An optional capability of a `Model`: saying how it is run, for reports."""

    def info(self) -> Mapping[str, object]:
        """`backend` and, where they apply, `device`, `dtype`, `kernels`, `threads`; or more."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids of `text`; with `special`, framed by the tokens the model's prompts have."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out; ids outside the vocabulary give nothing."""
        ...

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of a conversation in the model's chat template, ready for the answer.

        Raises:
            UnsupportedModel: The tokenizer has no chat template.
        """
        ...

    @property
    def vocabulary(self) -> Mapping[str, int]:
        """The id of every token string, special tokens included."""
        ...


@runtime_checkable
class Standardise(Protocol):
    """The road from a model's logits to a law over the target's vocabulary."""

    def law(self, logits: LogitRow, output: Sequence[int]) -> Law:
        """The law after `output`; `sampling.Standardiser` documents it."""
        ...


@runtime_checkable
class Proposer(Protocol):
    """One request's drafts."""

    def draft(self, output: Sequence[int], limit: int, stream: Chooser) -> Draft:
        """Guess what follows.

        Args:
            output: All output tokens so far.
            limit: Most tokens to draft, at least 1; fewer, and none, are fine. A chain is due.
            stream: Makes the choices: `stream.draft(index, law)` picks the index-th token. Whether
                a token stays in the draft must not depend on that token (`guarantees.md`).
        """
        ...

    def observe(self, verdict: Verdict) -> None:
        """Learn what became of the last draft. Called once after every `draft`."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


@runtime_checkable
class Guide(Protocol):
    """Says, while a draft is made, whether another token is worth its price; one per round.

    It may use the past and what the drafter tells it, never the target's answer. A token that a
    drafter has paid for and drawn stays in the draft, whatever it says then.
    """

    def value(
        self,
        source: str,
        confidence: float | None = None,
        after: int | None = None,
        reads: int = 1,
    ) -> float:
        """What one more token is worth: emitted tokens, less those that its cost earns otherwise.

        Not above 0: it does not pay.

        Args:
            source: What would draft it. A name stands for one way of drafting and its costs.
            confidence: How sure the source is, in [0, 1], on any scale of its own: the guide learns
                what it means. None where that is known only once the token is drafted.
            after: The taken token that it would follow, by its number; -1 for the committed text.
                By default the last one: a chain.
            reads: Tokens that the pass for it reads, where its confidence is not known: more than
                one where others' tokens have left a draft model behind. The prompt is apart.
        """
        ...

    def take(self, source: str, confidence: float, after: int | None = None) -> None:
        """Note that a token was drafted: the next number, counting from 0, is its own."""
        ...

    @property
    def nodes(self) -> int:
        """Most tokens in the draft altogether."""
        ...

    @property
    def branching(self) -> bool:
        """Whether the target can score a tree; without it, only chains are of use."""
        ...

    @property
    def several(self) -> bool:
        """Whether a drawn token may have others beside it in this round.

        It is settled before anything is drawn: another rule judges such a round, and which rule
        does must not depend on what was drawn (`guarantees.md`). The draft gives its `parents`
        then, even where it became a chain.
        """
        ...

    def choose(self, options: Sequence[Sequence[tuple[str, float]]], after: int) -> tuple[int, int]:
        """What to draft at a position where several candidates may stand, as `several` says.

        Args:
            options: Sets of candidates, each by its source and confidence; the first is always
                possible. At the latest now their pass was paid for.
            after: As in `value`.

        Returns:
            The number of the best set, and in it that of the candidate to go on behind: it is the
            one to `take` first.
        """
        ...

    @property
    def stopped(self) -> str:
        """Why the last value asked for was not above 0; empty where it was."""
        ...


@runtime_checkable
class Guided(Proposer, Protocol):
    """An optional capability of a `Proposer`: letting a guide decide how far a draft goes."""

    def follow(self, output: Sequence[int], limit: int, stream: Chooser, guide: Guide) -> Draft:
        """As `draft`, but each token is asked for and told; `limit` bounds every path."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """Something cheap that guesses the next tokens."""

    @property
    def name(self) -> str:
        """What messages and statistics call it."""
        ...

    @property
    def model(self) -> Model | None:
        """The draft model, where there is one: its memory and its context then count."""
        ...

    def begin(self, prompt: Prompt, standardise: Standardise) -> Proposer:
        """Start on a request.

        Args:
            prompt: The request's prompt.
            standardise: Turns the draft's logits, padded to the target's vocabulary with -inf,
                into the law to draw from, by the request's own sampling settings.
        """
        ...


@runtime_checkable
class Joining(Drafter, Protocol):
    """An optional capability of a `Drafter`: joining others, some of which may cost nothing."""

    @property
    def costly(self) -> Drafter:
        """The one of them whose tokens are paid for: its costs are measured."""
        ...


@runtime_checkable
class Reading(Proposer, Protocol):
    """An optional capability of a `Proposer`: reading the prompt when it first needs to."""

    @property
    def reading_seconds(self) -> float:
        """Seconds spent on that so far; they count as reading the prompt, not as drafting."""
        ...

    @property
    def unread(self) -> int:
        """Tokens of the prompt that are still to be read; 0 once it has begun to draft."""
        ...


@runtime_checkable
class LengthPolicy(Protocol):
    """How many tokens to draft in one request.

    It may use the past and the draft's side, never the target's answer to the tokens in question.
    """

    def length(self) -> int:
        """Most tokens to draft in the next round; zero is a length."""
        ...

    def observe(self, round: Round) -> None:
        """Learn from a finished round."""
        ...

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why speculation was switched off or on, with the rounds."""
        ...


@runtime_checkable
class Guiding(LengthPolicy, Protocol):
    """An optional capability of a `LengthPolicy`: guiding proposers that are `Guided`."""

    def guide(self, branching: bool, room: int, unread: float) -> Guide:
        """The next round's guide.

        Args:
            branching: Whether the target can score a tree.
            room: Most tokens that the request may still emit.
            unread: Seconds that the target took, or would take, to read the text so far, where the
                drafter has still to read it before its first token; 0 where it has not.
        """
        ...


@runtime_checkable
class Ending(LengthPolicy, Protocol):
    """An optional capability of a `LengthPolicy`: being told that its request is over."""

    def close(self, ended: bool) -> None:
        """No round follows. Called once.

        Args:
            ended: Whether the text came to its end, and was not cut off.
        """
        ...


@runtime_checkable
class Lengths(Protocol):
    """Makes the length policy of each request."""

    def begin(self, prompt: Prompt, reproducible: bool = False) -> LengthPolicy:
        """A policy for a new request.

        Args:
            prompt: The request's prompt.
            reproducible: The lengths must be the same whenever the request is run again, so they
                may not depend on the clock. Asked of seeded requests whose rule is not `coupled`:
                there the text depends on the lengths.
        """
        ...
