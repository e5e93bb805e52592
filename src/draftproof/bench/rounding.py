"""How differently a model rounds in passes over different numbers of tokens, measured.

The reference is a pass over one token, as in plain decoding; its rows come from a `MemoModel` that
plain decoding has filled. What is compared are the log-probabilities of each position's best
tokens, which are what a choice is between: after penalties, bias and bans, at temperature 1 and
without filters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from draftproof.bench.law_test import distance
from draftproof.bench.memo import MemoModel
from draftproof.core import Dense, Float64, LogitRow
from draftproof.engine import Request
from draftproof.ports import Model
from draftproof.sampling import Sampling, Standardiser

BEST = 8  # tokens per position that are compared
# Rounding moves a law a little; a fault in scoring several tokens at once moves it a lot. A mean
# distance beyond this at any place of a pass is no rounding, whatever it is that plain differs by.
PLAUSIBLE = 0.1


class Margins:
    """The target's scores along one request's output, by passes over single tokens.

    Args:
        memo: The target, remembered.
        request: Its prompt and its end are read.
        sampling: The user's settings, of which the laws are made.
    """

    def __init__(self, memo: MemoModel, request: Request, sampling: Sampling) -> None:
        self.request = request
        self._memo = memo
        self.prefix = memo.open(request.prompt).prefix
        limits, first = request.limits, memo.banned_first
        open_ended = replace(sampling, temperature=1.0, top_k=None, top_p=1.0, min_p=0.0)
        self.model_law = Standardiser(open_ended, self.prefix, limits.eos, 0, first)
        self.user_law = Standardiser(sampling, self.prefix, limits.eos, 0, first)

    def row(self, output: Sequence[int]) -> LogitRow:
        """The logits after `output`."""
        session = self._memo.open(self.request.prompt)
        row: LogitRow = session.score([*self.prefix, *output], keep=1)[0]
        return row

    def scores(self, row: LogitRow, output: Sequence[int]) -> Float64[np.ndarray, "vocab"]:
        """Log-probabilities after `output`; -inf where a token is banned."""
        law = self.model_law.law(row, output)
        assert isinstance(law, Dense)  # the temperature is 1
        with np.errstate(divide="ignore"):
            logs: Float64[np.ndarray, "vocab"] = np.log(law.probs)
        return logs

    def margin(self, output: Sequence[int], chosen: int | None = None) -> float:
        """How far the best token after `output` is ahead of `chosen`, or of the second best."""
        scores = self.scores(self.row(output), output)
        second, best = np.sort(scores)[-2:]
        return float(best - (second if chosen is None else scores[chosen]))


@dataclass(slots=True)
class Rounding:
    """What was measured so far.

    `noise` is the largest difference of a log-probability, `law_distances` those of the user's law
    (total variation), and `by_place` those of the model's own law by place in the pass.
    """

    noise: float = 0.0
    law_distances: list[float] = field(default_factory=list)
    by_place: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def tolerance(self) -> float:
        """The widest margin that rounding can overturn: both tokens move by the noise."""
        return 2 * self.noise

    @property
    def law_distance(self) -> float:
        """The mean distance between the user's laws."""
        return float(np.mean(self.law_distances)) if self.law_distances else 0.0

    @property
    def worst_place(self) -> float:
        """The largest mean distance at a place of a pass."""
        return max((float(np.mean(d)) for d in self.by_place.values()), default=0.0)

    @property
    def plausible(self) -> bool:
        """Whether the differences can be rounding at all."""
        return self.worst_place <= PLAUSIBLE

    def compare(self, margins: Margins, output: Sequence[int], row: LogitRow, place: int) -> None:
        """Take the row behind `output` that stood at `place` in a pass over several tokens."""
        single = margins.row(output)
        a, b = margins.scores(single, output), margins.scores(row, output)
        best = np.argsort(a)[-BEST:]
        moved = np.abs(a[best] - b[best])[np.isfinite(a[best])]
        self.noise = max(self.noise, float(moved.max()))
        self.by_place[place].append(float(np.abs(np.exp(a) - np.exp(b)).sum()) / 2)
        law = margins.user_law
        self.law_distances.append(distance(law.law(single, output), law.law(row, output)))

    def describe(self) -> str:
        """In words."""
        if not self.plausible:
            return (
                f"passes over several tokens give laws {self.worst_place:.2f} from those of passes "
                f"over one, more than rounding does (at most {PLAUSIBLE})"
            )
        if self.noise == 0:
            return "passes of every size give the same logits, bit for bit"
        return (
            f"passes of different sizes differ by up to {self.noise:.2g} (measured), so that "
            f"margins up to {self.tolerance:.2g} count as near-ties"
        )

    def to_json(self) -> dict[str, float]:
        """The figures, for `--json`."""
        return {
            "noise": self.noise,
            "tolerance": self.tolerance,
            "law_distance": self.law_distance,
            "worst_place": self.worst_place,
        }


def measure_rounding(
    rounding: Rounding, target: Model, margins: Margins, output: Sequence[int], n: int
) -> int:
    """Score `output` in passes over n tokens and compare; returns the number of passes."""
    session = target.open(margins.request.prompt)
    try:
        prefix = margins.prefix
        if len(prefix) > 1:
            session.score(prefix[:-1], keep=0)
        read = [prefix[-1], *output[:-1]]
        for start in range(0, len(read), n):
            tokens = read[start : start + n]
            rows = session.score(tokens, keep=len(tokens))
            for place, row in enumerate(rows):
                rounding.compare(margins, output[: start + place], row, place)
        return -(-len(read) // n)
    finally:
        session.close()
