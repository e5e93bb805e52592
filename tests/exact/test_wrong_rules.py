"""Rules that are wrong in known ways: the enumeration must catch every one.

Each is a mistake that real systems have made. Beside a wrong rule stands the right one that it is
mistaken for, so that the harness itself is seen to tell them apart. The laws are rational, so any
distance above 0 is proof, not chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
from enumeration import (
    Replay,
    Rule,
    dense,
    distance,
    draft_from,
    law_of,
    output_law,
    support,
    target_law,
)
from lawcases import Case, cases, prefixes

from draftproof import theory
from draftproof.core import Dense, Draft, Law, Verdict
from draftproof.verify import block, coupled, token
from draftproof.verify.block import excess
from draftproof.verify.token import acceptance, residual

CASE = next(c for c in cases() if str(c) == "dense-V3-g2")


def error(rule: Rule, case: Case = CASE, drafting: Callable[[Any], Draft] | None = None) -> Any:
    """Total variation between the output's law and the target's."""
    drafting = drafting or draft_from(case.draft, case.g)
    found = output_law(rule, case.target, drafting, case.g + 1)
    return distance(found, target_law(case.target, case.g + 1))


# ------------------------------------------------------------------------ wrong verification


def token_with(
    coin: Callable[[Law, Law, int], Any] = acceptance,
    after: Callable[[Law, Law], Law] = residual,
) -> Rule:
    """The token rule with another coin, or another law after a rejection."""

    def rule(draft: Draft, laws: Sequence[Law], stream: Any) -> Verdict:
        for i, (x, q) in enumerate(zip(draft.tokens, draft.laws, strict=True)):
            if not stream.accept(i, coin(laws[i], q, x)):
                return Verdict(i, stream.target(i, after(laws[i], q)), "residual")
        return Verdict(len(draft), stream.target(len(draft), laws[len(draft)]), "bonus")

    return rule


def block_with(
    *, stop_early: bool = False, whole_p: bool = False, token_coin: bool = False
) -> Rule:
    """The block rule, broken in one way."""

    def rule(draft: Draft, laws: Sequence[Law], stream: Any) -> Verdict:
        g, kept, kept_weight, w = len(draft), 0, Fraction(1), Fraction(1)
        for i, (x, q) in enumerate(zip(draft.tokens, draft.laws, strict=True), start=1):
            w = min(1, w * laws[i - 1].prob(x) / Fraction(q.prob(x)))
            s = excess(laws[i], draft.laws[i], w) if i < g else 0
            h = w if i == g else s / (s + 1 - w) if s + 1 - w > 0 else 1
            if token_coin:
                h = acceptance(laws[i - 1], q, x)
            if stream.accept(i - 1, h):
                kept, kept_weight = i, w
            elif stop_early:
                break
        if kept == g:
            return Verdict(g, stream.target(g, laws[g]), "bonus")
        weight = 1 if whole_p else kept_weight
        law = residual(laws[kept], draft.laws[kept], weight)
        return Verdict(kept, stream.target(kept, law), "residual")

    return rule


def bonus_of_another_law(rule: Rule) -> Rule:
    """The token after a whole draft comes from logits that the settings were not applied to."""
    raw = dense("1/3", "1/3", "1/3")
    return lambda draft, laws, stream: rule(draft, [*laws[:-1], raw], stream)


def stale_context(rule: Rule) -> Rule:
    """Every drafted position is judged by the first one's law: penalties were not brought along."""
    return lambda draft, laws, stream: rule(draft, [laws[0]] * len(laws), stream)


def swapped(p: Law, q: Law, x: int) -> Any:
    return acceptance(q, p, x) if p.prob(x) > 0 else 1


