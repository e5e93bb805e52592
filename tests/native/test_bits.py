"""Bit for bit: a position's logits are the same whatever is computed beside it.

All comparisons are `==` on the bits. The last tests are the controls: what must differ does.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest

pytest.importorskip("draftproof._native", reason="the CPU engine was not built")

import mixed_models
from cpu_models import same
from mixed_models import FORMATS, VOCAB, build, one_by_one, score

from draftproof import _native as native

TABLES = native.kernels()
ARCHITECTURES = list(mixed_models.TRAITS)
LENGTH = 140  # two boundaries of pages
TOKENS = np.random.default_rng(7).integers(0, VOCAB, LENGTH).tolist()


@pytest.fixture(scope="module", params=[(a, t) for a in ARCHITECTURES for t in TABLES])
def model(request: pytest.FixtureRequest) -> Any:
    """All formats in one model, for every architecture and table of kernels."""
    architecture, table = request.param
    return build(FORMATS, architecture, kernels=table)


@pytest.fixture(scope="module")
def alone(model: Any) -> np.ndarray:
    return one_by_one(model, TOKENS)


def test_logits_are_sane(alone: np.ndarray) -> None:
    """So that the other tests compare numbers, and different ones."""
    assert np.isfinite(alone).all()
    assert 0.05 < alone.std() < 50
    assert len({row.tobytes() for row in alone}) == LENGTH


def test_the_whole_prompt_in_one_pass(model: Any, alone: np.ndarray) -> None:
    assert same(score(model, model.open(), TOKENS), alone)


@pytest.mark.parametrize("n", range(1, 17))
def test_passes_of_n(model: Any, alone: np.ndarray, n: int) -> None:
    sequence = model.open()
    start = LENGTH - 5 * n if n > 8 else 64 - n  # over a boundary
    score(model, sequence, TOKENS[:start])
    for at in range(start, min(start + 4 * n, LENGTH - n + 1), n):
        assert same(score(model, sequence, TOKENS[at : at + n]), alone[at : at + n])


def test_after_rewinds(model: Any, alone: np.ndarray) -> None:
    sequence = model.open()
    score(model, sequence, TOKENS[:70])
    for back in (69, 64, 63, 17, 16, 1, 0):
        score(model, sequence, [(t + 1) % VOCAB for t in TOKENS[:23]])
        sequence.rewind(back)
        assert same(score(model, sequence, TOKENS[back:70]), alone[back:70])


@pytest.mark.parametrize("base", [1, 15, 16, 60, 64, 127])
@pytest.mark.parametrize("seed", [0, 1])
def test_trees(model: Any, alone: np.ndarray, base: int, seed: int) -> None:
    """Every row of a random tree equals its path scored alone; a kept path goes on as a chain."""
    random = np.random.default_rng([seed, base])
    count = int(random.integers(5, 13))
    parents = [int(random.integers(-1, i)) for i in range(count)]
    tokens = random.integers(0, VOCAB, count).tolist()
    sequence = model.open()
    score(model, sequence, TOKENS[:base])
    logits = score(model, sequence, tokens, parents)
    assert (sequence.length, sequence.open_rows) == (base, count)
    deepest: list[int] = []
    chain = model.open()
    score(model, chain, TOKENS[:base])
    for row in range(count):
        path = [row]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        if len(path) > len(deepest):
            deepest = path
        chain.rewind(base)
        expected = score(model, chain, [tokens[i] for i in path])
        assert same(logits[row : row + 1], expected[-1:])
    sequence.keep(deepest)
    follow = score(model, sequence, TOKENS[:9])
    chain = model.open()
    score(model, chain, TOKENS[:base] + [tokens[i] for i in deepest])
    assert same(follow, score(model, chain, TOKENS[:9]))


def test_beside_other_sequences(model: Any, alone: np.ndarray) -> None:
    """Prompts, drafts and single tokens of four sequences in one pass, their rows mixed."""
    starts = [0, 3, 40, 90]
    lengths = [30, 1, 8, 12]
    sequences = [model.open() for _ in starts]
    for sequence, start in zip(sequences, starts, strict=True):
        if start:
            score(model, sequence, TOKENS[:start])
    order = [i for i, length in enumerate(lengths) for _ in range(length)]
    np.random.default_rng(3).shuffle(order)
    tokens, parents, expected = [], [], []
    done = [0] * 4
    for owner in order:
        position = starts[owner] + done[owner]
        tokens.append(TOKENS[position])
        parents.append(done[owner] - 1)
        expected.append(alone[position])
        done[owner] += 1
    logits = model.score(
        sequences,
        np.array(order, np.int32),
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.ones(len(order), bool),
    )
    assert same(logits, np.stack(expected))
    assert [s.length for s in sequences] == [a + b for a, b in zip(starts, lengths, strict=True)]


def test_only_the_kept_rows_come_back(model: Any, alone: np.ndarray) -> None:
    keep = np.zeros(40, bool)
    keep[[3, 17, 39]] = True
    logits = model.score(
        [model.open()],
        np.zeros(40, np.int32),
        np.array(TOKENS[:40], np.int32),
        np.arange(-1, 39, dtype=np.int32),
        keep,
    )
    assert same(logits, alone[[3, 17, 39]])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_by_itself(kind: str, table: str) -> None:
    model = build((kind,), kernels=table)
    alone = one_by_one(model, TOKENS[:40])
    sequence = model.open()
    parts = [score(model, sequence, TOKENS[a:b]) for a, b in itertools.pairwise((0, 11, 27, 40))]
    assert same(np.concatenate(parts), alone)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_number_of_threads(architecture: str) -> None:
    models = [build(FORMATS, architecture, threads=threads) for threads in (1, 2, 3, 5)]
    for tokens in (TOKENS[:1], TOKENS[:8], TOKENS):
        first, *others = [score(model, model.open(), tokens) for model in models]
        assert all(same(first, other) for other in others)


def test_threads_that_change_between_two_passes() -> None:
    """Of one sequence: fewer, more, on processors of their own, and back."""
    model = build(FORMATS, threads=2)
    alone = one_by_one(model, TOKENS)
    sequence, at = model.open(), 0
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    choices = [(3, []), (1, []), (len(processors) or 1, processors), (2, [])]
    for threads, places in choices * 4:
        model.use_threads(threads, places)
        assert model.threads == threads
        n = 1 + at % 8
        assert same(score(model, sequence, TOKENS[at : at + n]), alone[at : at + n])
        at += n
    assert at > 64  # over a boundary of pages


def test_a_prompt_of_several_chunks() -> None:
    model = build(FORMATS, "gemma3")
    tokens = np.random.default_rng(0).integers(0, VOCAB, 700).tolist()
    whole = score(model, model.open(), tokens)
    sequence = model.open()
    parts = [score(model, sequence, tokens[a : a + 100]) for a in range(0, 700, 100)]
    assert same(whole, np.concatenate(parts))


def test_control_other_numbers_have_other_bits() -> None:
    """`same` can fail: where an earlier token differs, and where a float's last bit does."""
    model = build(FORMATS)
    logits = one_by_one(model, TOKENS[:20])
    changed = one_by_one(model, [(TOKENS[0] + 1) % VOCAB, *TOKENS[1:20]])
    assert not same(logits[19:], changed[19:])
    assert not same(logits, np.nextafter(logits, np.float32(np.inf)))
