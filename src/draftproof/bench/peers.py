"""Other systems beside draftproof's own modes, measured by the procedure of `speed`.

What runs them lives in `benchmarks/peers`; here is what is reported of them.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.bench.bootstrap import LEVEL, RESAMPLES, SEED, SpeedUp
from draftproof.bench.provenance import write_result
from draftproof.bench.speed import (
    PLAIN,
    Clock,
    Mode,
    Run,
    Tell,
    compare,
    differences,
    measure,
    rate,
    summarise,
)
from draftproof.catalog import resolve
from draftproof.core import Prompt
from draftproof.errors import DraftproofError, ResourceError, UnsupportedModel
from draftproof.ports import Model


class PeerFailed(ResourceError):
    """Another system did not start, did not answer, or answered something else than asked for."""


def compete(
    ours: Sequence[Mode],
    theirs: Sequence[Mode],
    prompts: Sequence[tuple[int, ...]],
    max_tokens: int,
    *,
    system: str,
    clock: Clock,
    scorer: Model | None,
    pairs: Iterable[tuple[str, str]] | None = None,
    tell: Tell = lambda what, done, total: None,
) -> dict[str, Any]:
    """Run both sides' modes in turn, and compare them.

    Args:
        ours: Draftproof's modes, "plain" among them.
        theirs: The other system's, "plain" among them.
        prompts: Token ids.
        max_tokens: Most tokens to emit, at least 1.
        system: The other system's name.
        clock: The time that speed-ups compare: "decode" where the other system tells it.
        scorer: Gives the margins of differences from plain output.
        pairs: Ours and theirs, to be compared; None takes all.
        tell: As in `measure`.
    """
    named = {mode.name: Mode(f"{system} {mode.name}", mode.run) for mode in theirs}
    runs = measure([*ours, *named.values()], prompts, max_tokens, tell)
    own = {mode.name: runs[mode.name] for mode in ours}
    peers = {name: runs[mode.name] for name, mode in named.items()}
    chosen = product(own, peers) if pairs is None else pairs
    return {
        "modes": summarise(own, prompts, comparable=True, scorer=scorer),
        "peers": summarise_peers(own, peers, prompts, clock=clock, scorer=scorer),
        "best_peer": max(peers, key=lambda name: rate(peers[name], clock)),
        "ahead": ahead(own, peers, chosen, clock=clock, system=system),
    }


def summarise_peers(
    own: Mapping[str, Sequence[Run]],
    peers: Mapping[str, Sequence[Run]],
    prompts: Sequence[Prompt],
    *,
    clock: Clock,
    scorer: Model | None,
) -> dict[str, dict[str, Any]]:
    """What is reported of each mode of another system.

    Args:
        own: Runs of draftproof's modes, "plain" among them.
        peers: Runs of the other system's, "plain" among them, on the same prompts.
        prompts: The prompts.
        clock: As in `compete`.
        scorer: As in `compete`.
    """
    report = {}
    for name, runs in peers.items():
        unlike = differences(runs, peers[PLAIN], prompts, scorer)
        rates = {"total_tokens_per_second": rate(runs, "total")}
        if clock == "decode":
            rates["tokens_per_second"] = rate(runs, "decode")
        report[name] = {
            **rates,
            "speedup": asdict(compare(runs, peers[PLAIN], clock)),
            "speedup_over_our_plain": asdict(compare(runs, own[PLAIN], clock)),
            "identical": not unlike,
            "identical_prompts": len(prompts) - len(unlike),
            "different": [asdict(difference) for difference in unlike],
            "identical_to_our_plain": sum(same_ids(runs, own[PLAIN])) == len(prompts),
            "identical_to_our_plain_prompts": sum(same_ids(runs, own[PLAIN])),
            "prompts": [raw_figures(run, clock) for run in runs],
        }
    return report


def ahead(
    own: Mapping[str, Sequence[Run]],
    peers: Mapping[str, Sequence[Run]],
    pairs: Iterable[tuple[str, str]],
    *,
    clock: Clock,
    system: str,
) -> dict[str, dict[str, Any]]:
    """How many times faster draftproof's modes are than another system's, pair by pair.

    Args:
        own: As in `summarise_peers`.
        peers: As in `summarise_peers`.
        pairs: Ours and theirs; those that were not run are left out.
        clock: As in `compete`.
        system: The other system's name.
    """
    return {
        f"{ours} over {system} {theirs}": asdict(compare(own[ours], peers[theirs], clock))
        for ours, theirs in pairs
        if ours in own and theirs in peers
    }


def same_ids(runs: Sequence[Run], others: Sequence[Run]) -> list[bool]:
    """Prompt by prompt, whether the outputs are equal."""
    return [run.ids == other.ids for run, other in zip(runs, others, strict=True)]


def raw_figures(run: Run, clock: Clock) -> dict[str, float]:
    """What a run took; the decoding alone only where it is known."""
    decode = {"decode_seconds": run.decode_seconds} if clock == "decode" else {}
    return {"tokens": len(run.ids), **decode, "total_seconds": run.total_seconds}


def seconds_of_all(seconds: float, tokens: int) -> float:
    """Seconds of decoding as our own clock counts them: with a pass for the first token, too.

    Args:
        seconds: From the first token, which in other systems the prompt's pass gives, to the last.
        tokens: All of them.
    """
    return seconds * tokens / max(tokens - 1, 1)


def show(what: str, done: int, total: int) -> None:
    """A line of progress, apart from the result."""
    print(f"[{done}/{total}] {what}", file=sys.stderr)


def publish(name: str, result: Mapping[str, Any], output: Path | None) -> None:
    """Write a result, and print it as one JSON object; `write_result` has the arguments."""
    path = write_result(name, result, output)
    if path is not None:
        print(f"written to {path}", file=sys.stderr)
    print(json.dumps(result, ensure_ascii=False))


def run_script(main: Callable[[], object], script: str) -> None:
    """Run a script of the folder `benchmarks/peers`; what goes wrong is told without a traceback.

    Args:
        main: What it does.
        script: Its `__file__`. A script's folder is searched first for imports, and in this one
            lie scripts that are called as the libraries that they run.
    """
    here = Path(script).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended, too
    try:
        main()
    except DraftproofError as error:
        sys.exit(f"error: {error}")


def gguf_file(name: str | None) -> Path | None:
    """The file behind a model's name, which both sides load.

    Raises:
        UnsupportedModel: It is something else.
    """
    if name is None:
        return None
    path = Path(resolve(name))
    if path.suffix != ".gguf":
        raise UnsupportedModel(
            f"{name} is not a GGUF file",
            why="both sides load the same file, and the other system loads GGUF files",
            remedy="name a catalogue model or a .gguf file",
        )
    return path


def explain(error: DraftproofError) -> dict[str, str]:
    """An error as a part of a result: a mode that cannot be had is a finding, too."""
    return {"what": error.what, "why": error.why}


def median_ratio(base: Sequence[float], values: Sequence[float]) -> SpeedUp:
    """The base's median over the other's, with a percentile bootstrap over rounds at 95 %.

    Args:
        base: One measurement per round.
        values: The other's, of the same rounds: both of a drawn round are drawn together.
    """
    pair = np.array([base, values], dtype=np.float64)
    medians = np.median(pair, axis=1)
    value = float(medians[0] / medians[1])
    rounds = pair.shape[1]
    if rounds < 2:
        return SpeedUp(value, None, None)
    picks = np.random.default_rng(SEED).integers(rounds, size=(RESAMPLES, rounds))
    drawn = np.median(pair[:, picks], axis=2)
    low, high = np.quantile(drawn[0] / drawn[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return SpeedUp(value, float(low), float(high))
