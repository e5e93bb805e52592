"""Targets and drafters given by tables of rational laws, of every kind that a rule can meet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from enumeration import Drafting, Form, Prefix, Tree, dense, tree_from

from draftproof.core import Dense, Law, PointMass


@dataclass(frozen=True)
class Case:
    """A target and a drafter as trees of rational laws over prefixes of up to `g` tokens."""

    name: str
    vocab: int
    g: int
    target: Tree
    draft: Tree

    def __str__(self) -> str:
        return f"{self.name}-V{self.vocab}-g{self.g}"

    def as_floats(self) -> Case:
        """The same laws in float64."""
        return Case(self.name, self.vocab, self.g, _floats(self.target), _floats(self.draft))


def _floats(tree: Tree) -> Tree:
    return {
        prefix: Dense(law.probs.astype(np.float64)) if isinstance(law, Dense) else law
        for prefix, law in tree.items()
    }


def prefixes(vocab: int, longest: int) -> list[Prefix]:
    """All prefixes of up to `longest` tokens."""
    return [p for n in range(longest + 1) for p in itertools.product(range(vocab), repeat=n)]


def random_law(dice: random.Random, tokens: Sequence[int], vocab: int, zeros: bool) -> Dense:
    """A law on `tokens` out of `vocab`, with small numerators; some of them 0 with `zeros`."""
    while True:
        shares = [dice.randint(0 if zeros else 1, 5) if x in tokens else 0 for x in range(vocab)]
        if sum(shares):
            return dense(*(Fraction(share, sum(shares)) for share in shares))


def _tree(vocab: int, g: int, make: Callable[[], Law]) -> Tree:
    return {prefix: make() for prefix in prefixes(vocab, g)}


def cases() -> list[Case]:
    """Vocabularies of 2 to 4, drafts of 1 to 3 tokens; every kind of law, fixed by its seed."""
    found = []
    for vocab, g in itertools.product((2, 3, 4), (1, 2, 3)):
        dice = random.Random(100 * vocab + g)
        every, half = range(vocab), vocab // 2

        def law(tokens: Sequence[int] = every, zeros: bool = False) -> Law:
            return random_law(dice, tokens, vocab, zeros)  # noqa: B023 called at once

        def point() -> Law:
            return PointMass(dice.randrange(vocab))  # noqa: B023

        def any_law() -> Law:
            return dice.choice([point, law, lambda: law(zeros=True)])()  # noqa: B023

        same = _tree(vocab, g, law)
        kinds: dict[str, tuple[Callable[[], Law], Callable[[], Law]]] = {
            "dense": (law, law),
            "zeros": (lambda: law(zeros=True), lambda: law(zeros=True)),
            "certain-draft": (law, point),
            "greedy-target": (point, law),
            "greedy-both": (point, point),
            "disjoint": (lambda: law(range(half)), lambda: law(range(half, vocab))),  # noqa: B023
            "mixed": (any_law, any_law),
        }
        for name, (p, q) in kinds.items():
            found.append(Case(name, vocab, g, _tree(vocab, g, p), _tree(vocab, g, q)))
        found.append(Case("self-draft", vocab, g, same, same))
    return found


# Forms of trees: children of the root, then children of each of these; and chains with a leaf
# beside every node, before or behind it.
FORMS: dict[str, Form] = {
    "2": ((), ()),
    "3": ((), (), ()),
    "1-1": (((),),),
    "2-1": (((),), ((),)),
    "1-2": (((), ()),),
    "2-2": (((), ()), ((), ())),
    "leaves-behind": ((((), ()), ()), ()),
    "leaves-before": ((), ((), ((), ()))),
}


def depth_of(form: Form) -> int:
    """Tokens on the longest path."""
    return max((1 + depth_of(branch) for branch in form), default=0)


@dataclass(frozen=True)
class TreeCase:
    """A case whose drafts are trees of one form."""

    case: Case
    form: str
    sampled: bool

    def __str__(self) -> str:
        return f"{self.case}-{self.form}-{'sampled' if self.sampled else 'certain'}"

    def drafting(self, by_depth: bool = False) -> Drafting:
        """How they are drafted."""
        form = FORMS[self.form]
        return tree_from(self.case.draft, form, sampled=self.sampled, by_depth=by_depth)


def tree_cases() -> list[TreeCase]:
    """Every form with every case of its depth, of certain and of sampled drafts.

    The larger vocabularies come with the plainest laws alone: their trees are the most work.
    """
    laws = cases()
    return [
        TreeCase(case, form, sampled)
        for form in FORMS
        for case in laws
        if case.g == depth_of(FORMS[form])
        and case.vocab**case.g <= (27 if case.name == "dense" else 9)
        for sampled in (False, True)
    ]
