"""The closed forms: what a draft is worth before it is made.

Equations, tables and appendices are those of Leviathan, Kalman, Matias (2023) unless a docstring
says otherwise. Letters are the paper's: p and q are the laws of target and draft, alpha the
acceptance rate, gamma the draft length, c the cost ratio. Nothing here is rounded or estimated, and
rational arguments give rational results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np

from draftproof.core import Dense, Law, PointMass, Probs, Real

# The acceptance rate alpha; or the survival by position, where survival[k - 1] is the probability
# that the first k drafted tokens are all accepted.
Acceptance: TypeAlias = Real | Sequence[Real]
# The law of the next token after each prefix.
Conditional: TypeAlias = Callable[[tuple[int, ...]], Law]
# Seconds of one pass of the target over n tokens.
PassSeconds: TypeAlias = Callable[[int], Real]


def divergence(p: Law, q: Law) -> Real:
    """Definition 3.2: D_LK(p, q) = sum over x of |p(x) - M(x)| with M = (p + q) / 2."""
    if isinstance(p, PointMass) or isinstance(q, PointMass):
        return 1 - acceptance(p, q)  # lemma 3.3
    return _total(abs(p.probs - (p.probs + q.probs) / 2))


def acceptance(p: Law, q: Law) -> Real:
    """Theorem 3.5: beta = 1 - D_LK(p, q) = sum over x of min(p(x), q(x)) (lemma 3.3)."""
    if isinstance(p, PointMass):
        return q.prob(p.token)
    if isinstance(q, PointMass):
        return p.prob(q.token)
    return _total(np.minimum(p.probs, q.probs))


def several_acceptance(p: Law, certain: Collection[int], q: Law | None = None) -> Real:
    """P(T) + sum over x outside T of min(p(x), q(x)): acceptance with several candidates at once.

    No rule accepts more often with these candidates, and with the k - 1 most probable tokens of a
    draft's law for certain and one more drawn from the rest it is at least `acceptance` (Hu et al.,
    ICLR 2025, arXiv 2502.18779).

    Args:
        p: The target's law.
        certain: T, the candidates that were certain choices.
        q: The law of the one that was drawn, where there is one.
    """
    kept: Real = sum(p.prob(x) for x in certain)
    if q is None:
        return kept
    return kept + acceptance(p, q) - sum(min(p.prob(x), q.prob(x)) for x in certain)


def acceptance_rate(pairs: Iterable[tuple[Law, Law]]) -> Real:
    """Corollary 3.6: alpha = E(beta), the mean over pairs of laws (p, q); at least one pair."""
    betas = [acceptance(p, q) for p, q in pairs]
    return sum(betas) / len(betas)


def expected_tokens(alpha: Acceptance, gamma: int) -> Real:
    """Equation 1: tokens per round, (1 - alpha^(gamma + 1)) / (1 - alpha).

    Summed as 1 + alpha + ... + alpha^gamma, which holds at alpha = 1 and for any survival.

    Raises:
        ValueError: The survival covers fewer than `gamma` positions.
    """
    tokens: Real = 1
    for kept, _ in zip(_survival(alpha), range(gamma), strict=False):
        tokens += kept
    if isinstance(alpha, Sequence) and len(alpha) < gamma:
        raise ValueError(f"survival of {len(alpha)} positions, but a draft of {gamma}")
    return tokens


def oracle_tokens(alpha: Real) -> Real:
    """Section 3.5: tokens per pass when gamma is chosen by an oracle, 1 / (1 - alpha).

    No draft length gives more; infinite at alpha = 1.
    """
    return 1 / (1 - alpha) if alpha < 1 else math.inf


def walltime_improvement(alpha: Acceptance, gamma: int, c: Real) -> Real:
    """Theorem 3.8: (1 - alpha^(gamma + 1)) / ((1 - alpha)(gamma c + 1)).

    It takes a pass over gamma + 1 tokens to cost what a pass over one does, which does not hold on
    a CPU; `speedup` does without.
    """
    return speedup(alpha, gamma, lambda _: 1, c)


def helps(alpha: Real, c: Real) -> bool:
    """Corollary 3.9: some gamma gives an improvement where alpha > c."""
    return alpha > c


def least_improvement(alpha: Real, c: Real) -> Real:
    """Corollary 3.9: the best gamma improves by at least (1 + alpha) / (1 + c) where it helps."""
    return (1 + alpha) / (1 + c)


def operations_factor(alpha: Acceptance, gamma: int, c_hat: Real) -> Real:
    """Theorem 3.11: arithmetic grows by (1 - alpha)(gamma c_hat + gamma + 1) / (1 - alpha^(g+1)).

    `c_hat` is the ratio of the operations per token of draft and target (definition 3.10).
    """
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def memory_saving(alpha: Acceptance, gamma: int) -> Real:
    """Section 3.4: reads of the target's weights and cache shrink by the tokens per round."""
    return expected_tokens(alpha, gamma)


def seconds_per_token(
    alpha: Acceptance, gamma: int, pass_seconds: PassSeconds, draft_seconds: Real
) -> Real:
    """Theorem 3.8's denominator for a measured cost curve: expected seconds per emitted token.

    Args:
        alpha: The acceptance rate, or the survival by position.
        gamma: Draft length; zero is plain decoding.
        pass_seconds: Seconds of a pass of the target over n tokens, n = 1, 2, ...
        draft_seconds: Seconds to draft one token.
    """
    round_seconds = pass_seconds(gamma + 1) + gamma * draft_seconds
    return round_seconds / expected_tokens(alpha, gamma)


