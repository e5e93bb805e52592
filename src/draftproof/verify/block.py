"""Block verification: Sun, Mendlovic, Leviathan, Aharoni, Ro, Beirami, Suresh (ICLR 2025).

arXiv 2403.10444. The same law as the token rule, and never fewer accepted tokens in expectation,
because the whole draft is judged together. A position that fails does *not* end the walk: the
longest prefix that passes is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Dense, Draft, Law, PointMass, Real, Verdict
from draftproof.rng import Stream
from draftproof.verify.token import positive_part, residual


def excess(p: Law, q: Law, weight: Real) -> Real:
    """S = sum over x of [weight * p(x) - q(x)]_+."""
    if isinstance(p, Dense):
        total: Real = positive_part(p.probs * weight, q).sum()
        return total
    return max(weight - q.prob(p.token), 0)


def coin(p: Law, q: Law, weight: Real) -> Real:
    """The probability h = S / (S + 1 - w) of keeping a prefix of weight w and no more."""
    s = excess(p, q, weight)
    # 1 - w first: at w = 1 the coin is then certain, however small s is.
    return s / (s + (1 - weight)) if s + (1 - weight) > 0 else 1


def block(draft: Draft, target_laws: Sequence[Law], stream: Stream) -> Verdict:
    """Keep the longest prefix whose own coin succeeds.

    w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i)) is the weight of the prefix of i tokens, and its coin
    has probability h_i = S_i / (S_i + 1 - w_i), with h_g = w_g for the whole draft. The paper
    tosses all coins and keeps the last success. Coins are addressed by position, so tossing from
    the end up to the first success is the same, and the sums S_i behind it are never needed.
    """
    g = len(draft)
    weights: list[Real] = [1]
    for i, (x, q) in enumerate(zip(draft.tokens, draft.laws, strict=True)):
        px, qx, w = target_laws[i].prob(x), q.prob(x), weights[-1]
        weights.append(w * px if isinstance(q, PointMass) else min(1, w * px / qx))

    accepted = g
    while accepted > 0:
        w = weights[accepted]
        h = w if accepted == g else coin(target_laws[accepted], draft.laws[accepted], w)
        if stream.accept(accepted - 1, h):
            break
        accepted -= 1
    p, w = target_laws[accepted], weights[accepted]
    if accepted == g:
        return Verdict(g, stream.target(g, p), "bonus" if g else "plain")
    law = residual(p, draft.laws[accepted], w)
    return Verdict(accepted, stream.target(accepted, law), "residual")
