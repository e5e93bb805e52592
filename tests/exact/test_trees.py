"""Trees: the rules that walk them are exact, and accept what the closed form says."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
from enumeration import (
    Form,
    Prefix,
    RequestReplay,
    Rule,
    SharedReplay,
    accepted_tokens,
    branches,
    candidates,
    continued,
    decode,
    draft_from,
    judged,
    law_of,
    output_law,
    round_law,
    target_law,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from lawcases import FORMS, Case, TreeCase, cases, prefixes, tree_cases

from draftproof import theory
from draftproof.core import Draft, Law, PointMass, Verdict
from draftproof.rng import Independent, Noise
from draftproof.verify import coupled, token, tree

CASES = cases()
TREES = tree_cases()
RULES = {"tree": tree, "coupled": coupled}
every_tree = pytest.mark.parametrize("drawn", TREES, ids=str)
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


# ------------------------------------------------------------------------ exactness


@every_tree
@every_rule
def test_the_output_law_is_the_targets(drawn: TreeCase, rule: Rule) -> None:
    target, length = drawn.case.target, drawn.case.g + 1
    found = output_law(rule, target, drawn.drafting(), length)
    assert all(isinstance(weight, Fraction | int) for weight in found.values())
    assert found == target_law(target, length)


@pytest.mark.parametrize(
    "drawn", [t for t in TREES if t.sampled and t.form in ("2-1", "2-2")], ids=str
)
@every_rule
def test_cousins_may_share_their_noise(drawn: TreeCase, rule: Rule) -> None:
    """Addressed by depth, two sampled tokens of different parents come from the same number."""
    drafting, target, length = drawn.drafting(by_depth=True), drawn.case.target, drawn.case.g + 1

    def program(request: RequestReplay) -> tuple[Prefix, int]:
        noise = request.round(0, 0)
        return judged(rule, target, drafting(noise), noise)

    emitted = law_of(program, RequestReplay)
    found = continued(((tokens, w) for (tokens, _), w in emitted.items()), target, length)
    assert found == target_law(target, length)


@pytest.mark.parametrize("sampled", [False, True], ids=["certain", "sampled"])
@pytest.mark.parametrize("form", ["2", "2-1"])
@pytest.mark.parametrize("case", [c for c in CASES if c.g == 3 and c.vocab == 2], ids=str)
@every_rule
def test_a_request_of_several_rounds_is_exact(
    case: Case, form: str, sampled: bool, rule: Rule
) -> None:
    drafting = TreeCase(case, form, sampled).drafting(by_depth=True)

    def program(request: RequestReplay) -> Prefix:
        return decode(rule, case.target, drafting, 3, request.round)[0]

    assert law_of(program, RequestReplay) == target_law(case.target, 3)


@pytest.mark.parametrize("drawn", [t for t in TREES if t.form not in ("2-1", "2-2")], ids=str)
def test_coupled_is_exact_on_shared_noise(drawn: TreeCase) -> None:
    """Forms with at most one sampled token at a depth, tied to the target's choice there."""
    target, length = drawn.case.target, drawn.case.g + 1
    found = output_law(coupled, target, drawn.drafting(by_depth=True), length, SharedReplay)
    assert found == target_law(target, length)


# ------------------------------------------------------------------------ chains


@pytest.mark.parametrize("case", [c for c in CASES if c.vocab**c.g <= 27], ids=str)
def test_a_chain_is_judged_as_by_token(case: Case) -> None:
    """The same verdict in every outcome of the noise."""

    def verdicts(rule: Rule) -> list[tuple[Verdict, Any]]:
        def program(noise: Any) -> Verdict:
            draft = draft_from(case.draft, case.g)(noise)
            return rule(draft, [case.target[draft.tokens[:i]] for i in range(case.g + 1)], noise)

        return list(branches(program))

    assert verdicts(tree) == verdicts(token)


FLOAT_CASES = [case.as_floats() for case in CASES if case.g == 3 and case.vocab == 3]


@settings(deadline=None)
@given(seed=st.integers(0, 2**64 - 1), case=st.sampled_from(FLOAT_CASES))
def test_a_chain_is_judged_as_by_token_on_real_noise(seed: int, case: Case) -> None:
    stream = Independent(Noise(seed), 0, 0)
    chain = draft_from(case.draft, case.g)(stream)
    laws = [case.target[chain.tokens[:i]] for i in range(case.g + 1)]
    as_tree = Draft(chain.tokens, chain.laws, tuple(range(-1, case.g - 1)))
    assert tree(as_tree, laws, stream) == tree(chain, laws, stream) == token(chain, laws, stream)


