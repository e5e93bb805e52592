"""Every rule is exact: the law of the output equals the target's, as rational numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from enumeration import (
    Prefix,
    Replay,
    RequestReplay,
    Rule,
    Tree,
    decode,
    dense,
    distance,
    draft_from,
    law_of,
    output_law,
    round_law,
    target_law,
)
from lawcases import Case, cases, prefixes

from draftproof.core import Dense, Draft, PointMass
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


@every_rule
def test_nothing_drafted_is_plain_decoding(rule: Rule) -> None:
    target = {(): dense("1/6", "1/3", "1/2")}
    assert output_law(rule, target, lambda _: Draft(), 1) == target_law(target, 1)


@every_rule
def test_the_kinds_of_a_verdict(rule: Rule) -> None:
    """All accepted: bonus; some rejected: residual; nothing drafted: plain."""
    laws = [PointMass(1), PointMass(2)]
    stream = RequestReplay().round(0, 0)
    kinds = [
        rule(Draft.of_certain(drafted), laws[: len(drafted) + 1], stream).kind
        for drafted in [(1,), (0,), ()]
    ]
    assert kinds == ["bonus", "residual", "plain"]


def several_rounds(
    rule: Rule, case: Case, length: int, *, fresh: bool
) -> dict[tuple[Prefix, int], Any]:
    """The law of (tokens, accepted) of a request; `fresh` noise has the attempt in its address."""

    def program(request: RequestReplay) -> tuple[Prefix, int]:
        def noise(start: int, attempt: int) -> Any:
            return request.round(start, attempt if fresh else 0)

        return decode(rule, case.target, draft_from(case.draft, case.g), length, noise)

    return law_of(program, RequestReplay)


def output_of(law: dict[tuple[Prefix, int], Any]) -> dict[Prefix, Any]:
    tokens: dict[Prefix, Any] = {}
    for (output, _), weight in law.items():
        tokens[output] = tokens.get(output, 0) + weight
    return tokens


def last_token_case(target: Tree, draft: Tree, length: int, g: int = 2) -> Case:
    """A case over two tokens whose laws depend on the last token, given for (), (0,) and (1,)."""
    return Case(
        "last-token",
        2,
        g,
        {prefix: target[prefix[-1:]] for prefix in prefixes(2, length)},
        {prefix: draft[prefix[-1:]] for prefix in prefixes(2, length)},
    )


# A fair coin. The drafter is certain of 1 first, certain of 0 after a 0, and right after a 1.
FAIR = {prefix: dense("1/2", "1/2") for prefix in prefixes(2, 1)}
BIASABLE = last_token_case(FAIR, {(): dense(0, 1), (0,): dense(1, 0), (1,): FAIR[1,]}, 3)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.g == 3 and c.vocab == 2] + [BIASABLE], ids=str
)
@every_rule
def test_a_request_of_several_rounds_is_exact(case: Case, rule: Rule) -> None:
    found = output_of(several_rounds(rule, case, 3, fresh=True))
    assert found == target_law(case.target, 3)


def test_block_is_biased_where_rounds_share_noise() -> None:
    """Why the attempt is part of an address.

    Position 1's coin decides the first round at position 0: below 1/2 the whole draft 1x stays.
    Where it does not, the output begins with 0, and a second round that met the same coin at
    position 1 would know it to be above 1/2: it would reject its draft 0, always, so that 00 would
    never come out of a fair coin.
    """
    found = output_of(several_rounds(block, BIASABLE, 3, fresh=False))
    assert distance(found, target_law(BIASABLE.target, 3)) == Fraction(1, 4)
    assert not any(tokens[:2] == (0, 0) for tokens in found)


@pytest.mark.parametrize("rule", [token, coupled])
@pytest.mark.parametrize("case", [c for c in CASES if c.g == 3 and c.vocab == 2], ids=str)
def test_the_other_rules_never_look_behind_where_they_stop(case: Case, rule: Rule) -> None:
    """Only the block rule needs the attempt: for the others shared noise does no harm."""
    found = output_of(several_rounds(rule, case, 3, fresh=False))
    assert found == target_law(case.target, 3)


def test_a_tiny_excess_leaves_a_certain_coin_certain() -> None:
    """With weight 1 the block rule's coin is S / S, however small S is.

    Target and draft differ by a few rounding errors at the second position, and S + 1 - w, summed
    from the left, would be a third too large there.
    """
    coins = []

    class Coins(Replay):
        def accept(self, index: int, probability: Any) -> bool:
            coins.append(probability)
            return super().accept(index, probability)

    ulp = 2.0**-53
    near, apart = Dense(np.array([0.5, 0.5])), Dense(np.array([0.5 + 3 * ulp, 0.5 - 3 * ulp]))
    block(Draft((0, 0), (near, near)), [near, apart, near], Coins())
    assert coins[0] == 1
