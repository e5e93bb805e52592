"""Suffix decoding: what followed most often after the longest end of the text that occurred before?

Oliaro et al. 2025, "SuffixDecoding" (arXiv 2411.04975), on suffix automata. Two texts are searched:
the request's own, prompt and output, and a store of past outputs. Each drafted token is the most
frequent continuation, the latest among equals, of the longest match; of the two texts' the one
that is surer. Worked example:

    text      1 2 3 8 4 1 2 3 9 5 1 2 3 9 6 1 2 3     1 2 3 was met before, and 9 mostly followed
    draft     9 6 1 2 3 9 6 1                         1 2 3 9: 5 and 6 followed, 6 more lately

The token behind the drafted ones is found in the same way, so that a copy that reaches the end of
the text goes on with what it copied, and periodic text continues with its period.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from draftproof.core import Draft, PointMass, Prompt, Verdict
from draftproof.drafters.automaton import ROOT, Automaton, Place
from draftproof.drafters.past import PastOutputs
from draftproof.drafters.unguided import UNGUIDED
from draftproof.errors import InvalidSetting
from draftproof.ports import Guide, Standardise
from draftproof.rng import Chooser

_NAME = "suffix"

# Occurrences without the continuation that are added to those of a context of one token.
_DOUBT = 2.3

# Where the request's own text and the past outputs stand.
Walk: TypeAlias = "tuple[Place, Place]"


def confidence(count: int, total: int, length: int) -> float:
    """How sure a continuation is: count / (total + 2.3 / length), below 1.

    The share of the context's occurrences that it followed, held down by doubt that falls as the
    match grows: 0.30 after one token that was met once, 0.81 after ten. As a probability of being
    right it was fitted to greedy outputs of a 135M model, and to code, solutions and articles: its
    log loss is 0.509 there, that of the share alone with its best constant 0.612, and that of a
    logistic curve in the logarithms of all three numbers 0.500.

    Args:
        count: How often the continuation followed the context, at least 1.
        total: How often anything did.
        length: Tokens of the context, at least 1.
    """
    return count / (total + _DOUBT / length)


class SuffixDrafter:
    """Drafts by copying the most frequent continuation. Every choice is certain.

    Args:
        store: Past outputs to copy from; None for the request's own text alone.
        learn: Add each request's output to the store when the request is closed. Drafts then
            depend on what was written before, and so does the text of a seeded request under
            another rule than `coupled`.
        max_match: Most tokens of a match in the request's own text.
        factor: A draft has at most `factor` tokens for each of the match's and `offset` more. By
            default nine in ten copies of ordinary text end within that.
        offset: See `factor`.

    Raises:
        InvalidSetting: A value is out of range.
    """

    name = _NAME
    model = None

    def __init__(
        self,
        store: PastOutputs | None = None,
        *,
        learn: bool = True,
        max_match: int = 32,
        factor: int = 2,
        offset: int = 2,
    ) -> None:
        if max_match < 1 or factor < 0 or offset < 0 or factor + offset < 1:
            raise InvalidSetting(
                f"max_match is {max_match}, factor {factor} and offset {offset}",
                why="a match of up to max_match tokens allows factor tokens for each, and offset",
                remedy="set max_match to 1 or more, factor and offset to 0 or more, not both 0",
            )
        self.store = store
        self.learn = learn
        self.max_match = max_match
        self.factor = factor
        self.offset = offset

    def begin(self, prompt: Prompt, standardise: Standardise) -> SuffixProposer:
        """Index the prompt. Speech features hold no tokens: then the output alone is the text."""
        return SuffixProposer(self, prompt if isinstance(prompt, tuple) else ())


class SuffixProposer:
    """One request's text and where its end stands.

    Args:
        drafter: Its settings and the store.
        prompt: The text before the output.
    """

    def __init__(self, drafter: SuffixDrafter, prompt: tuple[int, ...]) -> None:
        self._drafter = drafter
        self._store = drafter.store
        self._lock: AbstractContextManager[object] = (
            nullcontext() if self._store is None else self._store.lock
        )
        self._own = Automaton(drafter.max_match)
        self._own.extend(prompt)
        self._past = Automaton(drafter.max_match)
        self._past_size = 0
        self._start: Walk = (self._own.place(), ROOT)
        self._output: list[int] = []
        self._drafted: Draft | None = None  # until its verdict
        self._emitted: list[int] = []  # by the last draft's verdict, until the next output has it
        self._peeked: tuple[list[int], Walk] = ([], self._start)
        self._closed = False

    def draft(self, output: Sequence[int], limit: int, stream: Chooser) -> Draft:
        """A chain of up to `limit` tokens; none without a match. `output` extends the last one."""
        return self.follow(output, limit, stream, UNGUIDED)

    def follow(self, output: Sequence[int], limit: int, stream: Chooser, guide: Guide) -> Draft:
        """As `draft`, for as long as the guide wants; a tree where it may branch."""
        with self._lock:
            self._sync(output)
            longest = max(length for _, length in self._start)
            limit = min(limit, self._drafter.factor * longest + self._drafter.offset)
            grow = self._tree if guide.branching else self._chain
            tokens, parents = grow(limit, guide)
        laws = tuple(map(PointMass, tokens))
        self._drafted = Draft(tuple(tokens), laws, tuple(parents), (_NAME,) * len(tokens))
        return self._drafted

    def peek(self, output: Sequence[int], drafted: Sequence[int]) -> tuple[int, float] | None:
        """What continues the text, whoever drafted its end.

        Args:
            output: As in `draft`.
            drafted: What may follow it. Cheapest where it extends that of the last call.

        Returns:
            The token and its confidence; None without a match. The same as `draft` drafts, with no
            bound on the length.
        """
        with self._lock:
            self._sync(output)
            known, walk = self._peeked
            if known != list(drafted[: len(known)]):
                known, walk = [], self._start
            for token in drafted[len(known) :]:
                walk = self._advance(walk, token)
            self._peeked = (list(drafted), walk)
            return self._guess(walk)

    def observe(self, verdict: Verdict) -> None:
        """Remember what was emitted, in case that this was the last round."""
        if self._drafted is not None:
            self.remember(self._drafted, verdict)
            self._drafted = None

    def remember(self, draft: Draft, verdict: Verdict) -> None:
        """The same of a draft that others made."""
        self._emitted = [*(draft.tokens[node] for node in verdict.path), verdict.token]

    def close(self) -> None:
        """Give the output, as far as it was seen, to the store, and free the index."""
        if self._closed:
            return
        self._closed = True
        self._own = self._past = Automaton(self._drafter.max_match)
        if self._store is not None and self._drafter.learn:
            self._store.add([*self._output, *self._emitted])

    def _sync(self, output: Sequence[int]) -> None:
        """Take in what is new in the output and in the store."""
        new = list(output[len(self._output) :])
        self._drafted = None
        self._emitted = []
        self._output.extend(new)
        self._own.extend(new)
        past = self._past if self._store is None else self._store.index
        at = self._start[1]
        if past is not self._past or len(past) != self._past_size:
            self._past, self._past_size = past, len(past)
            at, new = ROOT, list(self._own.text[-past.depth :])
        elif not new:
            return
        for token in new:
            at = past.advance(at, token)
        self._start = (self._own.place(), at)
        self._peeked = ([], self._start)

    def _advance(self, walk: Walk, token: int) -> Walk:
        own, past = walk
        return self._own.advance(own, token), self._past.advance(past, token)

    def _guess(self, walk: Walk) -> tuple[int, float] | None:
        """The surer of the two texts' most frequent continuations: token and confidence."""
        own, past = walk
        found = None
        if own[1]:
            token, count = self._own.best(own)
            found = token, confidence(count, self._own.total(own), own[1])
        if past[1]:
            token, count = self._past.best(past)
            sure = confidence(count, self._past.total(past), past[1])
            if found is None or sure > found[1]:
                found = token, sure
        return found

    def _ranked(self, walk: Walk) -> list[tuple[int, float]]:
        """All continuations and their confidence, the surest first: what `_guess` says.

        Each can be right only where those before it are wrong: of k whose shares and doubts alone
        would give c_1 >= ... >= c_k, the last has c_k (1 - c_1) ... (1 - c_{k-1}).
        """
        found: dict[int, float] = {}
        for text, place in zip((self._own, self._past), walk, strict=True):
            if not place[1]:
                continue
            total = text.total(place)
            for token, count in text.followers(place):
                sure = confidence(count, total, place[1])
                if sure > found.get(token, 0.0):
                    found.pop(token, None)  # its turn among equals is this text's
                    found[token] = sure
        order = sorted(found.items(), key=lambda item: -item[1])
        left = 1.0
        for rank, (token, sure) in enumerate(order):
            order[rank] = (token, sure * left)
            left *= 1 - sure
        return order

    def _chain(self, limit: int, guide: Guide) -> tuple[list[int], list[int]]:
        """Tokens, each behind the one before; parents are not needed."""
        tokens: list[int] = []
        walk = self._start
        for _ in range(min(limit, guide.nodes)):
            guess = self._guess(walk)
            if guess is None or guide.value(_NAME, guess[1]) <= 0:
                break
            guide.take(_NAME, guess[1])
            tokens.append(guess[0])
            walk = self._advance(walk, guess[0])
        return tokens, []

    def _tree(self, limit: int, guide: Guide) -> tuple[list[int], list[int]]:
        """Tokens and parents, the most valuable first.

        A node's best continuation is a candidate once the node is taken, and its next best once
        that one is: values only fall from there, so that the best candidate is the best node.
        """
        tokens: list[int] = []
        parents: list[int] = []
        heap: list[tuple[float, int, _Candidate]] = []
        order = 0  # of candidates, among equal values

        def offer(candidate: _Candidate | None) -> None:
            nonlocal order
            if candidate is not None:
                value = guide.value(_NAME, candidate.sure, after=candidate.after)
                heapq.heappush(heap, (-value, order, candidate))
                order += 1

        offer(self._first(self._start, -1, 1))
        while heap and len(tokens) < guide.nodes:
            stale, turn, chosen = heapq.heappop(heap)
            value = guide.value(_NAME, chosen.sure, after=chosen.after)
            if -value > stale and heap and -value > heap[0][0]:  # fell behind since it was offered
                heapq.heappush(heap, (-value, turn, chosen))
                continue
            if value <= 0:
                break
            guide.take(_NAME, chosen.sure, after=chosen.after)
            tokens.append(chosen.token)
            parents.append(chosen.after)
            if chosen.depth < limit:
                walk = self._advance(chosen.walk, chosen.token)
                offer(self._first(walk, len(tokens) - 1, chosen.depth + 1))
            offer(self._sibling(chosen))
        return tokens, [] if parents == list(range(-1, len(tokens) - 1)) else parents

    def _first(self, walk: Walk, after: int, depth: int) -> _Candidate | None:
        """The best continuation of a node."""
        guess = self._guess(walk)
        return None if guess is None else _Candidate(*guess, after, depth, walk)

    def _sibling(self, taken: _Candidate) -> _Candidate | None:
        """The next best after one that was taken."""
        others = self._ranked(taken.walk)[1:] if taken.others is None else taken.others
        if not others:
            return None
        return _Candidate(*others[0], taken.after, taken.depth, taken.walk, others[1:])


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A token that a tree may take: behind node `after`, which stands at `walk`.

    `others` follow it in the order of their confidence; None where they are not ranked yet.
    """

    token: int
    sure: float
    after: int
    depth: int
    walk: Walk
    others: list[tuple[int, float]] | None = None
