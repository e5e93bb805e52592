"""Trees: where tokens are drawn tried, kept where they gain, and left alone where they do not.

Rounds cost what a curve says, whatever the clock, and texts come from fixed seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeModel, FakeSession

from draftproof.core import Guess, Prompt, Round
from draftproof.drafters import DraftModel
from draftproof.engine import Speculator
from draftproof.planner import Auto, CostCurve, Costs
from draftproof.planner.beliefs import Beliefs
from draftproof.planner.forks import Forks
from draftproof.planner.guide import Prices, RoundGuide
from draftproof.planner.length import AutoPolicy
from draftproof.planner.outlook import Outlook
from draftproof.planner.running import Experience, RunningCosts
from draftproof.ports import Branching, Guide

VOCAB = 48
FLAT = CostCurve(tuple(range(1, 18)), tuple(1 + 0.03 * n for n in range(17)))
STEEP = CostCurve(tuple(range(1, 18)), tuple(1 + 0.1 * n for n in range(17)))


class BranchingSession(FakeSession):
    """It scores trees, each node by the path to it."""

    def score_tree(self, tokens: Sequence[int], parents: Sequence[int]) -> np.ndarray:
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tokens, parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        self.open_tree = tuple(tokens)
        return np.stack([self.model.logits_after((*self.tokens, *path)) for path in paths])

    def keep(self, path: Sequence[int]) -> None:
        self.score([self.open_tree[node] for node in path], keep=0)


class BranchingModel(FakeModel):
    """A model of such sessions."""

    def open(self, prompt: Prompt) -> BranchingSession:
        assert isinstance(prompt, tuple)
        return BranchingSession(self, prompt, ())


class Pretended(AutoPolicy):
    """A policy whose rounds cost what the curve says, over target passes and the draft's."""

    def __init__(self, auto: Auto, experience: Experience, trees: bool) -> None:
        self.costs, self.trees = auto.costs, trees
        self.spent, self.emitted, self.forked = 0.0, 0, 0
        super().__init__(auto, experience)

    def guide(self, branching: bool, room: int, unread: float) -> Guide:
        assert branching
        self.leads = super().guide(branching=self.trees)
        return self.leads

    def observe(self, round: Round) -> None:
        assert isinstance(self.leads, RoundGuide)
        told = replace(
            round,
            draft_seconds=self.leads.paid * self.costs.draft_seconds,
            score_seconds=self.costs.curve(round.scored),
            verify_seconds=0.0,
        )
        self.spent += told.seconds
        self.emitted += told.emitted
        self.forked += len({guess.parent for guess in round.guesses}) < round.drafted
        super().observe(told)


class Pretend:
    """Makes them; `speed` is in tokens per plain pass, over all requests."""

    def __init__(self, curve: CostCurve, draft_seconds: float, trees: bool) -> None:
        self.auto, self.trees = Auto(Costs(curve, (draft_seconds,))), trees
        self.experience = Experience(self.auto.acceptance, self.auto.weight)
        self.made: list[Pretended] = []

    def begin(self, prompt: Prompt, reproducible: bool = False) -> Pretended:
        self.made.append(Pretended(self.auto, self.experience, self.trees))
        return self.made[-1]

    @property
    def speed(self) -> float:
        return sum(p.emitted for p in self.made) / sum(p.spent for p in self.made)

    @property
    def forked(self) -> int:
        return sum(policy.forked for policy in self.made)


def decoded(
    curve: CostCurve, draft_seconds: float, distance: float, trees: bool, temperature: float = 0.7
) -> Pretend:
    """1,600 tokens."""
    target = BranchingModel(VOCAB, seed=1, sharpness=2.5)
    near = FakeModel(VOCAB, near=target, distance=distance, seed=2, sharpness=2.5)
    lengths = Pretend(curve, draft_seconds, trees)
    speculator = Speculator(target, None, DraftModel(near, VOCAB), lengths)
    for seed in range(8):
        speculator.generate(
            [1, 2, 3, seed],
            max_tokens=200,
            temperature=temperature,
            eos=(),
            seed=seed,
            verify="block",
        )
    return lengths


def test_trees_gain_where_a_draft_is_dear_and_rows_are_cheap() -> None:
    """Speeds have a standard error near 2 % here; the gain is near 4 %."""
    chains, trees = (decoded(FLAT, 0.15, 0.4, trees) for trees in (False, True))
    assert chains.forked == 0
    assert trees.forked > 100
    assert trees.speed > 1.02 * chains.speed


