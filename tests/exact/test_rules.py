"""Every rule is exact: the law of the output equals the target's, as rational numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from enumeration import (
    Case,
    Rule,
    accepted_tokens,
    cases,
    dense,
    draft_from,
    output_law,
    prefixes,
    round_law,
    target_law,
)

from draftproof import theory
from draftproof.core import PointMass
from draftproof.verify import block, coupled, token

CASES = cases()
RULES = {"token": token, "block": block, "coupled": coupled}
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@every_case
@every_rule
def test_the_output_law_is_the_targets(case: Case, rule: Rule) -> None:
    found = output_law(rule, case.target, draft_from(case.draft, case.g), case.g + 1)
    assert all(isinstance(weight, Fraction | int) for weight in found.values())
    assert found == target_law(case.target, case.g + 1)


@every_case
@every_rule
def test_floats_agree_with_fractions(case: Case, rule: Rule) -> None:
    exact = round_law(rule, case.target, draft_from(case.draft, case.g))
    rounded = case.as_floats()
    found = round_law(rule, rounded.target, draft_from(rounded.draft, case.g))
    for outcome in {*exact, *found}:
        assert found.get(outcome, 0) == pytest.approx(float(exact.get(outcome, 0)), abs=1e-12)
