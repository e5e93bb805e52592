"""How long the turns of a conversation take, read anew each time or kept (`Speculator.remember`).

    python benchmarks/conversation.py --target qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b \\
        --data benchmarks/data --limit 8

The conversations are Spec-Bench's of two turns, at even distances. Each is held plainly and with
`auto`, both with every turn's prompt read anew and with what was read before kept. A conversation's
time is all of it, reading included; the modes run in turn, conversation by conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from choose import OTHERS, spec_bench, spread
from pair_arguments import pair_parser, publish

from draftproof.bench.provenance import check_output
from draftproof.bench.speed import Mode, Run, compare, measure
from draftproof.engine import Speculator
from draftproof.load import compose, load

ANEW, KEPT = "read anew", "kept"


def conversation(name: str, speculator: Speculator, kept: int, talks: Sequence[list[str]]) -> Mode:
    """A mode that holds a conversation: its prompt is the conversation's number."""

    def run(prompt: tuple[int, ...], max_tokens: int) -> Run:
        speculator.remember(kept)
        history: list[dict[str, str]] = []
        ids: list[int] = []
        reading = 0.0
        started = perf_counter()
        for question in talks[prompt[0]]:
            history.append({"role": "user", "content": question})
            stream = speculator.chat(history, max_tokens=max_tokens)
            answer = "".join(map(str, stream))
            history.append({"role": "assistant", "content": answer})
            ids += stream.result.token_ids
            reading += stream.result.stats.prefill_seconds
        total = perf_counter() - started
        speculator.remember(0)
        return Run(tuple(ids), total - reading, total)

    return Mode(name, run)


def main() -> None:
    parser = pair_parser(__doc__, 128)
    parser.add_argument("--data", type=Path, default=Path("benchmarks", "data"))
    given = parser.parse_args()
    check_output(given.output)
    lines = [line for line in spec_bench(given.data)[OTHERS] if len(line["turns"]) > 1]
    chosen = spread(lines, given.limit or len(lines))
    auto = load(given.target, draft=given.draft)
    plain = compose(auto.target, auto.tokenizer, None, 0)
    modes = [
        conversation(f"{name}, {how}", speculator, how == KEPT, [line["turns"] for line in chosen])
        for name, speculator in (("plain", plain), ("auto", auto))
        for how in (ANEW, KEPT)
    ]
    runs = measure(modes, [(i,) for i in range(len(chosen))], given.max_tokens)
    base = runs[modes[0].name]
    told = {}
    for name, made in runs.items():
        gain = compare(made, base, "total")
        told[name] = {
            "speedup": gain.value,
            "speedup_low": gain.low,
            "speedup_high": gain.high,
            "seconds": sum(run.total_seconds for run in made),
            "reading_seconds": sum(run.total_seconds - run.decode_seconds for run in made),
            "identical": all(a.ids == b.ids for a, b in zip(made, base, strict=True)),
        }
        print(f"{name}: {gain.value:.2f} of {modes[0].name}'s speed")
    held = {"conversations": [line["question_id"] for line in chosen], "modes": told}
    publish("conversation", given, held, target=auto.target)


if __name__ == "__main__":
    main()