def test_trees_cost_nothing_where_they_do_not_pay() -> None:
    """Where every candidate was given company whenever it might be, it was 10 % slower."""
    chains, trees = (decoded(STEEP, 0.1, 0.2, trees) for trees in (False, True))
    assert trees.forked < 300
    assert trees.speed > 0.95 * chains.speed


def test_a_greedy_models_leaves_gain() -> None:
    chains, trees = (decoded(FLAT, 0.15, 0.4, trees, temperature=0.0) for trees in (False, True))
    assert chains.forked == 0
    assert trees.forked > 100
    assert trees.speed > 1.04 * chains.speed


# --- what is learned ---


def played(forks: Forks, gain: float, several: bool) -> None:
    """A round of one paid token, with a set of candidates or without."""
    prices = Prices(tuple(1 + 0.03 * n for n in range(9)), 0.1, 1.0, 100.0)
    beliefs = Beliefs()
    for turn in range(40):
        beliefs.learn("model", 0.5, kept=turn % 2 == 0)
        beliefs.learn("best", 0.5, kept=gain > 0)
        beliefs.learn("rest", 0.5, kept=False)
    leads = RoundGuide(prices, beliefs, 0.5, most_paid=8, branching=True, several=several)
    assert leads.value("model", after=-1) > 0
    if several:
        index, lead = leads.choose([[("model", 0.5)], [("best", 0.5), ("rest", 0.5)]], -1)
        assert (index, lead) == ((1, 0) if gain > 0 else (0, 0))
        source = "best" if gain > 0 else "model"
    else:
        source = "model"
    leads.take(source, 0.5, after=-1)
    assert leads.paid == 1
    guess = Guess(0, -1, source, 0.5, 0.5, True)
    forks.observe(Round(1, 1, 2, 0.1, 1.03, 0.0, guesses=(guess,)), leads)


def test_sets_are_tried_once_single_tokens_are_known() -> None:
    forks = Forks(Beliefs())
    meant = []
    for _ in range(60):
        meant.append(forks.several())
        played(forks, -1.0, several=meant[-1])
    assert meant.index(True) == 4
    assert meant.count(True) == 3  # the others are two tries


def test_single_tokens_stay_known_while_sets_gain() -> None:
    forks = Forks(Beliefs())
    meant = []
    for _ in range(60):
        meant.append(forks.several())
        played(forks, 1.0, several=meant[-1])
    assert 40 < meant.count(True) < 52


def test_without_candidates_nothing_is_planned_for_them() -> None:
    forks = Forks(Beliefs())
    costs = RunningCosts(Costs(FLAT, (0.1,)), 16)
    assert forks.ahead(0.7, costs, 16, 0) == Outlook()
    leads = RoundGuide(
        Prices(costs.seconds, 0.1, 1.0, 100.0), Beliefs(), 0.7, most_paid=8, branching=True
    )
    assert leads.value("model", after=-1) > 0
    leads.take("model", 0.7, after=-1)
    assert leads.value("next best", 0.2, after=-1) > 0
    leads.take("next best", 0.2, after=-1)
    guesses = tuple(Guess(i, -1, "", 0.5, 0.5, i == 1) for i in range(2))
    forks.observe(Round(2, 1, 2, 0.1, 1.06, 0.0, guesses=guesses), leads)
    ahead = forks.ahead(0.7, costs, 16, 1)
    assert max(ahead.widths) > 1
    assert len(ahead.widths) <= 8


def test_a_single_token_is_preferred_until_it_is_known() -> None:
    """What sets are believed to gain rests on how a single token fares there."""
    prices = Prices(tuple(1 + 0.01 * n for n in range(9)), 0.1, 0.5, 100.0)
    options = [[("model", 0.3)], [("best", 0.3), ("rest", 0.35)]]
    beliefs = Beliefs()
    leads = RoundGuide(prices, beliefs, 0.5, most_paid=8, branching=True, several=True)
    assert leads.choose(options, -1) == (0, 0)
    for turn in range(9):
        beliefs.learn("model", 0.3, kept=turn % 3 == 0)
    assert leads.choose(options, -1) == (1, 1)


def test_the_fake_can_branch() -> None:
    session = BranchingModel(VOCAB).open((1, 2, 3))
    assert isinstance(session, Branching)
    session.score((1, 2), keep=0)
    rows = session.score_tree((3, 4, 5), (-1, 0, 0))
    session.keep((0, 2))
    assert session.tokens == [1, 2, 3, 5]
    assert np.array_equal(rows[2], BranchingModel(VOCAB).logits_after((1, 2, 3, 5)))
    with pytest.raises(AttributeError):
        FakeModel(VOCAB).open((1,)).score_tree((1,), (-1,))  # type: ignore[attr-defined]
