"""The trees that a draft model and its matches really draft: the law stays the target's, exactly.

The proposers of `drafters.model` and `drafters.mix` run as they are, on rational laws, under the
guide that `auto` uses. What differs from round to round, how many candidates there are, which of
them the trunk goes on behind and how deep it goes, follows from the laws and the past.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from enumeration import (
    Drafting,
    Prefix,
    RequestReplay,
    Rule,
    Tree,
    branches,
    decode,
    distance,
    law_of,
    output_law,
    target_law,
)
from fakes import FakeModel
from lawcases import Case, cases

from draftproof.core import Dense, Draft, Law, PointMass
from draftproof.drafters import DraftModel, Mix, SuffixDrafter
from draftproof.drafters.candidates import without
from draftproof.planner.beliefs import Beliefs
from draftproof.planner.guide import Prices, RoundGuide
from draftproof.planner.outlook import Outlook
from draftproof.verify import block, tree

CASES = [
    case
    for case in cases()
    if case.g == 2 and case.vocab in (2, 3) and case.name in ("dense", "zeros", "self-draft")
]
PROMPT = (0, 1, 0, 0, 1)


class Table:
    """The draft's laws, by the output before the position; logits have no say."""

    def __init__(self, laws: Tree) -> None:
        self.laws = laws

    def law(self, logits: object, output: Sequence[int]) -> Law:
        return self.laws[tuple(output)]


def leads(widths: tuple[int, ...], several: bool, doubted: tuple[str, ...]) -> RoundGuide:
    """A guide that finds nearly everything worth its price, within the outlook's depth.

    It has learned that the sources `doubted` are never right, and the model half of the time.
    """
    beliefs = Beliefs()
    for source, twentieths in itertools.product({"fake", *doubted}, range(1, 20)):
        for turn in range(20):
            beliefs.learn(source, twentieths / 20, kept=source not in doubted and turn % 2 == 0)
    outlook = Outlook(widths, (0.6, 0.3, 0.1), 1.0)
    seconds = tuple(1 + 0.01 * n for n in range(9))
    prices = Prices(seconds, 0.02, 0.5, 100.0)
    return RoundGuide(
        prices,
        beliefs,
        0.5,
        most_paid=len(widths),
        branching=True,
        outlook=outlook,
        several=several,
    )


def drafting(
    case: Case,
    mixed: bool,
    widths: tuple[int, ...] = (2, 2),
    several: bool = True,
    doubted: tuple[str, ...] = (),
) -> Drafting:
    """What the drafter drafts; it sees the laws and the text, and the noise through the stream."""

    def draft(stream: Any, output: Prefix = (), limit: int = case.g) -> Draft:
        model = DraftModel(FakeModel(case.vocab, seed=4, sharpness=0.7), case.vocab)
        drafter = Mix(model, SuffixDrafter()) if mixed else model
        proposer = drafter.begin(PROMPT, Table(case.draft))
        depth = min(limit, case.g)
        if depth < 1:
            return Draft()
        return proposer.follow(output, depth, stream, leads(widths[:depth], several, doubted))

    return draft


every_drafter = pytest.mark.parametrize("mixed", [False, True], ids=["model", "mix"])
DOUBTS = [
    ("fake, likeliest", "fake, of the rest"),
    ("fake",),
    ("fake", "fake, likeliest"),
]
every_doubt = pytest.mark.parametrize("doubted", DOUBTS, ids=len)
every_case = pytest.mark.parametrize("case", CASES, ids=str)


@every_drafter
@every_case
@every_doubt
@pytest.mark.parametrize("widths", [(2, 2), (1, 2), (3, 2)], ids=str)
def test_the_law_is_the_targets(
    case: Case, mixed: bool, widths: tuple[int, ...], doubted: tuple[str, ...]
) -> None:
    draft = drafting(case, mixed, widths, doubted=doubted)
    found = output_law(tree, case.target, draft, case.g + 1)
    assert all(isinstance(weight, Fraction | int) for weight in found.values())
    assert found == target_law(case.target, case.g + 1)


@every_drafter
@pytest.mark.parametrize("case", [c for c in CASES if c.vocab == 2], ids=str)
def test_a_request_of_several_rounds_is_exact(case: Case, mixed: bool) -> None:
    """Noise is addressed by depth, as `rng.Independent` does, and candidates share it."""

    def program(request: RequestReplay) -> Prefix:
        return decode(tree, case.target, drafting(case, mixed, (2, 2)), 3, request.round)[0]

    assert law_of(program, RequestReplay) == target_law(case.target, 3)


