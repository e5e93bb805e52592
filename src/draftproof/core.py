"""The values that every layer speaks of: laws, drafts, verdicts, limits, tokens.

All are frozen. Shapes stand in the annotations and are checked while the tests run.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

# The names of shapes, for every module. Only type checkers and the tests' checks read shapes, and
# jaxtyping would be a third of the time that importing this package takes.
if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Float32 as Float32  # noqa: PLC0414
    from jaxtyping import Float64 as Float64  # noqa: PLC0414
    from jaxtyping import Int64 as Int64  # noqa: PLC0414
    from jaxtyping import Shaped as Shaped  # noqa: PLC0414
else:

    class _Unchecked:
        """`Float32[np.ndarray, "rows vocab"]` is then plainly `np.ndarray`."""

        def __class_getitem__(cls, item: tuple[type, str]) -> type:
            return item[0]

    Float32 = Float64 = Int64 = Shaped = _Unchecked

Logits: TypeAlias = Float32[np.ndarray, "rows vocab"]
LogitRow: TypeAlias = Float32[np.ndarray, "vocab"]
# float64 in production; the proofs in tests/exact run the same code on fractions.Fraction.
Probs: TypeAlias = Shaped[np.ndarray, "vocab"]

# A probability or a weight: like the laws, a float in production and a fraction in the proofs.
if TYPE_CHECKING:
    Real: TypeAlias = float
else:
    Real = numbers.Real

Origin: TypeAlias = Literal["accepted", "residual", "bonus", "plain"]
FinishReason: TypeAlias = Literal["eos", "stop", "length", "context", "interrupted"]
Rule: TypeAlias = Literal["token", "block", "coupled"]

# What a request starts from: token ids, or (for speech) an encoder's input features.
Features: TypeAlias = Float32[np.ndarray, "bins frames"]
Prompt: TypeAlias = "tuple[int, ...] | Features"


@dataclass(frozen=True, slots=True)
class PointMass:
    """The law of a choice that was certain: all probability on one token."""

    token: int

    def prob(self, token: int) -> Real:
        """The probability of `token`; an int, so that rational arithmetic stays exact."""
        return 1 if token == self.token else 0


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A law given by its probabilities over the target's vocabulary, summing to 1."""

    probs: Probs

    def prob(self, token: int) -> Real:
        """The probability of `token`."""
        value: Real = self.probs[token]
        return value


Law: TypeAlias = PointMass | Dense


def shared_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    most = min(len(one), len(other))
    if list(one[:most]) == list(other[:most]):  # mostly so, and found out much sooner
        return most
    pairs = zip(one, other, strict=False)
    return next(i for i, (a, b) in enumerate(pairs) if a != b)


