"""What was measured and learned of a pair, kept on the disk from one process to the next.

A small file (`kept`) holds the costs of one pair on one machine, the corrections that rounds
brought to them and what its drafts were worth.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftproof.errors import InvalidSetting
from draftproof.planner.answers import SPANS
from draftproof.planner.beliefs import BINS
from draftproof.planner.costs import CostCurve, Costs
from draftproof.planner.kept import KeptFile, PairKey
from draftproof.planner.running import Corrections, Taught

_FURTHEST = 5.0  # a correction beyond a factor of exp(5) was not learned from rounds
_COUNT = 1e9

# What reading a file raises that `write` did not write.
_DAMAGE = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError)


@dataclass(frozen=True, slots=True)
class Profile:
    """Costs as measured, and what requests taught; None where none has ended yet."""

    costs: Costs
    taught: Taught | None = None


class ProfileFile:
    """Where the profile of one pair is kept.

    Args:
        folder: Of all profiles; made when one is written.
        key: What the profile is about.
    """

    def __init__(self, folder: Path, key: PairKey) -> None:
        self._file = KeptFile(folder, key)
        self.path = self._file.path

    def read(self) -> Profile | None:
        """The profile; None where there is none, or none that can be used."""
        document = self._file.read()
        if document is None:
            return None
        with suppress(*_DAMAGE, ValueError, InvalidSetting):
            taught = document["taught"]
            return Profile(_costs(document["costs"]), None if taught is None else _taught(taught))
        return None

    def write(self, profile: Profile) -> None:
        """Keep it, where the folder can be written."""
        self._file.write(asdict(profile))


def _costs(found: Any) -> Costs:
    curve = found["curve"]
    sizes = tuple(int(n) for n in curve["sizes"])
    samples = tuple(_numbers(row, 0.0, math.inf) for row in curve["samples"])
    if any(len(row) != len(sizes) or not all(row) for row in samples):
        raise ValueError("a repeat is a time for each size")
    seconds = _numbers(curve["seconds"], 0.0, math.inf)
    return Costs(
        CostCurve(sizes, seconds, samples), _numbers(found["draft_samples"], 0.0, math.inf)
    )


def _taught(found: Any) -> Taught:
    corrections = found["corrections"]
    accepted, rejected, plain, patience = _numbers(
        [found[name] for name in ("accepted", "rejected", "plain", "patience")], 0.0, _COUNT
    )
    if accepted + rejected == 0 or patience < 1:
        raise ValueError("there is no acceptance rate, or no patience")
    (gained,) = _numbers([found["gained"]], -_COUNT, _COUNT)
    passes, tokens = _numbers(found["aided"], 0.0, _COUNT)
    alike, more, draft, read = _numbers(
        [corrections[name] for name in ("all", "more", "draft", "read")], -_FURTHEST, _FURTHEST
    )
    own = _numbers(corrections["own"], -_FURTHEST, _FURTHEST)
    return Taught(
        accepted=accepted,
        rejected=rejected,
        corrections=Corrections(alike, more, own, draft, read),
        tried=bool(found["tried"]),
        plain=int(plain),
        patience=int(patience),
        beliefs={str(name): _counts(rows, BINS) for name, rows in found["beliefs"].items()},
        answers=_counts(found["answers"], SPANS),
        gained=gained,
        aided=(passes, tokens),
    )


def _counts(rows: Any, length: int) -> tuple[tuple[float, float], ...]:
    """Pairs: how many of how many, and so many of them."""
    counts = []
    for row in rows:
        some, of = _numbers(row, 0.0, _COUNT)
        if some > of:
            raise ValueError("more were counted than there were")
        counts.append((some, of))
    if len(counts) != length:
        raise ValueError(f"there are {len(counts)} pairs of counts, not {length}")
    return tuple(counts)


def _numbers(found: Any, low: float, high: float) -> tuple[float, ...]:
    """Finite numbers from `low` to `high`."""
    numbers = tuple(float(number) for number in found)
    if not all(math.isfinite(number) and low <= number <= high for number in numbers):
        raise ValueError(f"a number is not from {low} to {high}")
    return numbers
