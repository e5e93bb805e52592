"""Milliseconds of laws and rules at a vocabulary of 152,000 and 8 drafted tokens.

    python benchmarks/sampling.py [--vocab N] [--drafted N] [--repeats N] [--output FILE]

The logits are made at random: Zipf-like, as a language model's, with the draft's near the target's.
The result is written with its provenance to benchmarks/results/, and the last line of stdout is
the same JSON document.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from draftproof.bench.provenance import check_output, provenance, write_result
from draftproof.core import Draft, Law, Verdict
from draftproof.rng import Chooser, Independent, Noise, Shared
from draftproof.sampling import Sampling, Standardiser
from draftproof.verify import block, coupled, token

OUTPUT = tuple(range(0, 4000, 8))  # 500 tokens before the position
PROMPT = tuple(range(2000))

SETTINGS: dict[str, Sampling] = {
    "T=0": Sampling(),
    "T=0.7": Sampling(temperature=0.7),
    "T=0.7 top_p=0.9": Sampling(temperature=0.7, top_p=0.9),
    "T=1 top_k=50": Sampling(temperature=1.0, top_k=50),
    "T=1 min_p=0.05": Sampling(temperature=1.0, min_p=0.05),
    "T=0.7 top_p=0.9 and all penalties": Sampling(
        temperature=0.7,
        top_p=0.9,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={i: -1.0 for i in range(0, 30_000, 100)},
        banned=tuple((i, i + 1) for i in range(50)) + tuple((i,) for i in range(50)),
    ),
}


def logits_of(rows: int, vocab: int) -> np.ndarray:
    """Rows whose probabilities fall like Zipf's law, in a new order each."""
    rng = np.random.default_rng(1)
    zipf = -1.6 * np.log1p(np.arange(vocab))
    logits = np.stack([rng.permutation(zipf) for _ in range(rows)])
    return (logits + rng.normal(0, 0.3, logits.shape)).astype(np.float32)


def drafts_of(logits: np.ndarray) -> dict[str, np.ndarray]:
    """The draft's rows: close to the target's, and the same (every token is accepted)."""
    rng = np.random.default_rng(2)
    near = logits + rng.normal(0, 0.2, logits.shape).astype(np.float32)
    return {"near": near[:-1], "same": logits[:-1]}


def milliseconds(work: Callable[[int], object], repeats: int) -> float:
    """Median over runs; `work` gets the number of the run."""
    work(0)
    times = []
    for i in range(repeats):
        started = time.perf_counter()
        work(i)
        times.append(time.perf_counter() - started)
    return round(1000 * median(times), 4)


def laws_of(sampling: Sampling, logits: np.ndarray) -> list[Law]:
    standardiser = Standardiser(sampling, PROMPT)
    return [standardiser.law(row, OUTPUT) for row in logits]


def rule_times(target: list[Law], draft_laws: list[Law], repeats: int) -> dict[str, Any]:
    """Each rule over a whole draft, on the noise that the engine gives it."""
    noise, few = Noise(7), range(min(repeats, 20))
    independent = [Independent(noise, 0, attempt) for attempt in few]
    return {
        "token": one_rule(token, target, draft_laws, independent, repeats),
        "block": one_rule(block, target, draft_laws, independent, repeats),
        "coupled": one_rule(coupled, target, draft_laws, [Shared(noise, i) for i in few], repeats),
    }


def one_rule(
    rule: Callable[[Draft, list[Law], Any], Verdict],
    target: list[Law],
    draft_laws: list[Law],
    streams: Sequence[Chooser],
    repeats: int,
) -> dict[str, float]:
    """Shared noise is made on first use: here by the draft, so that the rule meets it ready."""
    started = time.perf_counter()
    drafts = [
        Draft(tuple(map(stream.draft, range(len(draft_laws)), draft_laws)), tuple(draft_laws))
        for stream in streams
    ]
    draft_ms = 1000 * (time.perf_counter() - started) / len(streams)
    accepted: list[int] = []

    def judge(i: int) -> None:
        k = i % len(streams)
        accepted.append(rule(drafts[k], target, streams[k]).accepted)

    return {
        "ms": milliseconds(judge, repeats),
        "draft_choices_ms": round(draft_ms, 4),
        "accepted": round(float(np.mean(accepted)), 2),
    }


def law_time(sampling: Sampling, logits: np.ndarray, repeats: int) -> float:
    standardiser = Standardiser(sampling, PROMPT)
    return milliseconds(lambda i: standardiser.law(logits[i % len(logits)], OUTPUT), repeats)


def measure(vocab: int, drafted: int, repeats: int) -> dict[str, Any]:
    logits = logits_of(drafted + 1, vocab)
    laws = {name: law_time(sampling, logits, repeats) for name, sampling in SETTINGS.items()}
    rules: dict[str, Any] = {}
    rounds: dict[str, Any] = {}
    for name in ("T=0", "T=0.7", "T=0.7 top_p=0.9"):
        target = laws_of(SETTINGS[name], logits)
        rules[name] = {
            kind: rule_times(target, laws_of(SETTINGS[name], rows), repeats)
            for kind, rows in drafts_of(logits).items()
        }
        rounds[name] = {
            rule: round(len(logits) * laws[name] + entry["ms"], 4)
            for rule, entry in rules[name]["near"].items()
        }
    return {
        "vocab": vocab,
        "drafted": drafted,
        "law_ms_per_position": laws,
        "rules": rules,
        "laws_and_rule_ms_per_round": rounds,
        "provenance": provenance({}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=152_000)
    parser.add_argument("--drafted", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    check_output(args.output)
    result = measure(args.vocab, args.drafted, args.repeats)
    for name, ms in result["law_ms_per_position"].items():
        print(f"law   {name:36} {ms:8.3f} ms per position")
    for name, kinds in result["rules"].items():
        for kind, rules in kinds.items():
            for rule, entry in rules.items():
                print(
                    f"rule  {name:16} {kind} draft, {rule:8} {entry['ms']:8.3f} ms per round, "
                    f"{entry['accepted']} accepted"
                )
    write_result("sampling", result, args.output)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
