"""The dynamic programme that shapes trees, against every tree there is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof import theory
from draftproof.planner import Shape, best_tree

Path = tuple[int, ...]  # the ranks from the root on
Worth = dict[Path, Fraction]

chances = st.fractions(0, 1, max_denominator=12)
costs = st.fractions(0, 1, max_denominator=20)
curves = st.lists(st.fractions(Fraction(1, 2), 3, max_denominator=10), min_size=8, max_size=8)


@cache
def all_trees(ranks: int, depth: int, size: int, inner: int) -> frozenset[frozenset[Path]]:
    """Every tree of `size` tokens: sets of paths that hold each path's beginnings.

    Only a node's first `inner` candidates have others behind them.
    """
    if size == 0:
        return frozenset({frozenset()})
    return frozenset(
        tree | {(*path, rank)}
        for tree in all_trees(ranks, depth, size - 1, inner)
        for path in tree | {()}
        for rank in range(ranks)
        if len(path) < depth and max(path, default=0) < inner and (*path, rank) not in tree
    )


def kept(table: Sequence[Sequence[Fraction]], path: Path) -> Fraction:
    """The chance that all of a path is accepted."""
    return math.prod((table[d][rank] for d, rank in enumerate(path)), start=Fraction(1))


def paths(shape: Shape) -> list[Path]:
    """The path to each token."""
    found: list[Path] = []
    for parent, rank in zip(shape.parents, shape.ranks, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), rank))
    return found


@st.composite
def tables(draw: st.DrawFn) -> list[list[Fraction]]:
    """Chances by depth and rank; at a depth their sum is at most 1."""
    depth, ranks = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    rows = st.lists(chances, min_size=ranks, max_size=ranks)
    made = draw(st.lists(rows, min_size=depth, max_size=depth))
    return [[x / max(1, sum(row)) for x in row] for row in made]


@settings(max_examples=25, deadline=None)
@given(tables(), st.integers(0, 5), curves, costs, st.booleans())
def test_no_tree_is_faster(
    table: list[list[Fraction]],
    limit: int,
    curve: list[Fraction],
    draft_seconds: Fraction,
    trunk: bool,
) -> None:
    """Of all trees, or of those with leaves beside a trunk."""
    shape = best_tree(table, limit, len(table), lambda n: curve[n - 1], draft_seconds, trunk=trunk)
    if trunk:
        assert all(max(path[:-1], default=0) == 0 for path in paths(shape))
    best = speed(table, paths(shape), curve, draft_seconds)
    assert shape.expected == 1 + sum(kept(table, path) for path in paths(shape))
    assert len(shape) <= limit
    assert best == fastest(table, limit, curve, draft_seconds, trunk)


@pytest.mark.parametrize("seed", range(2))
def test_no_tree_of_up_to_seven_tokens_is_faster(seed: int) -> None:
    dice = np.random.default_rng(seed)
    row = sorted((Fraction(int(x), 100) for x in dice.integers(1, 34, 3)), reverse=True)
    table = [[x * Fraction(9, 10) ** d for x in row] for d in range(4)]
    curve = [Fraction(1) + Fraction(n, 12 + 8 * seed) for n in range(8)]
    draft_seconds = Fraction(seed, 30)
    shape = best_tree(table, 7, 4, lambda n: curve[n - 1], draft_seconds)
    assert speed(table, paths(shape), curve, draft_seconds) == fastest(
        table, 7, curve, draft_seconds
    )


def speed(
    table: list[list[Fraction]],
    tree: Sequence[Path] | frozenset[Path],
    curve: list[Fraction],
    draft_seconds: Fraction,
) -> Fraction:
    """Emitted tokens per second."""
    depth = max(map(len, tree), default=0)
    tokens = 1 + sum(kept(table, path) for path in tree)
    return tokens / (curve[len(tree)] + depth * draft_seconds)


def fastest(
    table: list[list[Fraction]],
    limit: int,
    curve: list[Fraction],
    draft_seconds: Fraction,
    trunk: bool = False,
) -> Fraction:
    """By trying every tree without tokens of no chance."""
    ranks, depth = len(table[0]), len(table)
    chance = {
        path: kept(table, path)
        for length in range(1, min(depth, limit) + 1)
        for path in itertools.product(range(ranks), repeat=length)
    }
    best = 1 / curve[0]
    for size in range(1, limit + 1):
        for tree in all_trees(ranks, depth, size, 1 if trunk else ranks):
            worths = [chance[path] for path in tree]
            if 0 not in worths:
                deepest = max(map(len, tree))
                rate = (1 + sum(worths)) / (curve[size] + deepest * draft_seconds)
                best = max(best, rate)
    return best


# ------------------------------------------------------------------------ special cases

some = st.fractions(Fraction(1, 12), 1, max_denominator=12)


@settings(max_examples=50, deadline=None)
@given(st.one_of(some, st.lists(some, min_size=1, max_size=9)), st.integers(0, 7), curves, costs)
def test_one_candidate_per_node_is_a_chain_of_the_best_length(
    alpha: Fraction | list[Fraction], limit: int, curve: list[Fraction], draft_seconds: Fraction
) -> None:
    def pass_seconds(n: int) -> Fraction:
        return curve[n - 1]

    by_depth = isinstance(alpha, list)
    survival = list(itertools.accumulate(alpha, lambda a, b: a * b)) if by_depth else alpha
    table = [[a] for a in alpha] if by_depth else [alpha]
    shape = best_tree(table, limit, limit, pass_seconds, draft_seconds)
    length = theory.best_length(survival, limit, pass_seconds, draft_seconds)
    assert shape.parents == tuple(range(-1, length - 1))
    assert shape.ranks == (0,) * length
    assert shape.expected == theory.expected_tokens(survival, length)
    assert shape.depth == len(shape) == length


def test_the_tree_depends_on_the_chances_and_the_costs() -> None:
    flat = lambda n: 1.0 if n <= 5 else 9.0  # noqa: E731
    sure = best_tree([0.9, 0.05], 8, 8, flat, 0.01)
    assert (sure.parents, sure.ranks) == ((-1, 0, 1, 2), (0, 0, 0, 0))
    unsure = best_tree([0.4, 0.3, 0.2], 8, 8, flat, 0.01)
    assert (unsure.parents, unsure.ranks) == ((-1, -1, -1, 0), (0, 1, 2, 0))
    assert unsure.expected == pytest.approx(1 + 0.4 + 0.3 + 0.2 + 0.4 * 0.4)
    dear = best_tree([0.4, 0.3, 0.2], 8, 8, flat, 0.5)  # depth costs, width does not
    assert (dear.parents, dear.depth) == ((-1, -1, -1), 1)
    assert best_tree([0.4, 0.3, 0.2], 8, 8, lambda n: n, 0.0) == Shape()


def test_a_depth_may_have_fewer_candidates() -> None:
    shape = best_tree([[0.4, 0.4], [0.9, 0.0]], 16, 8, lambda _: 1.0, 0.0)
    assert shape.parents == (-1, -1, 0, 1)
    assert shape.ranks == (0, 1, 0, 0)
    assert shape.expected == pytest.approx(1 + 0.8 + 0.8 * 0.9)


@pytest.mark.parametrize(("limit", "depth"), [(0, 3), (3, 0)])
def test_no_room_is_plain_decoding(limit: int, depth: int) -> None:
    assert best_tree([0.9], limit, depth, lambda _: 1.0, 0.0) == Shape()


def test_floats_agree_with_fractions() -> None:
    exact = [Fraction(11, 20), Fraction(3, 20), Fraction(2, 20)]
    curve = [1 + Fraction(n, 20) for n in range(20)]
    tree = best_tree(exact, 16, 6, lambda n: curve[n - 1], Fraction(1, 50))
    rounded = best_tree([float(x) for x in exact], 16, 6, lambda n: float(curve[n - 1]), 0.02)
    assert len(tree) > tree.depth > 1
    assert (rounded.parents, rounded.ranks) == (tree.parents, tree.ranks)
    assert rounded.expected == pytest.approx(float(tree.expected))
