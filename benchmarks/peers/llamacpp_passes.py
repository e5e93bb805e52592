"""What a pass over n tokens costs: draftproof's and llama.cpp's, round by round in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from llamacpp_programs import BATCHED, BENCH, Programs, batched_passes, bench_passes

from draftproof.bench.curve import curve
from draftproof.bench.peers import median_ratio
from draftproof.bench.prompts import read_prompts
from draftproof.bench.speed import Tell
from draftproof.load import Parts
from draftproof.planner.timing import SIZES

OURS = "draftproof"
PROMPT = 512  # tokens
READ = 1 << 30  # bytes, far more than any cache holds
PER_ROUND = 3  # passes of llama.cpp, once its weights are loaded


def passes(
    parts: Parts,
    found: Programs,
    model: Path,
    tell: Tell,
    *,
    context: int,
    repeats: int,
    threads: int,
) -> dict[str, Any]:
    """Time both sides' passes, and a plain read of memory, once a round in alternating order."""
    theirs = {BENCH: bench_passes}
    if found.has(BATCHED):
        theirs[BATCHED] = batched_passes
    seconds: dict[str, dict[str, list[float]]] = {who: {} for who in (OURS, *theirs)}
    reads: list[float] = []

    def note(who: str, times: Mapping[int, float]) -> None:
        for n, took in times.items():
            seconds[who].setdefault(str(n), []).append(took)

    def our_turn() -> None:
        measured = curve(parts.target, parts.tokenizer, context=context, repeats=1)
        note(OURS, dict(zip(measured.sizes, measured.seconds, strict=True)))
        note(OURS, {PROMPT: read_prompt(parts)})
        reads.extend(plain_reads(threads))

    def their_turn() -> None:
        for who, passes_of in theirs.items():
            note(who, passes_of(found, model, SIZES, context, threads, PER_ROUND))
        note(BENCH, bench_passes(found, model, [PROMPT], 0, threads, 1))

    read_prompt(parts)  # once without the clock
    for turn in range(repeats):
        tell(f"round {turn + 1}", turn, repeats)
        for side in (our_turn, their_turn) if turn % 2 == 0 else (their_turn, our_turn):
            side()
    return {
        "context": context,
        "repeats": repeats,
        **report(seconds),
        "plain_read_bytes_per_second": reads,
        "bandwidth_share": bandwidth_share(parts, median(seconds[OURS]["1"]), reads),
    }


def report(seconds: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Any]:
    """Medians, how flat they are, and how many times faster ours are.

    Args:
        seconds: One measurement a round, by who made it and the tokens of the pass.
    """
    middle = {
        who: {n: median(samples) for n, samples in by_size.items()}
        for who, by_size in seconds.items()
    }
    return {
        "ms": {who: {n: 1e3 * s for n, s in by_size.items()} for who, by_size in middle.items()},
        "over_one_token": {
            who: {n: s / by_size["1"] for n, s in by_size.items()}
            for who, by_size in middle.items()
        },
        "faster": {
            who: {
                n: asdict(median_ratio(by_size[n], seconds[OURS][n]))
                for n in by_size
                if n in seconds[OURS]  # a model's context may hold no longer pass
            }
            for who, by_size in seconds.items()
            if who != OURS
        },
        "seconds": seconds,
    }


def read_prompt(parts: Parts) -> float:
    """Seconds until a prompt of 512 tokens is read and the logits after it are there."""
    text = "\n\n".join(prompt.text for prompt in read_prompts(None))
    ids = parts.tokenizer.encode(text)
    session = parts.target.open((ids * (PROMPT // len(ids) + 1))[:PROMPT])
    try:
        started = perf_counter()
        session.score(session.prefix, keep=1)
        return perf_counter() - started
    finally:
        session.close()


def bandwidth_share(parts: Parts, seconds: float, reads: list[float]) -> float | None:
    """What a pass over one token reads per second, of what a plain read reads.

    None where another backend than the native engine runs the model.
    """
    engine = getattr(parts.target, "engine", None)
    if engine is None or not reads:
        return None
    return float(engine.pass_bytes / seconds / median(reads))


def plain_reads(threads: int) -> list[float]:
    """Bytes per second of a plain read of memory; none where the native engine is not built."""
    try:
        from draftproof import _native
    except ImportError:
        return []
    read = getattr(_native, "read_bandwidth", None)
    return [] if read is None else [float(read(threads, READ))]
