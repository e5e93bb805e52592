"""The law of what the engine emits, tested end to end on the user's pair.

The real loop runs over short continuations of a few prompts with seeds 0, 1, 2, ..., on models that
remember (`memo`), so that thousands of tokens cost few passes. Each emitted token is held to the
target's law, which is computed here, from the remembered logits, and not taken from the engine.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from draftproof.bench.finding import Finding
from draftproof.bench.law_test import ALPHA, BETA, EFFECT, LawTest, Outcome, Place, masses
from draftproof.bench.memo import MemoModel
from draftproof.bench.recorder import Recorder
from draftproof.core import Rule
from draftproof.drafters import CrossVocab, DraftModel, Mix
from draftproof.engine import Request, Running, decode
from draftproof.ports import Drafter, Lengths
from draftproof.sampling import log_softmax

TEST = "output law"


def output_law(
    target: MemoModel,
    drafter: Drafter,
    requests: Sequence[Request],
    rule: Rule,
    *,
    lengths: Lengths,
    name: str = "",
    budget: float,
    alpha: float,
) -> Finding:
    """Run the engine until the test of its output decides.

    Args:
        target: The target, remembered.
        drafter: What drafts for it.
        requests: Met in turn; their seeds and rules are replaced.
        rule: The rule whose output is tested. A rule is named, so that a seed stands for nothing
            but the noise.
        lengths: How far drafts go.
        name: What the test is called; the rule's name where it is left out.
        budget: No run begins after this many seconds; then the test is undecided.
        alpha: The most probable a false alarm may be.
    """
    recorder = Recorder(memoised(drafter))
    test = LawTest(alpha=alpha)
    started, passes, seed = perf_counter(), target.passes, 0
    try:
        while not test.done and perf_counter() - started < budget:
            request = replace(requests[seed % len(requests)], seed=seed, rule=rule)
            running = Running(request, target, None, recorder, lengths)
            for _ in decode([running]):
                pass
            observe(test, target, running, recorder)
            seed += 1
    finally:
        if isinstance(recorder.model, MemoModel):
            recorder.model.close()
    figures = {
        "rule": name or rule,
        "tokens": test.tokens,
        "runs": seed,
        "seconds": perf_counter() - started,
        "target_passes": target.passes - passes,
        "draft_passes": recorder.model.passes if isinstance(recorder.model, MemoModel) else 0,
    }
    return conclude(test, figures)


def observe(test: LawTest, target: MemoModel, running: Running, recorder: Recorder) -> None:
    """Hold a finished run's tokens to the target's law."""
    session = target.open(running.request.prompt)
    prefix, ids = session.prefix, [token.id for token in running.tokens]
    if len(prefix) > 1:
        session.score(prefix[:-1], keep=0)
    rows = session.score([prefix[-1], *ids[:-1]], keep=len(ids))
    for i, token in enumerate(running.tokens):
        p = masses(running.standardiser.law(rows[i], ids[:i]), target.vocab_size)
        q = recorder.law(running.tokens, i)
        raw = np.exp(log_softmax(rows[i]))
        test.observe(token.id, Place(p, None if q is None else masses(q, len(p)), raw))
        if test.done:
            break


def memoised(drafter: Drafter) -> Drafter:
    """The drafter over a remembering model, where it drafts by a model of this project's kind."""
    if isinstance(drafter, Mix) and isinstance(drafter.costly, (DraftModel, CrossVocab)):
        return Mix(_remembering(drafter.costly), drafter.suffix)
    return _remembering(drafter) if isinstance(drafter, (DraftModel, CrossVocab)) else drafter


def _remembering(drafter: DraftModel | CrossVocab) -> DraftModel | CrossVocab:
    twin = copy.copy(drafter)
    twin.model = MemoModel(drafter.model)
    return twin


def conclude(test: LawTest, figures: dict[str, Any]) -> Finding:
    """The test's outcome, in words and figures."""
    effort = (
        f"{test.tokens} tokens, {figures['target_passes']} target and "
        f"{figures['draft_passes']} draft passes, {figures['seconds']:.0f} s"
    )
    odds = f"false alarms at most {ALPHA:g}, misses at most {BETA:g} for an error of {EFFECT:.0%}"
    details = {
        **figures,
        "impossible_token": test.impossible,
        "false_alarm": ALPHA,
        "miss": BETA,
        "evidence": {
            ratio.alternative.name: {
                "outcome": ratio.outcome,
                "nats": ratio.evidence if math.isfinite(ratio.evidence) else None,
            }
            for ratio in test.ratios
        },
    }
    rule = figures["rule"]
    if test.impossible is not None:
        line = f"{rule}: token {test.impossible} came out, which the target's law excludes"
        return Finding(TEST, "fail", f"{line} ({effort})", details)
    if test.found:
        line = f"{rule}: not the target's law: {_names(test, 'found')}"
        return Finding(TEST, "fail", f"{line} ({effort}; {odds})", details)
    said = "; ".join(_parts(test))
    if _names(test, "open") or _names(test, "no occasion"):
        return Finding(TEST, "undecided", f"{rule}: undecided: {said} ({effort})", details)
    return Finding(TEST, "pass", f"{rule}: the target's law; {said} ({effort}; {odds})", details)


def _names(test: LawTest, outcome: Outcome) -> str:
    return ", ".join(r.alternative.name for r in test.ratios if r.outcome == outcome)


def _parts(test: LawTest) -> list[str]:
    """What was decided of the alternatives, and what was not."""
    parts = []
    if names := _names(test, "ruled out"):
        parts.append(f"ruled out: {names}")
    if names := _names(test, "same law"):
        parts.append(f"nothing to distinguish: {names}")
    evidence = ", ".join(
        f"{ratio.alternative.name} ({ratio.evidence:+.1f} of {math.log(test.beta):+.1f})"
        for ratio in test.ratios
        if ratio.outcome == "open"
    )
    if evidence:
        parts.append(f"no decision yet on: {evidence}; allow more time with --budget")
    if names := _names(test, "no occasion"):
        parts.append(
            f"too few such tokens to judge: {names}; "
            "give --prompts that the drafter finds drafts for"
        )
    return parts