WRONG = {
    "accept by q / p": token_with(coin=swapped),
    "p after a rejection": token_with(after=lambda p, _: p),
    "q - p after a rejection": token_with(after=lambda p, q: residual(q, p)),
    "block: stops at the first failure": block_with(stop_early=True),
    "block: residual of p, not of w p": block_with(whole_p=True),
    "block: the token rule's coins": block_with(token_coin=True),
    "block: both of these": block_with(token_coin=True, whole_p=True),
    "token: bonus of another law": bonus_of_another_law(token),
    "block: bonus of another law": bonus_of_another_law(block),
    "coupled: bonus of another law": bonus_of_another_law(coupled),
    "token: stale context": stale_context(token),
    "coupled: stale context": stale_context(coupled),
}


@pytest.mark.parametrize("rule", WRONG.values(), ids=WRONG)
def test_wrong_verification_is_caught(rule: Rule) -> None:
    assert error(rule) > 0


@pytest.mark.parametrize("rule", [token_with(), block_with()], ids=["token", "block"])
def test_the_same_rules_unbroken_are_exact(rule: Rule) -> None:
    assert error(rule) == 0


# ------------------------------------------------------------------------ wrong drafts


def argmax_with_softmax_law(stream: Any) -> Draft:
    """Greedy drafts handed on with the law they were not drawn from."""
    tokens: tuple[int, ...] = ()
    for _ in range(CASE.g):
        law = CASE.draft[tokens]
        tokens = (*tokens, max(range(CASE.vocab), key=law.prob))
    return Draft(tokens, tuple(CASE.draft[tokens[:i]] for i in range(CASE.g)))


def argmax_as_point_mass(stream: Any) -> Draft:
    return Draft.of_certain(argmax_with_softmax_law(stream).tokens)


def another_temperature(stream: Any) -> Draft:
    """Drawn at half the temperature of the law that is handed on."""
    tokens: tuple[int, ...] = ()
    for i in range(CASE.g):
        squared = CASE.draft[tokens].probs ** 2
        tokens = (*tokens, stream.draft(i, Dense(squared / squared.sum())))
    return Draft(tokens, tuple(CASE.draft[tokens[:i]] for i in range(CASE.g)))


@pytest.mark.parametrize("rule", [token, block], ids=["token", "block"])
@pytest.mark.parametrize("drafting", [argmax_with_softmax_law, another_temperature])
def test_a_draft_with_a_law_it_was_not_drawn_from_is_caught(
    rule: Rule, drafting: Callable[[Any], Draft]
) -> None:
    assert error(rule, drafting=drafting) > 0
    assert error(coupled, drafting=drafting) == 0  # it never reads the draft's law


@pytest.mark.parametrize("rule", [token, block, coupled], ids=["token", "block", "coupled"])
def test_a_greedy_draft_as_point_masses_is_exact(rule: Rule) -> None:
    assert error(rule, drafting=argmax_as_point_mass) == 0


# ------------------------------------------------------------------------ draft lengths that look

FAIR, CONFIDENT = dense("1/2", "1/2"), dense("9/10", "1/10")
COIN = Case(
    "coin", 2, 1, dict.fromkeys(prefixes(2, 2), FAIR), dict.fromkeys(prefixes(2, 2), CONFIDENT)
)


def dropping(stream: Any) -> Draft:
    """The sampled token is thrown away where it is improbable: the wrong way to stop."""
    x = stream.draft(0, CONFIDENT)
    return Draft((x,), (CONFIDENT,)) if CONFIDENT.prob(x) > Fraction(1, 2) else Draft()


def stopping_after(stream: Any) -> Draft:
    """The improbable token ends the draft but stays in it."""
    tokens = (stream.draft(0, CONFIDENT),)
    if CONFIDENT.prob(tokens[0]) > Fraction(1, 2):
        tokens = (*tokens, stream.draft(1, CONFIDENT))
    return Draft(tokens, (CONFIDENT,) * len(tokens))


@pytest.mark.parametrize("rule", [token, block], ids=["token", "block"])
def test_dropping_an_improbable_token_is_caught(rule: Rule) -> None:
    found = output_law(rule, COIN.target, dropping, 1)
    assert found == {(0,): Fraction(55, 100), (1,): Fraction(45, 100)}


