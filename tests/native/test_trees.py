"""Sessions score trees: every node has the bits of a chain over its path, in any mixture.

All comparisons are `==` on the bits; the last test is the control.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

pytest.importorskip("draftproof._native", reason="the CPU engine was not built")

import mixed_models
from cpu_models import cpu_model, same
from mixed_models import FORMATS, VOCAB, build

from draftproof import _native as native
from draftproof.backends.cpu.model import CpuModel, CpuSession
from draftproof.errors import InvalidInput, OutOfMemory, PromptTooLong
from draftproof.ports import Branching, Pass

TOKENS = np.random.default_rng(7).integers(0, VOCAB, 140).tolist()
PAGE = native.PAGE


@pytest.fixture(
    scope="module", params=[(a, t) for a in mixed_models.TRAITS for t in native.kernels()]
)
def model(request: pytest.FixtureRequest) -> CpuModel:
    """All formats in one model, for every architecture and table of kernels."""
    architecture, table = request.param
    return cpu_model(build(FORMATS, architecture, kernels=table))


def after(model: CpuModel, length: int) -> CpuSession:
    """A session with the first `length` tokens in its cache."""
    session = model.open((1,))
    session.score(TOKENS[:length], keep=0)
    return session


def path_of(parents: Sequence[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


def along(model: CpuModel, length: int, tokens: Sequence[int], parents: Sequence[int]) -> Any:
    """Each node's logits by a chain of its own: what trees are held against."""
    session = after(model, length)
    rows = []
    for node in range(len(tokens)):
        path = path_of(parents, node)
        rows.append(session.score([tokens[i] for i in path], keep=1))
        session.rewind(length)
    return np.concatenate(rows)


def random_tree(random: np.random.Generator, count: int) -> tuple[list[int], list[int]]:
    parents = [int(random.integers(max(-1, i - 4), i)) for i in range(count)]
    return random.integers(0, VOCAB, count).tolist(), parents


@pytest.mark.parametrize("length", [1, 15, 60, 127])
def test_a_tree_in_several_passes(model: CpuModel, length: int) -> None:
    """Nodes follow nodes of earlier passes, and a kept path goes on as a chain."""
    random = np.random.default_rng(length)
    tokens, parents = random_tree(random, 20)
    expected = along(model, length, tokens, parents)
    session = after(model, length)
    for cuts in ((0, 20), (0, 1, 2, 3, 11, 20), (0, 8, 16, 20)):
        parts = [session.score_tree(tokens[a:b], parents[a:b]) for a, b in pairwise(cuts)]
        assert same(np.concatenate(parts), expected)
        assert (session.length, session.sequence.open_rows) == (length, 20)
        session.rewind(length)
    session.score_tree(tokens[:9], parents[:9])
    session.score_tree(tokens[9:], parents[9:])
    path = max((path_of(parents, node) for node in range(20)), key=len)
    assert path != list(range(len(path)))
    session.keep(path)
    assert session.length == length + len(path)
    chain = after(model, length)
    chain.score([tokens[i] for i in path], keep=0)
    assert same(session.score(TOKENS[:9], keep=9), chain.score(TOKENS[:9], keep=9))


def test_trees_and_chains_of_several_sessions_in_one_pass(model: CpuModel) -> None:
    random = np.random.default_rng(1)
    lengths = (3, 40, 17, 70)
    sessions = [after(model, length) for length in lengths]
    trees = [random_tree(random, count) for count in (6, 9)]
    sessions[1].score_tree(trees[1][0][:4], trees[1][1][:4])  # its tree is open already
    logits = model.score_together(
        [
            Pass(sessions[0], tuple(trees[0][0]), 6, tuple(trees[0][1])),
            Pass(sessions[2], tuple(TOKENS[17:40]), 2),
            Pass(sessions[1], tuple(trees[1][0][4:]), 3, tuple(trees[1][1][4:])),
            Pass(sessions[3], tuple(TOKENS[70:71]), 1),
        ]
    )
    assert same(logits[0], along(model, 3, *trees[0]))
    assert same(logits[1], after(model, 17).score(TOKENS[17:40], keep=2))
    assert same(logits[2], along(model, 40, *trees[1])[-3:])
    assert same(logits[3], after(model, 70).score(TOKENS[70:71], keep=1))
    assert [session.length for session in sessions] == [3, 40, 40, 71]