def depth_of(parents: Sequence[int]) -> int:
    """Tokens on the longest path of a tree, `parents` being as in `Draft.parents`."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal: its tokens, and the exact law that each was drawn from.

    `laws[i]` is the law of `tokens[i]` given the tokens before it, over the target's vocabulary.

    Mostly a chain. A tree says in `parents[i]` which earlier token the i-th one follows, -1 being
    the committed text. Of the tokens that follow the same one, all are different and all but one
    are certain choices; the other may be drawn from a law that depends on them.

    `sources[i]` names what drafted the i-th token, where one drafter joins several.

    Raises:
        ValueError: The parts do not fit together.
    """

    tokens: tuple[int, ...] = ()
    laws: tuple[Law, ...] = ()
    parents: tuple[int, ...] = ()  # empty for a chain
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.laws):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.laws)} laws")
        if self.sources and len(self.sources) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.sources)} sources")
        if self.parents:
            self._check_tree()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def certain(self) -> bool:
        """Whether every token was a certain choice (lookup, n-gram, greedy drafts)."""
        return all(isinstance(law, PointMass) for law in self.laws)

    @property
    def chain(self) -> bool:
        """Whether each token follows the one before it."""
        return not self.parents or self.parents == tuple(range(-1, len(self.tokens) - 1))

    def parent(self, node: int) -> int:
        """The token that the `node`-th one follows; -1 for the committed text."""
        return self.parents[node] if self.parents else node - 1

    def children(self, node: int) -> list[int]:
        """The tokens that follow the `node`-th one; -1 stands for the committed text."""
        if not self.parents:
            return [node + 1] if node + 1 < len(self.tokens) else []
        return [i for i in range(node + 1, len(self.tokens)) if self.parents[i] == node]

    def child(self, node: int, token: int) -> int | None:
        """The one of `children(node)` that is `token`; None where none is."""
        return next((i for i in self.children(node) if self.tokens[i] == token), None)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the committed text down to `node`, it included; empty for -1."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = self.parent(node)
        return tuple(reversed(nodes))

    @property
    def depth(self) -> int:
        """Tokens on the longest path."""
        return depth_of(self.parents) if self.parents else len(self.tokens)

    @classmethod
    def of_certain(cls, tokens: tuple[int, ...], parents: tuple[int, ...] = ()) -> Draft:
        """A draft of point masses."""
        return cls(tokens, tuple(PointMass(token) for token in tokens), parents)

    def _check_tree(self) -> None:
        if len(self.parents) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents")
        if not all(-1 <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError(f"parents {self.parents}: each is an earlier token, or -1")
        children = set(zip(self.parents, self.tokens, strict=True))
        if len(children) < len(self.tokens):
            raise ValueError("a token stands twice behind the same one")
        sampled = [
            parent
            for parent, law in zip(self.parents, self.laws, strict=True)
            if not isinstance(law, PointMass)
        ]
        if len(set(sampled)) < len(sampled):
            raise ValueError("of the tokens behind the same one, more than one was sampled")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule decided: keep `accepted` drafted tokens, then emit `token`.

    `path` holds the nodes of the draft that were kept, from the committed text on. In a chain these
    are the first `accepted` ones, and it may be left out.

    Raises:
        ValueError: The path has another length.
    """

    accepted: int
    token: int
    kind: Origin
    path: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.path:
            object.__setattr__(self, "path", tuple(range(self.accepted)))
        elif len(self.path) != self.accepted:
            raise ValueError(f"{self.accepted} accepted tokens on a path of {len(self.path)}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a request ends.

    Args:
        max_tokens: Most tokens to emit, at least 1.
        min_tokens: No end-of-sequence token and no stop string before this many tokens.
        eos: Tokens that end the sequence; the one met is kept as the last id.
        stop: Strings that end the text; the text stops before the one met.
    """

    max_tokens: int
    min_tokens: int = 0
    eos: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token with its account.

    `position` counts output tokens from 0. `p` is the target's probability of the token under the
    request's sampling settings, `q` the draft's (None where nothing was drafted there) and `source`
    what drafted it (empty where the target chose it alone). `logprob`
    is the target's own log-softmax, before any sampling setting, and `top_logprobs` the most
    probable ids with theirs; both only where log-probabilities were asked for.
    """

    id: int
    position: int
    round: int
    origin: Origin
    p: float
    q: float | None = None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    text: str = ""
    source: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Guess:
    """One drafted token with its account.

    `q` is the draft's probability of it, and `p` the target's under the request's sampling
    settings: None where the target's law was never looked at, behind a rejected token. `parent` is
    as in `Draft.parents`.
    """

    id: int
    parent: int
    source: str
    q: float
    p: float | None
    kept: bool


@dataclass(frozen=True, slots=True)
class Round:
    """One round's account: what was drafted and accepted, and the seconds it took.

    `drafted` counts tokens, a tree's all; `guesses` holds them one by one, and `stopped` says why
    the draft was not longer. `reasons` are those for switching speculation off or on behind this
    round. Where other requests shared the pass, `others` is their number and
    `beside` that of their tokens in it, and `score_seconds` is a share of the pass in proportion to
    tokens. Where the drafter read the prompt in this round, `read_seconds` are what that took: they
    count as reading, not as decoding.
    """

    drafted: int
    accepted: int
    emitted: int
    draft_seconds: float
    score_seconds: float
    verify_seconds: float
    others: int = 0
    beside: int = 0
    guesses: tuple[Guess, ...] = ()
    stopped: str = ""
    reasons: tuple[str, ...] = ()
    read_seconds: float = 0.0

    @property
    def scored(self) -> int:
        """This request's tokens in the target's pass."""
        return self.drafted + 1

    @property
    def seconds(self) -> float:
        """Wall time of the round, the reading of the prompt apart."""
        return self.draft_seconds + self.score_seconds + self.verify_seconds
