"""Whether `auto` loses anything where drafts are worth nothing, or cost as much as the target.

    python benchmarks/guard.py --target qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b \\
        --prompts benchmarks/data/humaneval-60.jsonl --limit 10

Two drafts that never pay: the draft's file with its weights shuffled, so that it costs what it did
and knows nothing, and the target itself. Prompt by prompt plain decoding and `auto` run in turn,
and what is compared is their time per token behind the first 32, which are there to learn from. The
draft model drafts alone, without matches in the text, which would pay.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFReader
from pair_arguments import pair_parser, publish

from draftproof.bench.prompts import encode, read_prompts
from draftproof.bench.provenance import check_output
from draftproof.bench.speed import Mode, Run, compare, counts, measure
from draftproof.catalog import resolve
from draftproof.engine import Speculator
from draftproof.load import Parts, compose, load_parts, pair

LEARNING = 32  # tokens that are not timed


def shuffled(source: Path, target: Path) -> None:
    """A copy of a GGUF file whose matrices have their blocks in random order."""
    shutil.copyfile(source, target)
    rng = np.random.default_rng(0)
    data = np.memmap(target, np.uint8, "r+")
    for tensor in GGUFReader(source).tensors:
        if len(tensor.shape) < 2:
            continue
        _, size = GGML_QUANT_SIZES[tensor.tensor_type]
        begin = int(tensor.data_offset)
        blocks = data[begin : begin + int(tensor.n_bytes)].reshape(-1, size)
        blocks[:] = blocks[rng.permutation(len(blocks))]
    data.flush()


def later(name: str, speculator: Speculator) -> Mode:
    """A mode whose runs are what came behind the rounds of the first `LEARNING` tokens."""

    def run(prompt: tuple[int, ...], max_tokens: int) -> Run:
        started = perf_counter()
        stream = speculator.stream(prompt, max_tokens=max_tokens)
        arrivals = [(token.round, perf_counter()) for token in stream]
        result = stream.result
        end = perf_counter()
        fresh = (i for i in range(LEARNING, len(arrivals)) if arrivals[i][0] != arrivals[i - 1][0])
        first = next(fresh, 0)  # 0: shorter than that (or a warm-up), and taken as a whole
        begin = arrivals[first - 1][1] if first else started
        return Run(result.token_ids[first:], end - begin, end - started, result.stats)

    return Mode(name, run)


def cases(parts: Parts, draft: str, folder: Path) -> dict[str, list[Mode]]:
    """The modes of each case, plain decoding first."""
    shuffled(Path(resolve(draft)), folder / "shuffled.gguf")
    random = load_parts(folder / "shuffled.gguf")
    plain = compose(parts.target, parts.tokenizer, None, 0)
    found = {}
    for case, other in {"shuffled weights": random, "the target itself": parts}.items():
        drafter = pair(parts.target, parts.tokenizer, other.target, other.tokenizer)
        auto = compose(parts.target, parts.tokenizer, drafter, "auto")
        found[case] = [later("plain", plain), later("auto", auto)]
    return found


def account(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Time per token of `auto` over plain's, below 1 where it is faster."""
    pairs = list(zip(runs["auto"], runs["plain"], strict=True))
    time = compare(runs["plain"], runs["auto"], "decode")  # plain's speed over that of `auto`
    worst = max(compare([plain], [auto], "decode").value for auto, plain in pairs)
    same = all(a.ids[-len(b.ids) :] == b.ids[-len(a.ids) :] for a, b in pairs)
    return {
        "time": time.value,
        "time_low": time.low,
        "time_high": time.high,
        "time_worst_prompt": worst,
        "identical": same,
        "accounts": {mode: counts(made) for mode, made in runs.items()},
    }


def main() -> None:
    parser = pair_parser(__doc__, 128)
    given = parser.parse_args()
    check_output(given.output)
    prompts = read_prompts(given.prompts, given.limit)
    parts = load_parts(given.target)
    ids = encode(prompts, parts.tokenizer, raw=False)
    found = {}
    with TemporaryDirectory() as folder:
        for case, modes in cases(parts, given.draft, Path(folder)).items():
            found[case] = account(measure(modes, ids, given.max_tokens))
            told = found[case]
            span = ""
            if told["time_low"] is not None:  # there is none over one prompt
                span = f" ({told['time_low']:.3f} to {told['time_high']:.3f})"
            print(
                f"{case}: {told['time']:.3f} of plain's time per token{span}, "
                f"at worst {told['time_worst_prompt']:.3f}"
            )
    names = [prompt.name for prompt in prompts]
    result = {"prompts": names, "skipped_tokens": LEARNING, "cases": found}
    publish("guard", given, result, target=parts.target)


if __name__ == "__main__":
    main()
