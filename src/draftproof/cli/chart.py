"""Acceptance along an output, and tokens per round, as the coordinates of a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.core import Round
from draftproof.engine import Generation

WINDOW = 32  # drafted tokens that a point of the rolling share looks back over
WIDTH, HEIGHT = 900, 264
LEFT, RIGHT = 46, 888  # where the first and the last token stand
SHARE_TOP, SHARE_BOTTOM = 16, 116
ROUND_TOP, ROUND_BOTTOM = 146, 236


@dataclass(frozen=True, slots=True)
class Bar:
    """A round: as wide as its tokens, and `kept_top` to the bottom those that were drafted."""

    x: float
    width: float
    top: float
    kept_top: float
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on an axis, with what is written there."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """The drawing's parts; `share` is the rolling share of drafted tokens that were kept.

    `switches` are where speculation was switched off or on, `across` the ticks of the output's
    tokens, and `up` those of the tokens of a round.
    """

    share: tuple[tuple[float, float], ...]
    bars: tuple[Bar, ...]
    switches: tuple[Mark, ...]
    across: tuple[Mark, ...]
    up: tuple[Mark, ...]
    window: int = WINDOW


def chart(generation: Generation) -> Chart:
    """The drawing of an output."""
    rounds = generation.rounds
    total = max(sum(round.emitted for round in rounds), 1)
    most = max((round.emitted for round in rounds), default=1)

    def x(tokens: float) -> float:
        return LEFT + (RIGHT - LEFT) * tokens / total

    def y(tokens: float) -> float:
        return ROUND_BOTTOM - (ROUND_BOTTOM - ROUND_TOP) * tokens / most

    share, bars, switches, done = [], [], [], 0
    for number, (round, kept) in enumerate(zip(rounds, rolling(rounds), strict=True), 1):
        end = done + round.emitted
        accepted = min(round.accepted, round.emitted)
        bars.append(
            Bar(
                x=x(done),
                width=x(end) - x(done),
                top=y(round.emitted),
                kept_top=y(accepted),
                title=f"round {number}: {round.accepted} of {round.drafted} drafted tokens "
                f"accepted, {round.emitted} emitted, {1000 * round.seconds:.1f} ms",
            )
        )
        if round.drafted and kept is not None:
            share.append((x(end), SHARE_BOTTOM - (SHARE_BOTTOM - SHARE_TOP) * kept))
        switches += [Mark(x(end), reason) for reason in round.reasons]
        done = end
    return Chart(
        share=tuple(share),
        bars=tuple(bars),
        switches=tuple(switches),
        across=tuple(Mark(x(n), str(n)) for n in ticks(total, 10)),
        up=tuple(Mark(y(n), str(n)) for n in ticks(most, 4)),
    )


def rolling(rounds: Sequence[Round]) -> list[float | None]:
    """Behind each round the share kept of the drafted tokens before it.

    Over the fewest last rounds that drafted `WINDOW` tokens, or all; None before the first draft.
    """
    shares: list[float | None] = []
    first = drafted = accepted = 0
    for round in rounds:
        drafted += round.drafted
        accepted += round.accepted
        while drafted - rounds[first].drafted >= WINDOW:
            drafted -= rounds[first].drafted
            accepted -= rounds[first].accepted
            first += 1
        shares.append(accepted / drafted if drafted else None)
    return shares


def ticks(end: int, most: int) -> range:
    """Round numbers from 0 to `end`, at most `most` and one of them."""
    step = next(
        unit * 10**power
        for power in range(len(str(end)) + 1)
        for unit in (1, 2, 5)
        if end <= unit * 10**power * most
    )
    return range(0, end + 1, step)
