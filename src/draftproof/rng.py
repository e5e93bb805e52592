"""Randomness as an argument: counter-based noise addressed by seed, position, purpose and attempt.

No generator carries state, so nothing that was drawn for one token can shift another's noise, and
the global generators are never touched. The bits are Philox4x64 (Salmon et al., SC 2011), whose raw
stream NumPy keeps stable.

Two streams give noise its meaning:

`Independent`
    for the rejection rules (`token`, `block`). Every draw is fresh. The *attempt*, the number of
    the round, is part of the address: the block rule looks at noise behind the position where it
    stops, so a later round that met the same noise at the same position would be biased.
`Shared`
    for the `coupled` rule. Draft and target meet the same exponential noise at a position in every
    round, so that the emitted token depends on seed, position and target law only
    (Daliri, Musco, Suresh 2024, arXiv 2408.07978).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np

from draftproof.core import Float64, Law, PointMass, Probs, Real
from draftproof.errors import InvalidSetting

SEEDS = 2**64
PART = 512  # tokens whose probabilities are added up together


class Purpose(IntEnum):
    """What a random number is for; part of its address."""

    DRAFT = 1
    ACCEPT = 2
    TARGET = 3
    RACE = 4


@runtime_checkable
class Chooser(Protocol):
    """What a drafter and the `coupled` rule ask of a round's noise."""

    def draft(self, index: int, law: Law) -> int:
        """The drafter's choice at the round's `index`-th token, by `law`."""
        ...

    def target(self, index: int, law: Law) -> int:
        """The token emitted at the round's `index`-th position, by `law`."""
        ...


@runtime_checkable
class Stream(Chooser, Protocol):
    """What the rejection rules ask besides: coins."""

    def accept(self, index: int, probability: Real) -> bool:
        """True with the given probability."""
        ...


class Noise:
    """The random numbers of one request: a pure function of their address.

    Args:
        seed: An integer from 0 to 2**64 - 1.

    Raises:
        InvalidSetting: The seed is out of range.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < SEEDS:
            raise InvalidSetting(
                f"seed {seed} is out of range",
                why="seeds are unsigned 64-bit integers",
                remedy=f"choose a seed from 0 to {SEEDS - 1}",
            )
        self.seed = seed

    def uniforms(
        self, purpose: Purpose, position: int, count: int = 1, attempt: int = 0
    ) -> Float64[np.ndarray, "count"]:
        """`count` numbers in the open interval (0, 1); a longer run begins with the shorter one."""
        bits = np.random.Philox(key=self.seed, counter=[0, position, purpose, attempt])
        raw = bits.random_raw(count) >> np.uint64(12)  # 52 bits: adding a half is then exact
        uniforms: Float64[np.ndarray, "count"] = (raw + 0.5) * 2.0**-52
        return uniforms


def inverse_cdf(probs: Probs, uniform: float) -> int:
    """The token whose interval of the cumulated `probs` holds `uniform`; never one of mass 0.

    Sums of `PART` tokens find the part that it is in: one sum after another over all of them would
    take ten times as long.
    """
    held = np.cumsum(np.add.reduceat(probs, np.arange(0, len(probs), PART)))
    point = uniform * held[-1]
    part = int(np.searchsorted(held, point, side="right"))
    first = part * PART
    inside = np.cumsum(probs[first : first + PART])
    before = held[part - 1] if part else 0.0
    token = first + int(np.searchsorted(inside, point - before, side="right"))
    if token < first + len(inside):
        return token
    return int(np.flatnonzero(probs[:token])[-1])  # the point was rounded up to the part's end


def race(probs: Probs, uniforms: Float64[np.ndarray, "vocab"]) -> int:
    """The winner of the exponential race: argmin of E_i / p_i with E_i = -log(uniform_i)."""
    with np.errstate(divide="ignore", over="ignore"):  # p_i of 0, or nearly: never the winner
        winner = int(np.argmax(np.log(uniforms) / probs))
    if probs[winner] > 0:
        return winner
    return int(np.argmax(probs))  # every mass is so small that its quotient overflowed


class Independent:
    """Fresh noise for every draw of one round, for the rejection rules.

    Args:
        noise: The request's noise.
        start: Output position of the round's first token.
        attempt: Number of the round.
    """

    def __init__(self, noise: Noise, start: int, attempt: int) -> None:
        self._noise = noise
        self._start = start
        self._attempt = attempt

    def _uniform(self, purpose: Purpose, index: int) -> float:
        return float(self._noise.uniforms(purpose, self._start + index, 1, self._attempt)[0])

    def _draw(self, purpose: Purpose, index: int, law: Law) -> int:
        if isinstance(law, PointMass):
            return law.token
        return inverse_cdf(law.probs, self._uniform(purpose, index))

    def draft(self, index: int, law: Law) -> int:
        """The drafter's choice at the round's `index`-th token."""
        return self._draw(Purpose.DRAFT, index, law)

    def accept(self, index: int, probability: Real) -> bool:
        """A coin with the given probability of True."""
        return bool(self._uniform(Purpose.ACCEPT, index) < probability)

    def target(self, index: int, law: Law) -> int:
        """The token emitted at `index`, drawn from `law`."""
        return self._draw(Purpose.TARGET, index, law)


class Shared:
    """One exponential race per position, met by draft and target alike, for the `coupled` rule.

    Args:
        noise: The request's noise.
        start: Output position of the round's first token.
    """

    def __init__(self, noise: Noise, start: int) -> None:
        self._noise = noise
        self._start = start
        self._fields: dict[int, Float64[np.ndarray, "vocab"]] = {}

    def _race(self, index: int, law: Law) -> int:
        if isinstance(law, PointMass):
            return law.token
        field = self._fields.get(index)
        if field is None or len(field) < len(law.probs):
            position = self._start + index
            field = self._noise.uniforms(Purpose.RACE, position, len(law.probs))
            self._fields[index] = field
        return race(law.probs, field[: len(law.probs)])

    def draft(self, index: int, law: Law) -> int:
        """The drafter's choice at the round's `index`-th token."""
        return self._race(index, law)

    def target(self, index: int, law: Law) -> int:
        """The token emitted at `index`: what plain decoding with this seed emits there."""
        return self._race(index, law)
