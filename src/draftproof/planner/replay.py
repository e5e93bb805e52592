"""A recorded run, played again at other draft lengths.

The record holds the rounds of one request at one long draft length. Seen token by token it says
which tokens the drafter guessed, and that is what a shorter draft meets: where it is cut in the
middle of a run of guessed tokens, the next round goes on in that run. Rounds at another length do
not begin where the recorded ones did; that a drafter guesses a token or not is taken not to depend
on where its draft began.

One thing the record does not tell: whether the drafter would have guessed the token behind a draft
that was kept whole, since nothing was drafted there. As large a share of these tokens counts as
guessed as of the last drafted ones, where those before them were (and of all drafted ones, as if it
were one more observation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptRun:
    """One prompt decoded at a fixed draft length: (drafted, accepted) of every round."""

    rounds: tuple[tuple[int, int], ...]

    @property
    def tokens(self) -> int:
        """Emitted tokens."""
        return sum(accepted + 1 for _, accepted in self.rounds)

    @property
    def acceptance(self) -> float | None:
        """The share of drafted tokens that were looked at and kept; None if none was drafted."""
        accepted = sum(a for _, a in self.rounds)
        tried = accepted + sum(a < d for d, a in self.rounds)
        return accepted / tried if tried else None


class Replay:
    """The rounds of a run at lengths of one's own, from its first token again at its end.

    Args:
        run: The record, of at least one round.
        longest: The draft length of the record; a shorter draft that was kept whole is one where
            the drafter had no more.
    """

    def __init__(self, run: PromptRun, longest: int) -> None:
        self._tokens = list(_guesses(run, longest))
        self._at = 0

    def round(self, length: int) -> tuple[int, int]:
        """(drafted, accepted) of the next round, whose drafts have up to `length` tokens."""
        accepted = 0
        while accepted < length and self._token(accepted)[0]:
            accepted += 1
        drafted = accepted
        if accepted < length:
            drafted = min(length, max(accepted, self._token(accepted)[1]))
        self._at += accepted + 1
        return drafted, accepted

    def _token(self, ahead: int) -> tuple[bool, int]:
        return self._tokens[(self._at + ahead) % len(self._tokens)]


def _guesses(run: PromptRun, longest: int) -> Iterator[tuple[bool, int]]:
    """For each token: whether it was guessed, and if not, the tokens that were drafted there."""
    reached = [accepted == longest for _, accepted in run.rounds if accepted >= longest - 1]
    rate = (sum(reached) + (run.acceptance or 0.0)) / (len(reached) + 1)
    due = 0.5
    for drafted, accepted in run.rounds:
        for _ in range(accepted):
            yield True, drafted
        if accepted < drafted:
            yield False, drafted
        elif drafted < longest:
            yield False, 0
        else:
            due += rate
            yield due >= 1, drafted
            due -= due >= 1
