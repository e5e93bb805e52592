"""The sequential test of the output's law: right rules pass it and wrong ones do not.

Every case runs the real engine over fakes with fixed seeds, so that its outcome never changes. The
rates: a right rule fails with probability at most ALPHA = 1e-4 (Ville's inequality, over all
alternatives together); a rule whose law is one of the alternatives passes with probability at most
BETA = 0.01. The wrong rules here err at least that much on these pairs, as found by trying.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import FakeModel

from draftproof.bench.check import Check, binomial_limit
from draftproof.bench.finding import Finding
from draftproof.bench.law_test import ALPHA, ALTERNATIVES, BETA, LOOK, LawTest, Place
from draftproof.core import Dense, Draft, Law, Limits, PointMass, Prompt, Verdict
from draftproof.drafters import DraftModel, PromptLookup
from draftproof.engine import Request
from draftproof.engine import round as round_module
from draftproof.ports import Drafter
from draftproof.sampling import Sampling
from draftproof.verify.block import excess
from draftproof.verify.token import acceptance, residual

VOCAB = 12
WARM = Sampling(temperature=1.0, top_p=0.9)
NEAR, FAR = (3, 0.3), (3, 0.6)  # seed, and how far the draft is from the target

Rule = Callable[[Draft, Sequence[Law], Any], Verdict]


def run(
    rule: Any = "token",
    pair: tuple[int, float] = NEAR,
    sampling: Sampling = WARM,
    wrap: Callable[[DraftModel], Drafter] = lambda drafter: drafter,
    budget: float = 60.0,
) -> Finding:
    seed, distance = pair
    target = FakeModel(VOCAB, seed=seed)
    draft = FakeModel(VOCAB, near=target, distance=distance, seed=seed + 100)
    requests = [Request(prompt=(1, 2, i), sampling=sampling, limits=Limits(4)) for i in range(4)]
    drafter = wrap(DraftModel(draft, VOCAB))
    check = Check(target, drafter, requests, [rule], budget=budget)
    try:
        return check.output_law(rule)
    finally:
        check.memo.close()
        assert target.open_sessions == draft.open_sessions == 0


# ------------------------------------------------------------------------------- right rules


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_right_rules_pass(rule: str) -> None:
    """False alarms at most 1e-4 each."""
    finding = run(rule, FAR)
    assert finding.status == "pass", finding.line
    assert finding.details["tokens"] > 50


@pytest.mark.parametrize("sampling", [
    Sampling(temperature=0.7, top_k=5),
    Sampling(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.4, banned=((3,),)),
], ids=str)  # fmt: skip
def test_right_rules_pass_under_other_settings(sampling: Sampling) -> None:
    assert run("block", FAR, sampling).status == "pass"


def test_point_mass_drafts_pass() -> None:
    finding = run("block", wrap=lambda drafter: PromptLookup())
    assert finding.status == "pass", finding.line


def test_models_run_once_per_prefix() -> None:
    """A nucleus of few tokens and runs of 4: thousands of tokens, few passes."""
    details = run("block", sampling=replace(WARM, top_p=0.3)).details
    assert details["tokens"] > 3 * (details["target_passes"] + details["draft_passes"])


# ------------------------------------------------------------------------------- wrong rules


def token_with(
    coin: Callable[[Law, Law, int], Any] = acceptance,
    after: Callable[[Law, Law], Law] = residual,
    bonus: Callable[[Law], Law] = lambda p: p,
) -> Rule:
    """The token rule with another coin, another law after a rejection, or another bonus."""

    def rule(draft: Draft, laws: Sequence[Law], stream: Any) -> Verdict:
        for i, (x, q) in enumerate(zip(draft.tokens, draft.laws, strict=True)):
            if not stream.accept(i, float(coin(laws[i], q, x))):
                return Verdict(i, stream.target(i, after(laws[i], q)), "residual")
        g = len(draft)
        return Verdict(g, stream.target(g, bonus(laws[g])), "bonus")

    return rule


def block_that_breaks(draft: Draft, laws: Sequence[Law], stream: Any) -> Verdict:
    """The block rule that ends at the first failure, as the token rule rightly does."""
    accepted, kept, w, g = 0, 1.0, 1.0, len(draft)
    for i, (x, q) in enumerate(zip(draft.tokens, draft.laws, strict=True), start=1):
        w = min(1.0, w * float(laws[i - 1].prob(x) / q.prob(x)))
        s = float(excess(laws[i], draft.laws[i], w)) if i < g else 0.0
        h = w if i == g else (s / (s + 1 - w) if s + 1 - w > 0 else 1.0)
        if not stream.accept(i - 1, h):
            break
        accepted, kept = i, w
    if accepted == g:
        return Verdict(g, stream.target(g, laws[g]), "bonus")
    law = residual(laws[accepted], draft.laws[accepted], kept)
    return Verdict(accepted, stream.target(accepted, law), "residual")


def upside_down(p: Law, q: Law, x: int) -> Any:
    return min(1.0, q.prob(x) / p.prob(x)) if p.prob(x) > 0 else 0.0


def flattened(p: Law) -> Law:
    assert isinstance(p, Dense)
    return Dense(np.full(len(p.probs), 1 / len(p.probs)))


WRONG = {
    "test upside down": token_with(upside_down),
    "residual not subtracted": token_with(after=lambda p, q: p),
    "every possible draft kept": token_with(lambda p, q, x: float(p.prob(x) > 0)),
    "drafts kept twice as readily": token_with(lambda p, q, x: min(1, 2 * acceptance(p, q, x))),
    "drafts kept too rarely": token_with(lambda p, q, x: 0.7 * acceptance(p, q, x)),
    "kept by p alone": token_with(lambda p, q, x: p.prob(x)),
    "residual of the draft": token_with(after=lambda p, q: residual(q, p)),
    "bonus of another law": token_with(bonus=flattened),
    "block that breaks at a failure": block_that_breaks,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the engine's own rule. Misses at most 1e-2 where the law is an alternative."""
    monkeypatch.setattr(round_module, "block", WRONG[name])
    finding = run("block", FAR)
    assert finding.status == "fail", finding.line


