"""Logits lie in memory that is used again, and never while anybody holds them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("draftproof._native", reason="the CPU engine was not built")

from cpu_models import cpu_model, same
from mixed_models import VOCAB, build

TOKENS = np.random.default_rng(5).integers(0, VOCAB, 60).tolist()


def address(logits: np.ndarray) -> int:
    return int(logits.__array_interface__["data"][0])


def test_freed_logits_are_used_again() -> None:
    session = cpu_model(build(("Q8_0",))).open((1,))
    logits = session.score(TOKENS[:8], keep=8)
    before = address(logits)
    held = session.score(TOKENS[:8], keep=8)
    assert address(held) != before
    del logits
    assert address(session.score(TOKENS[:7], keep=7)) == before
    held = session.score(TOKENS[:1], keep=0)
    assert held.shape == (0, VOCAB)


def test_a_row_is_enough_to_hold_them() -> None:
    session = cpu_model(build(("Q8_0",))).open((1,))
    logits = session.score(TOKENS[:8], keep=8)
    start, end = address(logits), address(logits) + logits.nbytes
    row = logits[5]
    expected = row.copy()
    del logits
    for _ in range(4):
        assert not start <= address(session.score(TOKENS[:8], keep=8)) < end
    assert same(row, expected)


def test_a_pass_over_few_rows_holds_no_memory_of_many() -> None:
    session = cpu_model(build(("Q8_0",))).open((1,))
    many = session.score(TOKENS, keep=60)
    before = address(many)
    del many
    assert address(session.score(TOKENS[:20], keep=20)) != before


def test_they_outlive_their_model() -> None:
    session = cpu_model(build(("Q8_0",))).open((1,))
    logits = session.score(TOKENS, keep=60)
    expected = logits.copy()
    session.close()
    del session
    assert same(logits, expected)


def test_held_logits_never_change() -> None:
    """Threads keep a random part of what they were given, of passes of many sizes."""
    model = cpu_model(build(("Q8_0",), threads=1))
    narrowed, among = model.narrow(range(100, 140))
    alone = model.open((1,)).score(TOKENS, keep=60)
    wrong: list[str] = []

    def live(seed: int) -> None:
        random = np.random.default_rng(seed)
        sessions = [(model.open((1,)), alone), (narrowed.open((1,)), alone[:, among])]
        held: list[tuple[Any, Any]] = []
        for _ in range(150):
            session, expected = sessions[int(random.integers(2))]
            count = int(random.integers(1, 16))
            start = int(random.integers(0, min(session.length, 60 - count) + 1))
            session.rewind(start)
            logits = session.score(TOKENS[start : start + count], keep=count)
            row = int(random.integers(count))
            held.append((logits[row], expected[start + row]))
            if len(held) > 12:
                held.pop(int(random.integers(len(held))))
            if not all((got == want).all() for got, want in held):
                wrong.append(f"seed {seed}")

    threads = [threading.Thread(target=live, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
