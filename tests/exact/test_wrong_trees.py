"""Tree rules that are wrong in known ways: the enumeration must catch every one.

The laws are rational, so any distance above 0 is proof, not chance. Each form has a certain and a
sampled child at the root, and tokens behind both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from enumeration import (
    Drafting,
    Rule,
    accepted_tokens,
    along,
    candidates,
    distance,
    output_law,
    round_law,
    target_law,
)
from lawcases import TreeCase, cases

from draftproof.core import Dense, Draft, Law, PointMass, Verdict
from draftproof.verify import coupled, tree
from draftproof.verify.token import acceptance, residual

CASE = next(c for c in cases() if str(c) == "dense-V3-g2")
TREES = {form: TreeCase(CASE, form, sampled=True).drafting() for form in ("2-1", "2-2")}
every_form = pytest.mark.parametrize("drafting", TREES.values(), ids=TREES)


def error(rule: Rule, drafting: Drafting) -> Any:
    """Total variation between the output's law and the target's."""
    found = output_law(rule, CASE.target, drafting, CASE.g + 1)
    return distance(found, target_law(CASE.target, CASE.g + 1))


# ------------------------------------------------------------------------ wrong verification


def walked(
    *,
    after: Callable[[Law, Law, Draft, int], Law] = lambda p, q, draft, node: residual(p, q),
    goes_on: bool = True,
    into_rejected: bool = False,
    law_by_depth: bool = False,
) -> Rule:
    """The tree rule, changed in one way; as it is, right.

    Args:
        after: The law after a rejection, from p, q, the draft and the node.
        goes_on: The walk goes on where the token drawn after a rejection is a child.
        into_rejected: Where it is none, the walk goes on behind the rejected token.
        law_by_depth: The laws are looked up as in a chain.
    """

    def rule(draft: Draft, laws: Sequence[Law], stream: Any) -> Verdict:
        path: list[int] = []
        while children := draft.children(path[-1] if path else -1):
            node, depth = path[-1] if path else -1, len(path)
            p = laws[depth if law_by_depth else node + 1]
            x = max(children, key=lambda c: isinstance(draft.laws[c], Dense))
            q = draft.laws[x]
            if stream.accept(depth, acceptance(p, q, draft.tokens[x])):
                path.append(x)
                continue
            y = stream.target(depth, after(p, q, draft, node))
            child = draft.child(node, y) if goes_on else None
            if child is None and into_rejected:
                child = x
            if child is None:
                return Verdict(depth, y, "residual", tuple(path))
            path.append(child)
        last = len(path) if law_by_depth else path[-1] + 1
        return Verdict(len(path), stream.target(len(path), laws[last]), "bonus", tuple(path))

    return rule


def whole_q(p: Law, q: Law, draft: Draft, node: int) -> Law:
    """The residual against the draft's law before the certain tokens were taken from it."""
    return residual(p, CASE.draft[along(draft, node)])


def independent_tests(draft: Draft, laws: Sequence[Law], stream: Any) -> Verdict:
    """Every child has a coin of its own with min(1, p / q); after them comes the residual."""
    path: list[int] = []
    node = -1
    while children := draft.children(node):
        p, kept = laws[node + 1], None
        for i, c in enumerate(children):
            if stream.accept(10 * len(path) + i, acceptance(p, draft.laws[c], draft.tokens[c])):
                kept = c
                break
        if kept is None:
            law = residual(p, draft.laws[children[-1]])
            return Verdict(len(path), stream.target(len(path), law), "residual", tuple(path))
        path.append(kept)
        node = kept
    return Verdict(len(path), stream.target(len(path), laws[node + 1]), "bonus", tuple(path))


WRONG = {
    "independent tests of all children": independent_tests,
    "the residual of the whole q": walked(after=whole_q),
    "p after a rejection": walked(after=lambda p, q, draft, node: p),
    "into the rejected child": walked(into_rejected=True),
    "laws by depth": walked(law_by_depth=True),
}


@pytest.mark.parametrize("rule", WRONG.values(), ids=WRONG)
@every_form
def test_wrong_verification_is_caught(rule: Rule, drafting: Drafting) -> None:
    assert error(rule, drafting) > 0


@every_form
def test_the_same_rule_unbroken_is_exact(drafting: Drafting) -> None:
    assert error(walked(), drafting) == 0


@every_form
def test_stopping_at_a_candidate_is_exact_but_accepts_less(drafting: Drafting) -> None:
    """After a rejection a certain child may be emitted without walking on from it."""
    stops = walked(goes_on=False)
    assert error(stops, drafting) == 0
    kept = [accepted_tokens(round_law(r, CASE.target, drafting)) for r in (stops, walked())]
    assert kept[0] < kept[1]


# ------------------------------------------------------------------------ wrong drafts


def two(x: int, q: Law, sure: int) -> Draft:
    """A certain and a sampled child of the root, each with a certain one of its own."""
    behind = [max(range(CASE.vocab), key=CASE.draft[token,].prob) for token in (sure, x)]
    laws = (PointMass(sure), q, *map(PointMass, behind))
    return Draft((sure, x, *behind), laws, (-1, -1, 0, 1))


def drawn_from_the_rest(stream: Any, handed: Law | None = None) -> Draft:
    """As it should be, unless another law is handed on."""
    (sure,), rest = candidates(CASE.draft[()], 2, sampled=True)
    assert rest is not None
    return two(stream.draft(0, rest), handed or rest, sure)


def with_the_whole_law(stream: Any) -> Draft:
    """Drawn from what the certain token leaves of q, but handed on with q."""
    return drawn_from_the_rest(stream, CASE.draft[()])


def dropping_repeats(stream: Any) -> Draft:
    """Drawn from the whole q, and thrown away where it is the certain token."""
    q = CASE.draft[()]
    (sure,), _ = candidates(q, 2, sampled=True)
    x = stream.draft(0, q)
    return Draft.of_certain((sure,)) if x == sure else two(x, q, sure)


@pytest.mark.parametrize("drafting", [with_the_whole_law, dropping_repeats])
def test_a_draft_with_a_law_it_was_not_drawn_from_is_caught(drafting: Drafting) -> None:
    assert error(tree, drafting) > 0
    assert error(coupled, drafting) == 0  # it never reads the draft's law


@pytest.mark.parametrize("rule", [tree, coupled], ids=["tree", "coupled"])
def test_the_same_draft_with_its_own_law_is_exact(rule: Rule) -> None:
    assert error(rule, drawn_from_the_rest) == 0
