"""What a pass costs on this machine: seconds as a function of the tokens scored, t(n).

The paper takes t(n) = t(1), which holds where reading the weights dominates. Elsewhere it does not,
so it is measured (`timing`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from statistics import median

import numpy as np

from draftproof.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds per pass at some sizes: `curve(n)` for any n of at least 1.

    Linear between the sizes; beyond the last it goes on with the last slope, which is taken as 0
    where it falls. Nothing is made monotone: kernels work in tiles, and a larger pass may well be
    the cheaper one.

    Args:
        sizes: Tokens per pass, rising from 1.
        seconds: The median at each size.
        samples: The measurements, one row per repeat and one column per size; may be empty.

    Raises:
        InvalidSetting: The sizes do not rise from 1, or a time is not above 0.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    samples: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        rising = self.sizes[:1] == (1,) and list(self.sizes) == sorted(set(self.sizes))
        if not rising or len(self.sizes) != len(self.seconds) or min(self.seconds) <= 0:
            raise InvalidSetting(
                f"a cost curve with sizes {self.sizes} and seconds {self.seconds}",
                why="it is compared with plain decoding, one token per pass",
                remedy="measure at rising sizes that begin with 1",
            )

    def __call__(self, n: int) -> float:
        """Seconds of a pass over n tokens."""
        right = bisect_left(self.sizes, n)
        if right < len(self.sizes) and self.sizes[right] == n:
            return self.seconds[right]
        if len(self.sizes) == 1:
            return self.seconds[0]
        beyond = right == len(self.sizes)
        right = min(right, len(self.sizes) - 1)
        low, high = self.sizes[right - 1], self.sizes[right]
        slope = (self.seconds[right] - self.seconds[right - 1]) / (high - low)
        if beyond:
            return self.seconds[right] + max(slope, 0.0) * (n - high)
        return self.seconds[right - 1] + slope * (n - low)

    @classmethod
    def of_samples(
        cls, sizes: tuple[int, ...], samples: tuple[tuple[float, ...], ...]
    ) -> CostCurve:
        """The curve of the medians over repeats; `samples[r][i]` belongs to `sizes[i]`."""
        return cls(sizes, tuple(median(column) for column in zip(*samples, strict=True)), samples)

    def resampled(self, rng: np.random.Generator) -> CostCurve:
        """The curve that other repeats might have given (bootstrap).

        Whole repeats are drawn, so that a slow spell of the machine stays in all sizes at once.
        """
        if not self.samples:
            return self
        rows = rng.integers(len(self.samples), size=len(self.samples))
        return CostCurve.of_samples(self.sizes, tuple(self.samples[int(row)] for row in rows))


@dataclass(frozen=True, slots=True)
class Costs:
    """What a target and a drafter cost.

    Args:
        curve: The target's passes.
        draft_samples: Measured seconds per drafted token, one or more.

    Raises:
        InvalidSetting: There is no draft cost, or one is negative.
    """

    curve: CostCurve
    draft_samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.draft_samples or min(self.draft_samples) < 0:
            raise InvalidSetting(
                f"draft costs {self.draft_samples}",
                why="what a draft costs decides how long it should be",
                remedy="measure one or more; 0 is a cost",
            )

    @property
    def draft_seconds(self) -> float:
        """Seconds per drafted token: the median."""
        return median(self.draft_samples)

    @property
    def ratio(self) -> float:
        """The paper's c: a drafted token's cost over a plain pass's."""
        return self.draft_seconds / self.curve(1)

    def resampled(self, rng: np.random.Generator) -> Costs:
        """The costs that other repeats might have given (bootstrap)."""
        samples = rng.choice(self.draft_samples, len(self.draft_samples))
        return Costs(self.curve.resampled(rng), tuple(samples.tolist()))
