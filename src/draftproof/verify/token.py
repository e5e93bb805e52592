"""Algorithm 1 of Leviathan, Kalman, Matias (2023): accept token by token.

The letters are the paper's: p and q are the laws of target and draft, x a drafted token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.core import Dense, Draft, Law, PointMass, Probs, Real, Verdict
from draftproof.rng import Stream


def positive_part(p: Probs, q: Law) -> Probs:
    """[p - q]_+ elementwise, not normalised, in the place of `p`, which may be scaled.

    Over 152,000 tokens each array more costs some half a millisecond, most of it for new memory.
    """
    if isinstance(q, PointMass):
        p[q.token] = max(p[q.token] - 1, 0)
        return p
    p -= q.probs
    clipped: Probs = np.maximum(p, 0, out=p)
    return clipped


def residual(p: Law, q: Law, weight: Real = 1) -> Law:
    """norm([weight * p - q]_+): the law of the token after a rejection (appendix A.1).

    Where p equals q the excess is zero everywhere. Then a rejection has probability zero, rounding
    alone can lead here, and p is the answer.
    """
    if isinstance(p, PointMass):
        return p
    excess = positive_part(p.probs * weight, q)
    total = excess.sum()
    if total == 0:
        return p
    excess /= total
    return Dense(excess)


def acceptance(p: Law, q: Law, x: int) -> Real:
    """min(1, p(x) / q(x)): the probability of keeping the drafted token x."""
    px, qx = p.prob(x), q.prob(x)
    return 1 if px >= qx else px / qx


def token(draft: Draft, target_laws: Sequence[Law], stream: Stream) -> Verdict:
    """Keep x_i with probability min(1, p_i(x_i) / q_i(x_i)) until the first failure."""
    for i, (x, q) in enumerate(zip(draft.tokens, draft.laws, strict=True)):
        p = target_laws[i]
        if not stream.accept(i, acceptance(p, q, x)):
            return Verdict(i, stream.target(i, residual(p, q)), "residual")
    g = len(draft)
    return Verdict(g, stream.target(g, target_laws[g]), "bonus" if g else "plain")
