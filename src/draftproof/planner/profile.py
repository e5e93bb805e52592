"""What was measured and learned of a pair, kept on the disk from one process to the next.

A small file holds the costs of one pair on one machine, the corrections that rounds brought to them
and what its drafts were worth. Nothing depends on it: where it is missing, damaged, of another
format or about something else, costs are measured anew, and a folder that cannot be written holds
no files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftproof.errors import InvalidSetting
from draftproof.files import replacing
from draftproof.planner.beliefs import BINS, Counts
from draftproof.planner.costs import CostCurve, Costs
from draftproof.planner.running import Corrections, Taught

FORMAT = 1  # of the file; to be raised when the meaning of a number in it changes
MOST_FILES = 64  # the ones that were written longest ago go first
MOST_BYTES = 2**17
_FURTHEST = 5.0  # a correction beyond a factor of exp(5) was not learned from rounds
_COUNT = 1e9

# What reading a file raises that `write` did not write.
_DAMAGE = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError)


@dataclass(frozen=True, slots=True)
class PairKey:
    """What costs belong to: a pair, and all that they depend on besides.

    Args:
        target: What tells the target's files from any others.
        draft: The same of the draft's; empty where drafts come from no file.
        drafter: What drafts.
        machine: Processor, threads and whatever else they depend on; ready for `json.dumps`.
    """

    target: str
    draft: str
    drafter: str
    machine: Mapping[str, Any]


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
        self._key = _plain(asdict(key))
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"{digest[:32]}.json"

    def read(self) -> Profile | None:
        """The profile; None where there is none, or none that can be used."""
        document = _read(self.path)
        if document is None or document.get("key") != self._key:
            return None
        with suppress(*_DAMAGE, ValueError, InvalidSetting):
            taught = document["taught"]
            return Profile(_costs(document["costs"]), None if taught is None else _taught(taught))
        return None

    def write(self, profile: Profile) -> None:
        """Keep it, where the folder can be written."""
        document = {"format": FORMAT, "key": self._key, **asdict(profile)}
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                file.write(json.dumps(document).encode())
            files = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in files[:-MOST_FILES]:
                path.unlink()


def forget(folder: Path, model: str) -> int:
    """Remove every profile that a model takes part in, as target or as draft.

    Args:
        folder: Of all profiles.
        model: As in `PairKey`.

    Returns:
        How many there were.
    """
    removed = 0
    for path in folder.glob("*.json"):
        key = (_read(path) or {}).get("key")
        if isinstance(key, dict) and model in (key.get("target"), key.get("draft")):
            with suppress(OSError):
                path.unlink()
                removed += 1
    return removed


def _read(path: Path) -> dict[str, Any] | None:
    """A file of this format; None for any other."""
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size <= MOST_BYTES:
            document = json.loads(path.read_bytes())
            if isinstance(document, dict) and document.get("format") == FORMAT:
                return document
    return None


def _plain(value: Any) -> Any:
    """As it comes back from a file, so that keys can be compared."""
    return json.loads(json.dumps(value))


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
    alike, draft = _numbers([corrections["all"], corrections["draft"]], -_FURTHEST, _FURTHEST)
    own = _numbers(corrections["own"], -_FURTHEST, _FURTHEST)
    return Taught(
        accepted=accepted,
        rejected=rejected,
        corrections=Corrections(alike, own, draft),
        tried=bool(found["tried"]),
        plain=int(plain),
        patience=int(patience),
        beliefs={str(name): _counts(rows) for name, rows in found["beliefs"].items()},
    )


def _counts(rows: Any) -> Counts:
    counts = []
    for row in rows:
        kept, judged = _numbers(row, 0.0, _COUNT)
        if kept > judged:
            raise ValueError("more tokens were kept than judged")
        counts.append((kept, judged))
    if len(counts) != BINS:
        raise ValueError("a source has a pair of counts for each bin")
    return tuple(counts)


def _numbers(found: Any, low: float, high: float) -> tuple[float, ...]:
    """Finite numbers from `low` to `high`."""
    numbers = tuple(float(number) for number in found)
    if not all(math.isfinite(number) and low <= number <= high for number in numbers):
        raise ValueError(f"a number is not from {low} to {high}")
    return numbers