def test_a_bonus_from_unprocessed_logits_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The softmax of the logits where temperature 0.5 was asked for: no token is impossible."""
    temper = token_with(bonus=lambda p: Dense(np.sqrt(p.probs) / np.sqrt(p.probs).sum()))
    monkeypatch.setattr(round_module, "token", temper)
    finding = run("token", NEAR, Sampling(temperature=0.5))
    assert finding.status == "fail"
    assert "bonus from unprocessed logits" in finding.line


class Rewriting:
    """A drafter whose drafts, or whose choices, are tampered with."""

    def __init__(self, drafter: DraftModel, *, greedy: bool = False, least: float = 0.0) -> None:
        self.drafter, self.greedy, self.least = drafter, greedy, least
        self.name, self.model = drafter.name, drafter.model

    def begin(self, prompt: Prompt, standardise: Any) -> Any:
        self.proposer = self.drafter.begin(prompt, standardise)
        return self

    def draft(self, output: Sequence[int], limit: int, stream: Any) -> Draft:
        draft = self.proposer.draft(output, limit, Argmax() if self.greedy else stream)
        for i, (x, q) in enumerate(zip(draft.tokens, draft.laws, strict=True)):
            if q.prob(x) < self.least:
                return Draft(draft.tokens[:i], draft.laws[:i])
        return draft

    def observe(self, verdict: Verdict) -> None:
        self.proposer.observe(verdict)

    def close(self) -> None:
        self.proposer.close()
        self.drafter.model.close() if hasattr(self.drafter.model, "close") else None


class Argmax:
    def draft(self, index: int, law: Law) -> int:
        return law.token if isinstance(law, PointMass) else int(np.argmax(law.probs))

    def target(self, index: int, law: Law) -> int:
        raise AssertionError("a drafter asked for the target's choice")


@pytest.mark.parametrize("rule", ["token", "block"])
def test_an_argmax_draft_with_a_softmax_law_fails(rule: str) -> None:
    finding = run(rule, FAR, wrap=lambda drafter: Rewriting(drafter, greedy=True))
    assert finding.status == "fail", finding.line


@pytest.mark.parametrize("rule", ["token", "block"])
def test_dropping_improbable_drafts_fails(rule: str) -> None:
    """A token that was dropped because of what it is biases the output."""
    finding = run(rule, NEAR, wrap=lambda drafter: Rewriting(drafter, least=0.4))
    assert finding.status == "fail", finding.line


def test_the_same_tampering_left_out_passes() -> None:
    assert run("token", FAR, wrap=Rewriting).status == "pass"


# --------------------------------------------------------------------------- no decision, none due


def test_without_a_budget_it_is_undecided() -> None:
    finding = run("block", budget=0.0)
    assert finding.status == "undecided"
    assert not finding.fine
    assert "--budget" in finding.line


def test_where_draft_and_target_are_one_there_is_nothing_to_distinguish() -> None:
    finding = run("token", (1, 0.0))
    assert finding.status == "pass"
    assert "nothing to distinguish: leans to the draft, leans away from the draft" in finding.line


# --------------------------------------------------------------------------------- the arithmetic

P = np.array([0.5, 0.3, 0.2])
Q = np.array([0.1, 0.3, 0.6])
RAW = np.array([0.2, 0.4, 0.4])


def test_every_alternative_is_a_law_and_another_one() -> None:
    drafted, bonus = Place(P, Q, RAW), Place(P, None, RAW)
    for alternative in ALTERNATIVES:
        laws = [alternative.law(place) for place in (drafted, bonus)]
        assert all(law.sum() == pytest.approx(1) for law in laws)
        assert all((law >= 0).all() for law in laws)
        assert sum(not np.allclose(law, P) for law in laws) == 1


def test_a_place_of_one_law_gives_no_evidence() -> None:
    test = LawTest()
    for _ in range(LOOK):
        test.observe(0, Place(P, P, P))
    same = [ratio.alternative.name for ratio in test.ratios if ratio.outcome == "same law"]
    assert same == [
        "leans to the draft", "leans away from the draft", "residual drawn from the target",
    ]  # fmt: skip


def test_an_impossible_token_fails_at_once() -> None:
    test = LawTest()
    test.observe(2, Place(np.array([0.5, 0.5, 0.0]), None, RAW))
    assert test.failed
    assert test.done


@pytest.mark.parametrize("alternative", ALTERNATIVES[2:], ids=lambda a: a.name)
def test_the_rates_are_kept(alternative: Any) -> None:
    """Tokens drawn from p and from r, 60 tests of each, at alpha = beta = 0.1.

    By Ville's inequality each errs with probability at most 0.1; then more than 14 of 60 err with
    probability below 1e-3. A test with the two laws exchanged errs nearly always.
    """
    place = Place(P, None if "bonus" in alternative.name else Q, RAW)
    errors = {"p": 0, "r": 0}
    dice = np.random.default_rng(7)
    for _ in range(60):
        for name, law in (("p", P), ("r", alternative.law(place))):
            test = LawTest(alpha=0.1, beta=0.1, alternatives=(alternative,))
            while not test.done:
                test.observe(int(dice.choice(3, p=law)), place)
            errors[name] += test.failed == (name == "p")
    assert max(errors.values()) <= 14
    assert 0 < BETA < 1
    assert ALPHA < BETA


def test_binomial_limit() -> None:
    assert binomial_limit(100, 0.0, 1e-3) == 0
    assert binomial_limit(0, 0.5, 1e-3) == 0
    assert binomial_limit(1, 0.5, 1e-3) == 1
    k = binomial_limit(100, 0.05, 1e-3)
    tails = [
        sum(math.comb(100, i) * 0.05**i * 0.95 ** (100 - i) for i in range(m + 1, 101))
        for m in (k - 1, k)
    ]
    assert tails[1] <= 1e-3 < tails[0]
