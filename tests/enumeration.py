"""Replays a program of random choices over every outcome of its noise, with exact weights.

A verification rule asks its stream for draws and coins. `Replay` answers them from a script and
keeps the weight of the branch; `branches` walks all scripts. With laws of `fractions.Fraction` the
law of the output is a rational number for every output, and "exact" means `==`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

import numpy as np

from draftproof.core import Dense, Draft, Law, PointMass, Verdict

T = TypeVar("T")
Prefix = tuple[int, ...]
Tree = Mapping[Prefix, Law]  # the law of the next token after each prefix
Joint = dict[Prefix, Any]  # sequence -> probability
Rule = Callable[[Draft, Sequence[Law], Any], Verdict]


def dense(*probs: Any) -> Dense:
    """A rational law: `dense("1/3", "2/3")`."""
    return Dense(np.array([Fraction(p) for p in probs], dtype=object))


def support(law: Law) -> list[tuple[int, Any]]:
    """Tokens of positive probability with their probabilities."""
    if isinstance(law, PointMass):
        return [(law.token, 1)]
    return [(x, p) for x, p in enumerate(law.probs.tolist()) if p > 0]


class Replay:
    """A stream that follows a script: the numbers of the options to take, then always the first.

    Each address (purpose, index) may be met once, as fresh noise demands.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self.weight: Any = 1
        self.taken: list[tuple[int, int]] = []
        self._script = script
        self._met: set[tuple[str, int]] = set()

    def choose(self, options: Sequence[tuple[T, Any]]) -> T:
        """One of the options (outcome, probability); those of probability 0 are no branches."""
        possible = [(outcome, weight) for outcome, weight in options if weight > 0]
        depth = len(self.taken)
        k = self._script[depth] if depth < len(self._script) else 0
        self.taken.append((k, len(possible)))
        outcome, weight = possible[k]
        self.weight = self.weight * weight
        return outcome

    def _meet(self, purpose: str, index: int) -> None:
        assert (purpose, index) not in self._met, f"{purpose} noise {index} was met twice"
        self._met.add((purpose, index))

    def draft(self, index: int, law: Law) -> int:
        self._meet("draft", index)
        return self.choose(support(law))

    def target(self, index: int, law: Law) -> int:
        self._meet("target", index)
        return self.choose(support(law))

    def accept(self, index: int, probability: Any) -> bool:
        self._meet("accept", index)
        if probability in (0, 1):  # a quotient of the ints 0 and 1 is a float, but an exact one
            probability = int(probability)
        assert 0 <= probability <= 1, f"a coin of probability {probability}"
        return self.choose([(True, probability), (False, 1 - probability)])


class SharedReplay(Replay):
    """Like `rng.Shared`: at a position, the target's choice is coupled to the draft's."""

    def __init__(self, script: Sequence[int] = ()) -> None:
        super().__init__(script)
        self._drafted: dict[int, tuple[int, Law]] = {}

    def draft(self, index: int, law: Law) -> int:
        x = super().draft(index, law)
        self._drafted[index] = (x, law)
        return x

    def target(self, index: int, law: Law) -> int:
        if index not in self._drafted:
            return super().target(index, law)
        self._meet("target", index)
        x, q = self._drafted[index]
        size = max(len(r.probs) if isinstance(r, Dense) else r.token + 1 for r in (q, law))
        joint = race_joint(q, law, size)
        given = sum(w for (i, _), w in joint.items() if i == x)
        return self.choose([(y, w / given) for (i, y), w in joint.items() if i == x])


def branches(program: Callable[[Any], T], stream: type[Replay] = Replay) -> Iterator[tuple[T, Any]]:
    """Every outcome of `program` with its weight; one outcome may come several times."""
    script: list[int] = []
    while True:
        replay = stream(script)
        outcome = program(replay)
        yield outcome, replay.weight
        taken = replay.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        script = [k for k, _ in taken]
        script[-1] += 1


def law_of(program: Callable[[Any], T], stream: type[Replay] = Replay) -> dict[T, Any]:
    """The law of the outcome of `program`."""
    law: dict[T, Any] = defaultdict(int)
    for outcome, weight in branches(program, stream):
        law[outcome] += weight
    return dict(law)


class RoundNoise:
    """What one round sees of a request's noise."""

    def __init__(self, request: RequestReplay, start: int, attempt: int) -> None:
        self._request = request
        self._start = start
        self._attempt = attempt

    def draft(self, index: int, law: Law) -> int:
        return self._request.draw(("draft", self._start + index, self._attempt), law)

    def target(self, index: int, law: Law) -> int:
        return self._request.draw(("target", self._start + index, self._attempt), law)

    def accept(self, index: int, probability: Any) -> bool:
        coin = [(True, probability), (False, 1 - probability)]
        return self._request.cut(("accept", self._start + index, self._attempt), coin)


