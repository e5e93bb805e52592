"""The form of a tree: which candidates are worth a row of the target's pass.

The dynamic programme of Sequoia (Chen et al. 2024, arXiv 2402.12374), bounded in depth and with
chances that may depend on it. A token is kept with the product of the chances along the path to it,
so the best tree of n tokens below a node is put together from the best trees of fewer tokens below
its children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from draftproof.core import Int64, Real, Shaped, depth_of
from draftproof.theory import PassSeconds

# chances[b]: how probably the b-th candidate at a node is the one that is kept, given that the walk
# reached the node; or chances[d][b], d counting the tokens above, with 0 for no candidate.
Chances: TypeAlias = Sequence[Real] | Sequence[Sequence[Real]]
# By depth and rank; what they hold stands at `_programme`.
Parts: TypeAlias = list[list[Int64[np.ndarray, "_ _"]]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A tree before its tokens are known, by rising depth.

    Args:
        parents: As in `Draft.parents`.
        ranks: Which of its parent's candidates each token is, counting from 0.
        expected: Tokens that a round with it emits: one, and the accepted ones.
    """

    parents: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    expected: Real = 1

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def depth(self) -> int:
        """Tokens on the longest path."""
        return depth_of(self.parents)


def best_tree(
    chances: Chances,
    limit: int,
    depth: int,
    pass_seconds: PassSeconds,
    draft_seconds: Real,
    *,
    trunk: bool = False,
) -> Shape:
    """The tree with the most emitted tokens per second, G(n, d) / (t(n + 1) + d c).

    Of n tokens and depth d, G being what it is expected to emit. Among equals the smallest and then
    the flattest; none at all is plain decoding. With one candidate per node it is a chain of
    `theory.best_length` tokens. A candidate of no chance is never drafted.

    Args:
        chances: Of each candidate, by rank; where they depend on the depth, they bound it.
        limit: Most tokens.
        depth: Most tokens on a path.
        pass_seconds: t, seconds of a pass of the target over n tokens, n = 1, 2, ...
        draft_seconds: c, seconds of drafting at one depth, however many tokens.
        trunk: Only the first candidate at a node may have others behind it: the drafter looks
            behind one token at each depth, and the other candidates are leaves.
    """
    table = np.array(chances)
    if table.ndim == 1:
        table = np.tile(table, (depth, 1))
    worths, parts = _programme(table[:depth], limit, 1 if trunk else table.shape[1])
    gains = worths.tolist()
    seconds = [pass_seconds(n + 1) for n in range(limit + 1)]
    options = [(0, 0)] + [
        (n, d)
        for n in range(1, limit + 1)
        for d in range(1, len(gains))
        if gains[d][n] > gains[d][n - 1]
    ]
    rates = [(1 + gains[d][n]) / (seconds[n] + d * draft_seconds) for n, d in options]
    n, d = options[rates.index(max(rates))]
    return _grown(parts, n, d, 1 + gains[d][n])


def _programme(
    table: Shaped[np.ndarray, "depths ranks"], limit: int, inner: int
) -> tuple[Shaped[np.ndarray, "bounds tokens"], Parts]:
    """The worth of the best trees, for every bound on the depth at once.

    Only a node's first `inner` candidates have others behind them.

    Returns:
        Expected accepted tokens of the best tree of up to n tokens and depth d, at [d, n]. And for
        each depth l and rank b, at [d - l - 1, n]: how many of n tokens below a node at depth l go
        to its b-th child and what hangs from it, where these are all that ranks up to b have.
    """
    depths, ranks = table.shape
    tokens = np.arange(limit + 1)
    left = limit + tokens[:, None] - tokens  # [n, m]: n - m tokens, behind as many impossible ones
    impossible = np.full((depths + 1, limit), -np.inf)
    below = np.zeros((depths + 1, limit + 1), table.dtype)  # by bound: no child is that deep
    parts: Parts = []
    for level in reversed(range(depths)):
        child = np.zeros((depths - level, limit + 1), table.dtype)
        child[:, 1:] = 1 + below[level + 1 :, :-1]
        leaf = np.zeros_like(child)
        leaf[:, 1:] = 1
        worth = np.zeros_like(child)
        parts.insert(0, [])
        for rank in range(ranks):
            behind = child if rank < inner else leaf
            padded = np.concatenate([impossible[level + 1 :], worth], axis=1)
            sums = padded[:, left] + (table[level, rank] * behind)[:, None, :]
            part = sums.argmax(axis=2)
            worth = np.take_along_axis(sums, part[:, :, None], axis=2)[:, :, 0]
            parts[0].append(part)
        below = np.zeros((depths + 1, limit + 1), table.dtype)
        below[level + 1 :] = worth
    return below, parts


def _grown(parts: Parts, tokens: int, depth: int, expected: Real) -> Shape:
    """The tree of `tokens` tokens and at most `depth` that the programme put together."""
    parents: list[int] = []
    ranks: list[int] = []
    nodes = [(-1, 0, tokens)]  # by rising depth: the node, its depth, and the tokens below it
    for node, level, left in nodes:
        children = []
        for rank in reversed(range(len(parts[level]) if left else 0)):
            part = int(parts[level][rank][depth - level - 1, left])
            left -= part  # noqa: PLW2901 what the lower ranks have
            if part:
                children.append((rank, part))
        for rank, part in reversed(children):
            nodes.append((len(parents), level + 1, part - 1))
            parents.append(node)
            ranks.append(rank)
    return Shape(tuple(parents), tuple(ranks), expected)
