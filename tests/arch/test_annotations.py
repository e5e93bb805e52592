"""Annotations are checked in every test: a wrong type or shape is refused where it comes in."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest
from beartype.roar import BeartypeCallHintViolation
from typechecker import checked

from draftproof.core import Dense, Float64, Limits, Verdict
from draftproof.rng import race
from draftproof.sampling import log_softmax
from draftproof.theory import walltime_improvement

refused = pytest.raises(BeartypeCallHintViolation)


def test_the_package_refuses_a_wrong_type() -> None:
    with refused:
        Limits("many")  # type: ignore[arg-type]
    with refused:
        Verdict(1, 2, "guessed")  # type: ignore[arg-type]
    with refused:
        walltime_improvement(0.5, 2.5, 0.1)  # type: ignore[arg-type]
    assert walltime_improvement(0, 2, 0) == 1  # an int where a float is due is none


def test_the_package_refuses_a_wrong_shape() -> None:
    with refused:
        Dense(np.zeros((2, 2)))
    with refused:
        log_softmax(np.zeros(3))  # float64 where float32 is due
    with refused:
        race(np.full(3, 1 / 3), np.full(2, 0.5))  # two sizes for "vocab"
    assert race(np.full(2, 0.5), np.full(2, 0.5)) == 0


def test_sizes_hold_for_a_call_and_its_result() -> None:
    @checked
    def first(rows: Float64[np.ndarray, "n"], count: int) -> Float64[np.ndarray, "n"]:
        return rows[:count]

    assert len(first(np.zeros(3), 3)) == 3
    assert len(first(np.zeros(2), 2)) == 2
    with refused:
        first(np.zeros(3), 2)


def test_a_dataclass_stays_what_it_is() -> None:
    @checked
    @dataclass(frozen=True, slots=True)
    class Count:
        number: int

    with refused:
        Count("one")  # type: ignore[arg-type]
    one: Any = Count(1)
    with pytest.raises(FrozenInstanceError):
        one.number = 2