class RequestReplay(Replay):
    """The noise of a whole request: uniform numbers that may be met again.

    Every choice cuts the unit interval of its address, as `rng.Independent` does, so a number that
    is met a second time is uniform on the piece that the first choice left of it.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        super().__init__(script)
        self._known: dict[tuple[str, int, int], tuple[Any, Any]] = {}

    def round(self, start: int, attempt: int) -> RoundNoise:
        return RoundNoise(self, start, attempt)

    def draw(self, address: tuple[str, int, int], law: Law) -> int:
        if isinstance(law, PointMass):
            return law.token
        return self.cut(address, support(law))

    def cut(self, address: tuple[str, int, int], options: Sequence[tuple[T, Any]]) -> T:
        low, high = self._known.get(address, (Fraction(0), Fraction(1)))
        pieces, edge = {}, Fraction(0)
        for outcome, probability in options:
            pieces[outcome] = (max(low, edge), min(high, edge + probability))
            edge += probability
        chosen = self.choose([(o, (b - a) / (high - low)) for o, (a, b) in pieces.items()])
        self._known[address] = pieces[chosen]
        return chosen


# ------------------------------------------------------------------------ rounds


Drafting = Callable[..., Draft]  # (stream, output so far, most tokens on a path) -> draft


def draft_from(laws: Tree, g: int) -> Drafting:
    """Drafting as it should be: each token drawn from the law that is handed on."""

    def drafting(stream: Any, output: Prefix = (), limit: int = g) -> Draft:
        tokens: Prefix = ()
        for i in range(min(g, limit)):
            tokens = (*tokens, stream.draft(i, laws[output + tokens]))
        ends = range(len(tokens))
        return Draft(tokens, tuple(laws[output + tokens[:i]] for i in ends))

    return drafting


# A tree's form: for each of a node's children, the form of what hangs from it.
Form = tuple["Form", ...]


def rest_of(q: Law, taken: Iterable[int]) -> Law | None:
    """`q` without the tokens `taken`, renormalised; None where nothing is left."""
    if isinstance(q, PointMass):
        return None if q.token in taken else q
    probs = q.probs.copy()
    probs[[*taken]] = 0
    return Dense(probs / probs.sum()) if probs.sum() > 0 else None


def candidates(q: Law, count: int, *, sampled: bool) -> tuple[list[int], Law | None]:
    """Up to `count` candidates for one position: the certain ones, and the law of one more.

    The certain ones are the most probable tokens of `q`. With `sampled`, the last candidate is
    drawn instead, from what the others leave of `q`.
    """
    tokens = range(len(q.probs)) if isinstance(q, Dense) else [q.token]
    sure = sorted(tokens, key=q.prob, reverse=True)[: count - 1 if sampled else count]
    return sure, rest_of(q, sure) if sampled else None


def tree_from(laws: Tree, form: Form, *, sampled: bool, by_depth: bool = False) -> Drafting:
    """Drafting a tree, with a sampled child at every node or none.

    The noise of a sampled token is addressed by its depth, which it shares with its cousins, or by
    its own number.
    """

    @cache
    def candidates_after(prefix: Prefix, count: int) -> tuple[list[int], Law | None]:
        return candidates(laws[prefix], count, sampled=sampled)

    def drafting(stream: Any, output: Prefix = (), limit: int | None = None) -> Draft:
        tokens: list[int] = []
        drawn_from: list[Law] = []
        parents: list[int] = []

        def grow(branches: Form, prefix: Prefix, node: int) -> None:
            depth = len(prefix) - len(output)
            if not branches or depth == limit:
                return
            sure, rest = candidates_after(prefix, len(branches))
            found: list[tuple[int, Law]] = [(x, PointMass(x)) for x in sure]
            if rest is not None:
                found.append((stream.draft(depth if by_depth else node + 1, rest), rest))
            for branch, (x, q) in zip(branches, found, strict=False):
                tokens.append(x)
                drawn_from.append(q)
                parents.append(node)
                grow(branch, (*prefix, x), len(tokens) - 1)

        grow(form, output, -1)
        return Draft(tuple(tokens), tuple(drawn_from), tuple(parents))

    return drafting


def along(draft: Draft, node: int) -> Prefix:
    """The tokens from the committed text down to `node`."""
    return tuple(draft.tokens[i] for i in draft.path(node))


def judged(
    rule: Rule, target: Tree, draft: Draft, stream: Any, output: Prefix = ()
) -> tuple[Prefix, int]:
    """What `rule` emits behind `output`, and how many of these tokens were accepted."""
    laws = [target[output + along(draft, node)] for node in range(-1, len(draft))]
    verdict = rule(draft, laws, stream)
    kept = tuple(draft.tokens[i] for i in verdict.path)
    return (*kept, verdict.token), verdict.accepted


def round_law(
    rule: Rule,
    target: Tree,
    drafting: Drafting,
    stream: type[Replay] = Replay,
) -> dict[tuple[Prefix, int], Any]:
    """The law of one round: (tokens emitted, how many were accepted) -> probability."""
    return law_of(lambda noise: judged(rule, target, drafting(noise), noise), stream)


def decode(
    rule: Rule,
    target: Tree,
    drafting: Drafting,
    length: int,
    noise: Callable[[int, int], Any],
) -> tuple[Prefix, int]:
    """Rounds until there are `length` tokens: the tokens, and how many were drafted and accepted.

    `noise(start, attempt)` is the noise of a round. The last rounds draft no more than is wanted.
    """
    output: Prefix = ()
    accepted = attempt = 0
    while len(output) < length:
        stream = noise(len(output), attempt)
        draft = drafting(stream, output, length - len(output) - 1)
        emitted, kept = judged(rule, target, draft, stream, output)
        output, accepted, attempt = output + emitted, accepted + kept, attempt + 1
    return output, accepted


def accepted_tokens(emitted: Mapping[tuple[Prefix, int], Any]) -> Any:
    """Expected accepted tokens of a round."""
    return sum(weight * accepted for (_, accepted), weight in emitted.items())


def continued(law: Iterable[tuple[Prefix, Any]], target: Tree, length: int) -> Joint:
    """The law of the first `length` tokens where what is missing comes from the target's laws."""
    joint: Joint = defaultdict(int)
    for tokens, weight in law:
        if len(tokens) >= length:
            joint[tokens[:length]] += weight
            continue
        longer = [((*tokens, x), weight * p) for x, p in support(target[tokens])]
        for sequence, mass in continued(longer, target, length).items():
            joint[sequence] += mass
    return {sequence: mass for sequence, mass in joint.items() if mass != 0}


