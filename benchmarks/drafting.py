"""Processor time per token of the drafters that need no model, and what they guess of known texts.

    python benchmarks/drafting.py [--data FOLDER] [--tokens N] [--limit N] [--output FILE]

A target is played by a text that is known: of each draft the tokens that agree with it are kept,
and the text's next one is emitted. The texts are those in the folder, a token being a short piece
of a word, a space or a sign, and made ones: random, periodic and copied. Human texts repeat
themselves less than a model's output does: what is kept here is for comparing drafters.
The result is written with its provenance to benchmarks/results/, and the last line of stdout is
the same JSON document.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from draftproof.bench.provenance import check_output, provenance, write_result
from draftproof.core import Verdict
from draftproof.drafters import PastOutputs, PromptLookup, SuffixDrafter
from draftproof.drafters.automaton import Automaton
from draftproof.ports import Drafter
from draftproof.rng import Independent, Noise
from draftproof.sampling import Sampling, Standardiser

STREAM = Independent(Noise(1), 0, 0)  # certain drafts draw nothing
STANDARD = Standardiser(Sampling())
DEPTH = 32
VOCAB = 1 << 20


@dataclass(frozen=True)
class Task:
    """A prompt and the output that its target would write."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]


class Pieces:
    """Numbers for pieces of text, in the order in which they turn up."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        found = re.findall(r" ?\w{1,6}|\s+|[^\w\s]", text)
        return tuple(self._ids.setdefault(piece, len(self._ids)) for piece in found)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file; none where it is not there."""
    if path.is_file():
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        yield from map(json.loads, text.decode().splitlines())