def test_a_tree_that_is_a_chain_is_open_too(model: CpuModel) -> None:
    session = after(model, 20)
    assert isinstance(session, Branching)
    logits = session.score_tree(TOKENS[20:26], range(-1, 5))
    assert same(logits, after(model, 20).score(TOKENS[20:26], keep=6))
    assert session.length == 20
    session.keep(range(3))
    assert session.length == 23
    assert same(session.score(TOKENS[23:24], keep=1), logits[3:4])
    session.score_tree([5], [-1])
    session.keep([])
    assert same(session.score(TOKENS[24:25], keep=1), logits[4:5])


def test_part_of_the_logits(model: CpuModel) -> None:
    narrowed, among = model.narrow([5, VOCAB - 1])
    tokens, parents = random_tree(np.random.default_rng(2), 12)
    session = after(narrowed, 30)
    logits = session.score_tree(tokens, parents)
    expected = along(model, 30, tokens, parents)
    assert same(logits, np.ascontiguousarray(expected[:, among]))


def small(context: int = 4096, pages: int = 100) -> CpuModel:
    page = build(("Q8_0",)).page_bytes
    return cpu_model(build(("Q8_0",), cache_bytes=pages * page), context)


def test_what_cannot_be_leaves_everything_as_it_was() -> None:
    model = small()
    session, other = after(model, 10), after(model, 5)
    first = session.score_tree([1, 2, 3], [-1, -1, 0])
    for tokens, parents in (([4], [3]), ([4], [-2]), ([4, 5], [4, -1]), ([4, 5], [0]), ([], [])):
        with pytest.raises(ValueError, match="node"):
            session.score_tree(tokens, parents)
        with pytest.raises(ValueError, match=r"node|tokens"):
            model.score_together(
                [Pass(other, (1,), 1), Pass(session, tuple(tokens), 0, tuple(parents))]
            )
    with pytest.raises(InvalidInput, match="token id 272"):
        session.score_tree([VOCAB], [0])
    with pytest.raises(ValueError, match="open tree"):
        session.score([1], keep=1)
    for path in ([2], [3], [-1]):
        with pytest.raises(ValueError, match="does not continue the path"):
            session.keep(path)
    assert (session.length, session.sequence.open_rows, other.length) == (10, 3, 5)
    last = session.score_tree([4], [2])
    session.keep([0, 2, 3])
    assert session.length == 13
    alone = after(model, 10).score([1, 3, 4], keep=3)
    assert same(np.concatenate([first[[0, 2]], last]), alone)


def test_the_engine_refuses_rows_that_fit_no_tree() -> None:
    engine = build(("Q8_0",))
    sequence = engine.open()

    def score(parents: list[int], trees: list[bool] | None) -> Any:
        count = len(parents)
        zeros = np.zeros(count, np.int32)
        flags = None if trees is None else np.array(trees)
        return engine.score(
            [sequence] * (len(trees) if trees else 1),
            np.arange(count, dtype=np.int32) % (len(trees) if trees else 1),
            zeros,
            np.array(parents, np.int32),
            np.ones(count, bool),
            flags,
        )

    with pytest.raises(ValueError, match="of a chain does not follow"):
        score([-1, -1], None)
    with pytest.raises(ValueError, match="some rows of a sequence"):
        score([-1, 0], [True, False])
    with pytest.raises(ValueError, match="sequences and trees differ"):
        engine.score([sequence], *[np.zeros(1, np.int32)] * 3, np.ones(1, bool), np.ones(2, bool))
    assert (sequence.length, sequence.open_rows) == (0, 0)


def test_the_context_bounds_paths_not_nodes() -> None:
    model = small(context=10)
    session = after(model, 8)
    session.score_tree([1, 2, 3, 4, 5], [-1, -1, -1, 0, 1])
    with pytest.raises(PromptTooLong, match="11 tokens"):
        session.score_tree([6], [3])
    session.score_tree([6], [2])
    session.keep([2, 5])
    assert session.length == 10
    with pytest.raises(PromptTooLong, match="11 tokens"):
        session.score_tree([6], [-1])


def test_key_and_value_memory_that_ends_within_a_tree() -> None:
    model = small(pages=1)
    session = after(model, PAGE - 2)
    session.score_tree([1, 2], [-1, -1])
    with pytest.raises(OutOfMemory):
        session.score_tree([3], [1])
    assert session.sequence.open_rows == 2
    session.keep([1])
    assert session.length == PAGE - 1
    chain = small().open((1,))
    chain.score([*TOKENS[: PAGE - 2], 2], keep=0)
    assert same(session.score([9], keep=1), chain.score([9], keep=1))


def test_control_another_parent_has_other_bits() -> None:
    model = small()
    session = after(model, 10)
    logits = session.score_tree([1, 2, 3, 3], [-1, -1, 0, 1])
    assert not same(logits[2:3], logits[3:4])