# ------------------------------------------------------------------------ verdicts

# Behind the text 1 or 2; behind the 1 a 3 or 4, behind the 2 a 5.
BUSH = Draft.of_certain((1, 2, 3, 4, 5), (-1, -1, 0, 0, 1))


@pytest.mark.parametrize(
    ("choices", "path", "kind"),
    [
        ((0, 9, 9, 9, 9, 9), (), "residual"),
        ((1, 0, 9, 9, 9, 9), (0,), "residual"),
        ((2, 9, 6, 9, 9, 9), (1,), "residual"),
        ((1, 4, 9, 9, 7, 9), (0, 3), "bonus"),
        ((2, 9, 5, 9, 9, 7), (1, 4), "bonus"),
    ],
)
@every_rule
def test_the_path_of_a_greedy_target(
    rule: Rule, choices: tuple[int, ...], path: tuple[int, ...], kind: str
) -> None:
    laws: list[Law] = [PointMass(choice) for choice in choices]
    verdict = rule(BUSH, laws, RequestReplay().round(0, 0))
    last = path[-1] if path else -1
    assert verdict == Verdict(len(path), choices[last + 1], kind, path)


@every_rule
def test_nothing_drafted_is_plain(rule: Rule) -> None:
    assert rule(Draft(), [PointMass(3)], RequestReplay().round(0, 0)) == Verdict(0, 3, "plain")


# ------------------------------------------------------------------------ acceptance


@pytest.mark.parametrize("drawn", [t for t in TREES if t.case.g == 1], ids=str)
def test_acceptance_at_a_node(drawn: TreeCase) -> None:
    """The closed form, which is the best that any rule does, and no less than a single draft's."""
    p, q = drawn.case.target[()], drawn.case.draft[()]
    found = accepted_tokens(round_law(tree, drawn.case.target, drawn.drafting()))
    sure, rest = candidates(q, len(FORMS[drawn.form]), sampled=drawn.sampled)
    assert found == theory.several_acceptance(p, sure, rest) <= 1
    assert found == most_accepted(p, sure, rest, drawn.case.vocab)
    if drawn.sampled:
        assert found >= theory.acceptance(p, q)
    by_choice = accepted_tokens(round_law(coupled, drawn.case.target, drawn.drafting()))
    assert by_choice == found if rest is None else by_choice <= found


def most_accepted(p: Law, sure: list[int], rest: Law | None, vocab: int) -> Any:
    """1 + min over sets H of P(H) - Q(H), Q(H) being the chance that H holds all candidates."""

    def within(held: tuple[int, ...]) -> Any:
        if not set(sure) <= set(held):
            return 0
        return 1 if rest is None else sum(rest.prob(x) for x in held)

    sets = (h for n in range(vocab + 1) for h in itertools.combinations(range(vocab), n))
    return 1 + min(sum(p.prob(x) for x in held) - within(held) for held in sets)


@pytest.mark.parametrize("sampled", [False, True], ids=["certain", "sampled"])
@pytest.mark.parametrize("form", FORMS)
def test_accepted_tokens_where_all_positions_are_alike(form: str, sampled: bool) -> None:
    """The sum, over the tree's tokens, of the product of the chances along the path to each."""
    case = next(c for c in CASES if c.name == "dense" and c.vocab == 3 and c.g == 1)
    p, q = case.target[()], case.draft[()]

    def worth(branches: Form) -> Any:
        if not branches:
            return 0
        sure, rest = candidates(q, len(branches), sampled=sampled)
        chances = [p.prob(x) for x in sure]
        if rest is not None:
            chances.append(theory.several_acceptance(p, sure, rest) - sum(chances))
        pairs = zip(chances, branches, strict=True)
        return sum(chance * (1 + worth(branch)) for chance, branch in pairs)

    alike = Case("alike", 3, 3, dict.fromkeys(prefixes(3, 3), p), dict.fromkeys(prefixes(3, 3), q))
    emitted = round_law(tree, alike.target, TreeCase(alike, form, sampled).drafting())
    assert accepted_tokens(emitted) == worth(FORMS[form])