def found_tasks(data: Path) -> dict[str, list[Task]]:
    encode = Pieces().encode
    code = [
        Task(encode(task["prompt"]), encode(task["canonical_solution"]))
        for task in lines(data / "HumanEval.jsonl.gz")
    ]
    sums = [
        Task(encode(task["question"]), encode(task["answer"]))
        for task in lines(data / "gsm8k_test.jsonl")
    ]
    articles = [
        encode(task["turns"][0])
        for task in lines(data / "spec_bench.jsonl")
        if task["category"] in ("summarization", "rag")
    ]
    second_halves = [Task(a[: len(a) // 2], a[len(a) // 2 :]) for a in articles]
    rewritten = [Task(task.prompt + task.output, task.output) for task in code]
    found = {"code": code, "rewritten code": rewritten, "sums": sums, "articles": second_halves}
    return {name: tasks for name, tasks in found.items() if tasks}


def made_tasks() -> dict[str, list[Task]]:
    rng = np.random.default_rng(0)
    texts = {
        "random, 50,000 tokens": rng.integers(50_000, size=8000),
        "random, 4 tokens": rng.integers(4, size=8000),
        "period 1": np.zeros(8000, dtype=np.int64),
        "period 7": np.arange(8000) % 7,
        "copied once": np.tile(rng.integers(50_000, size=4000), 2),
    }
    return {
        name: [Task(tuple(text[:4000].tolist()), tuple(text[4000:].tolist()))]
        for name, text in texts.items()
    }


def some(tasks: Sequence[Task], most: int) -> list[Task]:
    """The first tasks of up to `most` output tokens together, the last one cut."""
    taken = []
    for task in tasks:
        if most > 0:
            taken.append(Task(task.prompt, task.output[:most]))
            most -= len(task.output)
    return taken


def play(drafter: Drafter, tasks: Sequence[Task], limit: int) -> dict[str, float]:
    """Write every task's output: what was kept, and what it took."""
    rounds = drafted = kept = emitted = 0
    begin_seconds = draft_seconds = close_seconds = 0.0
    for task in tasks:
        started = time.process_time()
        proposer = drafter.begin(task.prompt, STANDARD)
        begin_seconds += time.process_time() - started
        done = 0
        while done < len(task.output):
            output = task.output[:done]
            started = time.process_time()
            draft = proposer.draft(output, limit, STREAM)
            draft_seconds += time.process_time() - started
            pairs = zip(draft.tokens, task.output[done:-1], strict=False)
            accepted = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            if accepted is None:
                accepted = min(len(draft), len(task.output) - done - 1)
            proposer.observe(Verdict(accepted, task.output[done + accepted], "residual"))
            rounds, drafted, kept = rounds + 1, drafted + len(draft), kept + accepted
            done += accepted + 1
        emitted += done
        started = time.process_time()
        proposer.close()
        close_seconds += time.process_time() - started
    return {
        "tokens_per_round": round(emitted / rounds, 3),
        "kept_of_drafted": round(kept / max(drafted, 1), 3),
        "drafted_per_round": round(drafted / rounds, 2),
        "begin_us_per_prompt_token": us(begin_seconds, sum(len(t.prompt) for t in tasks)),
        "draft_us_per_emitted_token": us(draft_seconds, emitted),
        "close_us_per_emitted_token": us(close_seconds, emitted),
    }


def us(seconds: float, count: int) -> float:
    return round(1e6 * seconds / max(count, 1), 2)


def timed(work: Callable[[], int], repeats: int = 7) -> float:
    """Median microseconds of each of the things whose number `work` returns."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        count = work()
        times.append(us(time.process_time() - started, count))
    return median(times)


def costs(tasks: Sequence[Task]) -> dict[str, float]:
    """What one token costs `suffix`: taken in, drafted, peeked at and stored; and its memory."""
    prompts = [task.prompt + task.output for task in tasks]
    text = tuple(chain.from_iterable(prompts))[:4000]
    drafter = SuffixDrafter(factor=64, offset=64)
    proposers = [drafter.begin(text[:end], STANDARD) for end in range(3800, 4001, 10)]

    def update() -> int:
        Automaton(DEPTH).extend(text)
        return len(text)

    def draft() -> int:
        return sum(len(proposer.draft((), 16, STREAM)) for proposer in proposers)

    def peek() -> int:
        count = 0
        for proposer in proposers:
            drafted: list[int] = []
            while len(drafted) < 16 and (found := proposer.peek((), drafted)) is not None:
                drafted.append(found[0])
            count += len(drafted)
        return count

    def store() -> int:
        past = PastOutputs(VOCAB, capacity=len(text))
        for start, end in pairwise(range(0, len(text) + 1, 250)):
            past.add(text[start:end])
        return len(text)

    tracemalloc.start()
    automaton = Automaton(DEPTH)
    automaton.extend(text)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "update_us": timed(update),
        "draft_us": timed(draft),
        "peek_us": timed(peek),
        "store_us": timed(store),
        "bytes": round(held / len(text), 1),
    }


def measure(data: Path, tokens: int, limit: int) -> dict[str, Any]:
    texts = {}
    for name, all_tasks in (found_tasks(data) | made_tasks()).items():
        tasks = some(all_tasks, tokens)
        texts[name] = {
            "output_tokens": sum(len(task.output) for task in tasks),
            "suffix_per_token": costs(tasks),
            "lookup": play(PromptLookup(), tasks, limit),
            "suffix": play(SuffixDrafter(), tasks, limit),
            "suffix, past outputs": play(SuffixDrafter(PastOutputs(VOCAB)), tasks, limit),
        }
    return {"limit": limit, "texts": texts, "provenance": provenance({})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("benchmarks", "data"))
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    check_output(args.output)
    result = measure(args.data, args.tokens, args.limit)
    for name, entry in result["texts"].items():
        cost = ", ".join(f"{key} {value}" for key, value in entry["suffix_per_token"].items())
        print(f"{name:22} a token of suffix: {cost}")
        for drafter in ("lookup", "suffix", "suffix, past outputs"):
            played = entry[drafter]
            print(
                f"    {drafter:22} {played['tokens_per_round']:6.3f} tokens per round, "
                f"{played['kept_of_drafted']:.3f} of {played['drafted_per_round']:5.2f} kept, "
                f"{played['draft_us_per_emitted_token']:6.2f} us per emitted token"
            )
    write_result("drafting", result, args.output)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
