"""What slows all passes for a while, told apart from what drafts cost.

A machine that is shared runs slower and faster by spells, in seconds. Whoever times passes with
drafts in a slow spell and compares them with plain ones of a faster one finds drafts dear, stops
drafting, and so never learns better. Here every pass tells of both: of the machine, which wanders,
and of the costs of drafts, which stay. A draft's pass and the target's that slow down together mean
the machine; a plain pass beside them decides. This is a Kalman filter of three logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NOISE = 0.1  # of a pass: the standard deviation of its logarithm
_WANDERS = 0.05  # how far the machine's speed goes in a round, likewise
_STAYS = 0.01  # and the costs of drafts
# What is not known when a request begins: of the machine, of what passes with drafts cost above
# plain ones, of a drafted token. The latter two were measured, and are known better once rounds
# have told of them.
_FIRST = (0.15, 0.15, 0.15)
_TAUGHT = (0.15, 0.1, 0.07)


class Drift:
    """Logarithms of how far off what was measured is: of all passes, of more rows, of a draft.

    Args:
        means: As they are believed to be.
        taught: Whether rounds have told of them.
    """

    def __init__(self, means: Sequence[float], taught: bool) -> None:
        self._means = np.array(means, dtype=np.float64)
        self._covariance = np.diag(np.square(_TAUGHT if taught else _FIRST))

    @property
    def means(self) -> tuple[float, float, float]:
        """What is believed: of all passes, of what more rows cost, of a draft's pass."""
        everything, more, draft = self._means.tolist()
        return everything, more, draft

    def wander(self) -> None:
        """A round has passed."""
        self._covariance += np.diag(np.square((_WANDERS, _STAYS, _STAYS)))

    def learn(self, surprise: float, *, more: float = 0.0, draft: float = 0.0) -> None:
        """Take in a pass.

        Args:
            surprise: The logarithm of its time over what was expected.
            more: How much of its time's logarithm a change of what more rows cost makes.
            draft: The same of a draft's cost: 1 for its passes.
        """
        depends = np.array((1.0, more, draft))
        shared = self._covariance @ depends
        gain = shared / (depends @ shared + _NOISE**2)
        self._means += gain * surprise
        self._covariance -= np.outer(gain, shared)
