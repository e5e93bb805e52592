"""Drafts of several sources that end where they are no longer worth it: the law stays the target's.

What drafts a token and whether another one follows may depend on the tokens before, on the laws and
on the token just drawn, as long as that one stays in the draft.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from enumeration import Prefix, Rule, dense, distance, output_law, target_law
from lawcases import Case, cases

from draftproof.core import Draft, Law, PointMass
from draftproof.verify import block, token

CASES = [case for case in cases() if case.vocab <= 3]


def guided(case: Case, *, drop: bool) -> Any:
    """A model's token, but after a 0 a copied one; the draft ends behind an improbable token.

    Args:
        case: The laws.
        drop: The wrong rule: the improbable token is taken out of the draft.
    """

    def drafting(stream: Any, output: Prefix = (), limit: int = case.g) -> Draft:
        tokens: Prefix = ()
        laws: list[Law] = []
        for i in range(min(case.g, limit)):
            law = case.draft[output + tokens]
            if tokens and tokens[-1] == 0:
                law = PointMass(len(tokens) % case.vocab)
            drawn = stream.draft(i, law)
            unsure = law.prob(drawn) < Fraction(2, 5)
            if unsure and drop:
                break
            tokens, laws = (*tokens, drawn), [*laws, law]
            if unsure:
                break
        return Draft(tokens, tuple(laws))

    return drafting


@pytest.mark.parametrize("rule", [token, block])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_law_is_the_targets(case: Case, rule: Rule) -> None:
    law = output_law(rule, case.target, guided(case, drop=False), case.g + 1)
    assert law == target_law(case.target, case.g + 1)


@pytest.mark.parametrize("rule", [token, block])
def test_dropping_an_improbable_token_is_caught(rule: Rule) -> None:
    """The minimal case: p = (1/2, 1/2), q = (9/10, 1/10) gives (55, 45) in a hundred."""
    p, q = dense("1/2", "1/2"), dense("9/10", "1/10")
    case = Case("minimal", 2, 1, {(): p, (0,): p, (1,): p}, {(): q})
    law = output_law(rule, case.target, guided(case, drop=True), 1)
    assert law == {(0,): Fraction(55, 100), (1,): Fraction(45, 100)}
    assert distance(law, target_law(case.target, 1)) == Fraction(1, 20)
    kept = output_law(rule, case.target, guided(case, drop=False), 1)
    assert kept == target_law(case.target, 1)
