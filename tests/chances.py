"""Chi-square tests of a law, with both error rates."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from scipy import stats


def p_value(counts: Mapping[Any, int], law: Mapping[Any, Any]) -> float:
    """How probable counts at least this far from `law` are, if `law` is true (Pearson)."""
    samples = sum(counts.values())
    expected: dict[Hashable, float] = {x: samples * float(p) for x, p in law.items() if p > 0}
    if any(x not in expected for x, count in counts.items() if count):
        return 0.0
    statistic = sum((counts.get(x, 0) - e) ** 2 / e for x, e in expected.items())
    return float(stats.chi2.sf(statistic, len(expected) - 1))


def miss_rate(
    law: Mapping[Any, Any], wrong: Mapping[Any, Any], samples: int, false_alarm: float
) -> float:
    """How often the test of `law` at the level `false_alarm` lets `wrong` pass.

    The usual approximation: the statistic is a non-central chi-square. An outcome outside the
    support of `law` is a certain find and is left out, so the rate is an upper one.
    """
    cells = {x: float(p) for x, p in law.items() if p > 0}
    shift = samples * sum((float(wrong.get(x, 0)) - p) ** 2 / p for x, p in cells.items())
    freedom = len(cells) - 1
    return float(stats.ncx2.cdf(stats.chi2.isf(false_alarm, freedom), freedom, shift))