def speedup(alpha: Acceptance, gamma: int, pass_seconds: PassSeconds, draft_seconds: Real) -> Real:
    """Theorem 3.8 for a measured cost curve: how much faster than plain decoding.

    The arguments are those of `seconds_per_token`.
    """
    return pass_seconds(1) / seconds_per_token(alpha, gamma, pass_seconds, draft_seconds)


def best_length(
    alpha: Acceptance, limit: int, pass_seconds: PassSeconds, draft_seconds: Real
) -> int:
    """Section 3.5: the draft length from 0 to `limit` with the highest `speedup`.

    Zero is plain decoding, and the shortest wins a tie. A survival shorter than `limit` bounds it.
    """
    found = rates(alpha, limit, pass_seconds, draft_seconds)
    return found.index(max(found))


def rates(
    alpha: Acceptance, limit: int, pass_seconds: PassSeconds, draft_seconds: Real
) -> list[Real]:
    """Expected tokens per second at every draft length from 0 to `limit`, by theorem 3.8.

    The arguments are those of `seconds_per_token`, whose inverses these are. A survival shorter
    than `limit` bounds it.
    """
    found: list[Real] = []
    tokens: Real = 0
    for gamma, kept in zip(range(limit + 1), chain((1,), _survival(alpha)), strict=False):
        tokens += kept
        found.append(tokens / (pass_seconds(gamma + 1) + gamma * draft_seconds))
    return found


def one_shot_acceptance(p: Law, q: Law) -> Real:
    """Appendix A.2: the acceptance of one-shot rejection sampling, min over x of q(x) / p(x).

    It never exceeds `acceptance`.
    """
    if isinstance(p, PointMass):
        return q.prob(p.token)
    return min(q.prob(int(x)) / p.prob(int(x)) for x in np.flatnonzero(p.probs))


def lenient_acceptance(p: Law, q: Law, lenience: Real) -> Real:
    """Appendix A.5: alpha_l = sum over x of min(p(x) / l, q(x)), for a lenience l in (0, 1].

    The output is then no longer the target's: a token may be up to 1 / l times as probable.
    """
    if isinstance(p, PointMass):
        return q.prob(p.token)
    if isinstance(q, PointMass):
        return min(p.prob(q.token) / lenience, 1)
    return _total(np.minimum(p.probs / lenience, q.probs))


def lenient_greedy_acceptance(p: Probs, q: Law, lenience: Real) -> Real:
    """Appendix A.5 at temperature 0: the probability under q of {x: p(x) >= l max p}.

    `p` is the target's law before standardisation. The paper prints the test the other way round,
    which would accept only improbable tokens.
    """
    return sum(q.prob(int(x)) for x in np.flatnonzero(p >= lenience * p.max()))


def accepted_bound(target: Conditional, draft: Conditional, gamma: int) -> Real:
    """The most tokens that any exact rule with one draft accepts in a round, in expectation.

    A rule that accepts k tokens emits a prefix that the draft proposed, so its k-th token is
    accepted with probability at most 1 - TV(P_k, Q_k), P_k and Q_k being the joint laws of the
    first k tokens; the bound is their sum over k = 1..gamma. A round emits one token more.

    Args:
        target: The target's law after each prefix of fewer than `gamma` tokens.
        draft: The draft's.
        gamma: Draft length. The work grows as vocabulary^gamma.
    """
    return _overlap(target, draft, gamma, (), 1, 1)


def coupled_acceptance(p: Law, q: Law) -> Real:
    """The probability that target and draft agree when they share an exponential race.

    sum over i of 1 / sum over j of max(p_j / p_i, q_j / q_i); at least (1 - TV) / (1 + TV)
    (Daliri, Musco, Suresh 2024, arXiv 2408.07978).
    """
    if isinstance(p, PointMass) or isinstance(q, PointMass):
        return acceptance(p, q)
    # Where p_j / q_j exceeds p_i / q_i the maximum is p_j / p_i, elsewhere it is q_j / q_i, so with
    # the common support in the order of that ratio both sums are cumulated ones.
    (both,) = np.nonzero((p.probs > 0) & (q.probs > 0))
    order = both[np.argsort(p.probs[both] / q.probs[both], kind="stable")]
    ps, qs = p.probs[order], q.probs[order]
    above = np.cumsum(ps[::-1])[::-1] - ps + p.probs[q.probs == 0].sum()
    below = np.cumsum(qs) + q.probs[p.probs == 0].sum()
    return _total(ps * qs / (above * qs + below * ps))


def _survival(alpha: Acceptance) -> Iterator[Real]:
    """The probability that the first k drafted tokens are all accepted, for k = 1, 2, ..."""
    if isinstance(alpha, Sequence):
        yield from alpha
        return
    kept = alpha
    while True:
        yield kept
        kept *= alpha


def _overlap(
    target: Conditional,
    draft: Conditional,
    gamma: int,
    prefix: tuple[int, ...],
    joint_p: Real,
    joint_q: Real,
) -> Real:
    """What `accepted_bound` sums behind a prefix, whose joint probabilities are `joint_*`."""
    if len(prefix) == gamma:
        return 0
    p, q = target(prefix), draft(prefix)
    total: Real = 0
    for x in _support(q):
        joined = (joint_p * p.prob(x), joint_q * q.prob(x))
        if min(joined) > 0:
            total += min(joined) + _overlap(target, draft, gamma, (*prefix, x), *joined)
    return total


def _support(law: Law) -> list[int]:
    return np.flatnonzero(law.probs).tolist() if isinstance(law, Dense) else [law.token]


def _total(values: Probs) -> Real:
    total: Real = values.sum()
    return total