def target_law(target: Tree, length: int) -> Joint:
    """The target's own joint law of `length` tokens."""
    return continued([((), 1)], target, length)


def output_law(
    rule: Rule,
    target: Tree,
    drafting: Drafting,
    length: int,
    stream: type[Replay] = Replay,
) -> Joint:
    """The law of the first `length` output tokens: one round, then the target's own laws."""
    emitted = round_law(rule, target, drafting, stream)
    return continued(((tokens, w) for (tokens, _), w in emitted.items()), target, length)


def distance(a: Mapping[T, Any], b: Mapping[T, Any]) -> Any:
    """Total variation of two laws."""
    return sum(abs(a.get(x, 0) - b.get(x, 0)) for x in {*a, *b}) / Fraction(2)


# ------------------------------------------------------------------------ the shared race


def race_joint(q: Law, p: Law, size: int) -> dict[tuple[int, int], Any]:
    """The joint law of (argmin E / q, argmin E / p) for one field E of exponentials.

    Let X = i win at u = E_i / q_i and Y = j at v = E_j / p_j. Every E_k must exceed
    max(u q_k, v p_k), so with s = v / u and A(s) = sum over k of max(q_k, s p_k) the probability is
    q_i p_j times the integral of u exp(-u A(s)) du ds, that is of ds / A(s)^2, over
    q_j / p_j <= s <= q_i / p_i. A is linear between its breaks q_k / p_k, and there the integral
    from s to t is (t - s) / (A(s) A(t)). For i = j the noise is the same and s is fixed.
    """
    qs, ps = _full(q, size), _full(p, size)
    breaks = sorted({qk / pk for qk, pk in zip(qs, ps, strict=True) if pk > 0})

    def level(s: Any) -> Any:
        return sum(max(qk, s * pk) for qk, pk in zip(qs, ps, strict=True))

    # integral[m]: from the m-th break to the next one; the last goes to infinity, where A(s) is
    # linear with slope sum(p) = 1.
    pieces = [(t - s) / (level(s) * level(t)) for s, t in itertools.pairwise(breaks)]
    pieces.append(1 / level(breaks[-1]))
    joint = {}
    for i, j in itertools.product(range(size), repeat=2):
        if qs[i] == 0 or ps[j] == 0:
            continue
        if i == j:
            joint[i, j] = qs[i] / level(qs[i] / ps[i])
            continue
        low = breaks.index(qs[j] / ps[j])
        high = breaks.index(qs[i] / ps[i]) if ps[i] > 0 else len(breaks)
        if low < high:
            joint[i, j] = qs[i] * ps[j] * sum(pieces[low:high])
    return joint


def _full(law: Law, size: int) -> list[Any]:
    return [Fraction(law.prob(x)) if x < size else Fraction(0) for x in range(size)]
