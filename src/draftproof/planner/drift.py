"""What slows all passes for a while, told apart from what drafts cost.

A machine that is shared runs slower and faster by spells, in seconds. Whoever times passes with
drafts in a slow spell and compares them with plain ones of a faster one finds drafts dear, stops
drafting, and so never learns better. Here every pass tells of both: of the machine, which wanders,
and of the costs of drafts, which stay. A draft's pass and the target's that slow down together mean
the machine; a plain pass beside them decides. This is a Kalman filter of three logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence

_NOISE = 0.1  # of a pass: the standard deviation of its logarithm
_WANDERS = 0.05  # how far the machine's speed goes in a round, likewise
_STAYS = 0.01  # and the costs of drafts
# What is not known when a request begins: of the machine, of what passes with drafts cost above
# plain ones, of a drafted token. The latter two were measured, and are known better once rounds
# have told of them.
_FIRST = (0.15, 0.15, 0.15)
_TAUGHT = (0.15, 0.1, 0.07)
_ALL = range(3)


class Drift:
    """Logarithms of how far off what was measured is: of all passes, of more rows, of a draft.

    `means` are what is believed of them. Three numbers are too few for arrays to be worth their
    calls, which come with every round.

    Args:
        means: As they are believed to be.
        taught: Whether rounds have told of them.
    """

    def __init__(self, means: Sequence[float], taught: bool) -> None:
        everything, more, draft = means
        self.means = everything, more, draft
        spread = [deviation**2 for deviation in (_TAUGHT if taught else _FIRST)]
        self._covariance = [[spread[i] if i == j else 0.0 for j in _ALL] for i in _ALL]

    def wander(self) -> None:
        """A round has passed."""
        for i, deviation in enumerate((_WANDERS, _STAYS, _STAYS)):
            self._covariance[i][i] += deviation**2

    def learn(self, surprise: float, *, more: float = 0.0, draft: float = 0.0) -> None:
        """Take in a pass.

        Args:
            surprise: The logarithm of its time over what was expected.
            more: How much of its time's logarithm a change of what more rows cost makes.
            draft: The same of a draft's cost: 1 for its passes.
        """
        shared = [row[0] + row[1] * more + row[2] * draft for row in self._covariance]
        noise = shared[0] + more * shared[1] + draft * shared[2] + _NOISE**2
        gain = [part / noise for part in shared]
        everything, rows, drafts = self.means
        self.means = (
            everything + gain[0] * surprise,
            rows + gain[1] * surprise,
            drafts + gain[2] * surprise,
        )
        self._covariance = [
            [self._covariance[i][j] - gain[i] * shared[j] for j in _ALL] for i in _ALL
        ]