@pytest.mark.parametrize("rule", [token, block, coupled], ids=["token", "block", "coupled"])
def test_stopping_after_an_improbable_token_is_exact(rule: Rule) -> None:
    assert output_law(rule, COIN.target, stopping_after, 3) == target_law(COIN.target, 3)


def test_the_targets_own_choice_does_not_mind_dropping() -> None:
    assert output_law(coupled, COIN.target, dropping, 2) == target_law(COIN.target, 2)


# ------------------------------------------------------------------------ several drafts at a node

TARGET, DRAFT = dense("1/10", "2/10", "3/10", "4/10"), dense("4/10", "3/10", "2/10", "1/10")


def at_a_node(
    k: int, *, fresh_residual: bool, replace: bool, update_q: bool
) -> Callable[[Replay], int]:
    """k drafts at one position, tried one after the other.

    Args:
        k: How many.
        fresh_residual: After a rejection p becomes the residual; the wrong rule keeps p.
        replace: The drafts are independent; otherwise no two are the same.
        update_q: A draft is judged by the law that it was really drawn from.
    """

    def program(noise: Replay) -> int:
        p: Law = TARGET
        left: Law = DRAFT
        for i in range(k):
            x = noise.draft(i, left)
            q = left if update_q else DRAFT
            if noise.accept(i, acceptance(p, q, x)):
                return x
            if fresh_residual:
                p = residual(p, q)
            if not replace:
                rest = left.probs.copy()
                rest[x] = Fraction(0)
                left = Dense(rest / rest.sum())
        return noise.target(0, p)

    return program


def node_error(program: Callable[[Replay], int]) -> Any:
    return distance(law_of(program), dict(support(TARGET)))


@pytest.mark.parametrize("k", [2, 3])
def test_independent_tests_of_several_drafts_are_caught(k: int) -> None:
    wrong = at_a_node(k, fresh_residual=False, replace=True, update_q=True)
    right = at_a_node(k, fresh_residual=True, replace=True, update_q=True)
    assert node_error(wrong) > 0
    assert node_error(right) == 0


@pytest.mark.parametrize("k", [2, 3])
def test_drafts_without_replacement_judged_by_the_first_law_are_caught(k: int) -> None:
    wrong = at_a_node(k, fresh_residual=True, replace=False, update_q=False)
    right = at_a_node(k, fresh_residual=True, replace=False, update_q=True)
    assert node_error(wrong) > 0
    assert node_error(right) == 0


# ------------------------------------------------------------------------ lenience

LENIENCES = [Fraction(1, 2), Fraction(3, 10), Fraction(1, 10)]


def lenient(lenience: Fraction, scaled_residual: bool) -> Rule:
    """Appendix A.5: q is multiplied by the lenience before it is compared."""

    def scaled(q: Law) -> Dense:
        return Dense(q.probs * lenience)

    def after(p: Law, q: Law) -> Law:
        return residual(p, scaled(q) if scaled_residual else q)

    return token_with(coin=lambda p, q, x: acceptance(p, scaled(q), x), after=after)


@pytest.mark.parametrize("scaled_residual", [False, True], ids=["p - q", "p - l q"])
@pytest.mark.parametrize("lenience", LENIENCES, ids=str)
def test_lenience_is_not_exact_but_bounded(lenience: Fraction, scaled_residual: bool) -> None:
    worst = Fraction(0)
    for case in (c for c in cases() if c.name == "dense" and c.g == 1):
        p, q = case.target[()], case.draft[()]
        drafting = draft_from(case.draft, 1)
        rule = lenient(lenience, scaled_residual)
        found = output_law(rule, case.target, drafting, 1)
        assert distance(found, target_law(case.target, 1)) > 0
        for (x,), weight in found.items():
            assert weight <= p.prob(x) / lenience
            worst = max(worst, weight / p.prob(x))
        coin = {x: acceptance(p, Dense(q.probs * lenience), x) for x in range(case.vocab)}
        accepted = sum(q.prob(x) * probability for x, probability in coin.items())
        assert accepted == theory.lenient_acceptance(p, q, lenience)
    assert worst > 1
