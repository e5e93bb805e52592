"""How many tokens the rules accept, exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from enumeration import Rule, accepted_tokens, dense, draft_from, round_law
from lawcases import Case, cases, prefixes

from draftproof import theory
from draftproof.verify import block, coupled, token

CASES = cases()


def accepted(rule: Rule, case: Case) -> Any:
    return accepted_tokens(round_law(rule, case.target, draft_from(case.draft, case.g)))


def bound(case: Case) -> Any:
    return theory.accepted_bound(case.target.__getitem__, case.draft.__getitem__, case.g)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_token_at_most_block_at_most_the_bound(case: Case) -> None:
    assert accepted(token, case) <= accepted(block, case) <= bound(case)
    assert accepted(coupled, case) <= bound(case)


def test_the_order_is_strict_somewhere() -> None:
    longer = [case for case in CASES if case.g > 1]
    assert any(accepted(token, case) < accepted(block, case) for case in longer)
    assert any(accepted(block, case) < bound(case) for case in longer)


@pytest.mark.parametrize("case", [c for c in CASES if c.g == 1], ids=str)
def test_one_token_is_accepted_by_theorem_3_5(case: Case) -> None:
    beta = theory.acceptance(case.target[()], case.draft[()])
    assert accepted(token, case) == accepted(block, case) == bound(case) == beta


@pytest.mark.parametrize("case", [c for c in CASES if c.name == "self-draft"], ids=str)
def test_a_self_draft_is_accepted_whole(case: Case) -> None:
    assert accepted(token, case) == accepted(block, case) == case.g


@pytest.mark.parametrize("case", [c for c in CASES if c.name == "certain-draft"], ids=str)
def test_a_certain_draft_fares_the_same_under_every_rule(case: Case) -> None:
    assert accepted(token, case) == accepted(block, case) == accepted(coupled, case) == bound(case)


def test_the_toy_case_of_block_verification() -> None:
    """arXiv 2403.10444: p = (1/3, 2/3), q = (2/3, 1/3), two drafted tokens."""
    p, q = dense("1/3", "2/3"), dense("2/3", "1/3")
    case = Case("toy", 2, 2, dict.fromkeys(prefixes(2, 2), p), dict.fromkeys(prefixes(2, 2), q))
    assert accepted(token, case) == Fraction(10, 9)
    assert accepted(block, case) == Fraction(11, 9)
    assert bound(case) == Fraction(12, 9)


@pytest.mark.parametrize("g", [1, 2, 3])
def test_equation_1_where_all_positions_are_alike(g: int) -> None:
    """The token rule's accepted tokens and the one that follows, with independent betas."""
    p, q = dense("1/2", "1/3", "1/6"), dense("1/6", "1/3", "1/2")
    tree_p, tree_q = dict.fromkeys(prefixes(3, g), p), dict.fromkeys(prefixes(3, g), q)
    alpha = theory.acceptance_rate([(p, q)])
    found = accepted(token, Case("alike", 3, g, tree_p, tree_q)) + 1
    assert found == theory.expected_tokens(alpha, g)