@every_drafter
def test_the_drafts_differ_in_form(mixed: bool) -> None:
    """What the proofs above are about: one, two and more candidates, and either one's trunk."""
    forms, trunks, pairs = set(), set(), set()
    for case, doubted in itertools.product(CASES, DOUBTS):
        for draft, _ in branches(drafting(case, mixed, doubted=doubted)):
            forms.add(draft.parents)
            leading = [node for node in range(len(draft)) if draft.children(node)]
            trunks.update(type(draft.laws[node]) for node in leading)
            pairs.update(
                (draft.sources[node], draft.sources[child])
                for node in leading
                for child in draft.children(node)
            )
            assert len(draft.parents) == len(draft)
    assert any(len(parents) > len(set(parents)) for parents in forms)
    assert trunks == {Dense, PointMass}
    above = {source for source, _ in pairs}
    assert {"fake", "fake, likeliest", "fake, of the rest"} <= above
    if mixed:  # either one may be the trunk, and a match goes on beside it
        assert {"suffix, beside", "fake, beside"} <= above
        assert ("suffix, beside", "suffix") in pairs


# ------------------------------------------------------------------------ wrong in known ways


def whole_laws(case: Case, draft: Drafting) -> Drafting:
    """Handed on with the law before the certain candidates were taken from it."""

    def drafting(stream: Any) -> Draft:
        made = draft(stream)
        laws = tuple(
            case.draft[tuple(made.tokens[i] for i in made.path(node)[:-1])]
            if isinstance(law, Dense)
            else law
            for node, law in enumerate(made.laws)
        )
        return Draft(made.tokens, laws, made.parents, made.sources)

    return drafting


def not_renormalised(draft: Drafting, case: Case) -> Drafting:
    """Handed on with what the certain candidates leave, whose sum is below 1."""

    def drafting(stream: Any) -> Draft:
        made = draft(stream)
        laws = list(made.laws)
        for node, law in enumerate(made.laws):
            sure = [
                made.tokens[i]
                for i in made.children(made.parent(node))
                if isinstance(made.laws[i], PointMass)
            ]
            if isinstance(law, Dense) and sure:
                before = tuple(made.tokens[i] for i in made.path(node)[:-1])
                probs = case.draft[before].probs.copy()
                probs[sure] = Fraction(0)
                laws[node] = Dense(probs)
        return Draft(made.tokens, tuple(laws), made.parents, made.sources)

    return drafting


CASE = next(c for c in CASES if str(c) == "dense-V3-g2")


def error(draft: Drafting, rule: Rule = tree) -> Any:
    found = output_law(rule, CASE.target, draft, CASE.g + 1)
    return distance(found, target_law(CASE.target, CASE.g + 1))


@every_drafter
def test_another_law_than_the_one_drawn_from_is_caught(mixed: bool) -> None:
    right = drafting(CASE, mixed, (2, 2))
    assert error(right) == 0
    assert error(whole_laws(CASE, right)) > 0
    assert error(not_renormalised(right, CASE)) > 0


def test_the_rule_must_not_be_chosen_by_what_was_drawn() -> None:
    """Why a round that may branch is judged as a tree throughout, and says so in `parents`.

    A draft branches at its third token where the second one was a 0. Judging the chains among such
    drafts by `block` and the others by `tree` is off, though each rule is exact by itself.
    """
    case = next(c for c in cases() if str(c) == "dense-V3-g3")

    def draft(stream: Any, output: Prefix = ()) -> Draft:
        tokens: Prefix = ()
        laws: list[Law] = []
        for depth in range(2):
            laws.append(case.draft[tokens])
            tokens = (*tokens, stream.draft(depth, laws[-1]))
        parents: tuple[int, ...] = (-1, 0, 1)
        q = case.draft[tokens]
        assert isinstance(q, Dense)
        if tokens[1] == 0:
            sure = max(range(3), key=q.prob)
            rest = without(q, [sure])
            assert rest is not None
            tokens, laws, parents = (*tokens, sure), [*laws, PointMass(sure)], (*parents, 1)
            q = rest
        return Draft((*tokens, stream.draft(2, q)), (*laws, q), parents)

    def by_form(draft: Draft, laws: Sequence[Law], stream: Any) -> Any:
        return (block if draft.chain else tree)(draft, laws, stream)

    target = target_law(case.target, 3)
    assert output_law(tree, case.target, draft, 3) == target
    assert distance(output_law(by_form, case.target, draft, 3), target) > 0


@every_case
def test_where_nothing_branches_the_block_rule_is_exact_too(case: Case) -> None:
    draft = drafting(case, mixed=True, widths=(1, 1), several=False)
    assert all(not made.parents for made, _ in branches(draft))
    assert output_law(block, case.target, draft, case.g + 1) == target_law(case.target, case.g + 1)
