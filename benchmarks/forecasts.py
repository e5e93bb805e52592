"""How often `plan`'s interval holds what is measured afterwards, and whether its choice was right.

    python benchmarks/forecasts.py --target qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b \\
        --prompts benchmarks/data/spec-4.jsonl --temperatures 0,0.7 \\
        --sets mt_bench,translation,summarization,math_reasoning

The prompts are taken in sets, by what stands before the slash of their names. For each set and
temperature the drafters are planned for, as `draftproof plan` does it, and then measured on the
same prompts as `bench speed` does it, over more tokens. A cell is a set, a temperature and a
drafter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pair_arguments import pair_parser

from draftproof.bench.forecast import ranked
from draftproof.bench.modes import contenders
from draftproof.bench.plan import compete
from draftproof.bench.prompts import BenchPrompt, encode, read_prompts
from draftproof.bench.provenance import check_output, provenance, write_result
from draftproof.bench.speed import PLAIN, compare, measure, speculator_mode
from draftproof.engine import Options, Speculator
from draftproof.load import compose, load

CLOSE = 0.95  # of the best one's speed: a recommendation that far off is still right


def by_set(prompts: Sequence[BenchPrompt]) -> dict[str, list[BenchPrompt]]:
    sets: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        sets.setdefault(prompt.name.split("/")[0], []).append(prompt)
    return sets


def forecast(
    speculator: Speculator,
    ids: Sequence[tuple[int, ...]],
    options: Mapping[str, Any],
    tokens: tuple[int, int],
) -> dict[str, Any]:
    """The cells of one set and temperature; `tokens` for planning and for measuring."""
    target, tokenizer = speculator.target, speculator.tokenizer
    drafters = contenders(speculator, None)
    plain = compose(target, tokenizer, None, 0)
    asked = Options.of({**options, "max_tokens": tokens[1]})
    requests = [plain.request(prompt, asked) for prompt in ids]
    standings = ranked(compete(target, drafters, requests, tokens[0]))
    modes = [speculator_mode(PLAIN, plain, options)] + [
        speculator_mode(name, compose(target, tokenizer, drafter, "auto"), options)
        for name, drafter in drafters.items()
    ]
    runs = measure(modes, ids, tokens[1])
    measured = {name: compare(runs[name], runs[PLAIN], "decode") for name in drafters}
    best = max(measured.values(), key=lambda gain: gain.value)
    chosen = standings[0].name if standings[0].speedup > 1 else PLAIN
    speed = 1.0 if chosen == PLAIN else measured[chosen].value
    return {
        "cells": [
            {
                **standing.to_json(),
                "measured": measured[standing.name].value,
                "measured_low": measured[standing.name].low,
                "measured_high": measured[standing.name].high,
                "held": standing.low <= measured[standing.name].value <= standing.high,
            }
            for standing in standings
        ],
        "recommended": chosen,
        "recommended_is_close": speed >= CLOSE * max(best.value, 1.0),
    }


def main() -> None:
    parser = pair_parser(__doc__, 64)
    parser.add_argument("--temperatures", default="0,0.7")
    parser.add_argument("--plan-tokens", type=int, default=48)
    parser.add_argument("--sets", help="some of them, with commas between; left out, all")
    given = parser.parse_args()
    check_output(given.output)
    sets = by_set(read_prompts(given.prompts, given.limit))
    if given.sets is not None:
        sets = {name: sets[name] for name in given.sets.split(",")}
    speculator = load(given.target, draft=given.draft)
    assert speculator.tokenizer is not None
    assert speculator.drafter is not None
    result: dict[str, Any] = {
        "target": given.target,
        "draft": given.draft,
        "plan_tokens": given.plan_tokens,
        "max_tokens": given.max_tokens,
        "prompts": [prompt.name for prompts in sets.values() for prompt in prompts],
        "provenance": provenance(
            {"target": given.target, "draft": given.draft},
            {"target": speculator.target, "draft": speculator.drafter.model},
        ),
        "sets": [],
    }
    for temperature in map(float, given.temperatures.split(",")):
        for name, prompts in sets.items():
            ids = encode(prompts, speculator.tokenizer, raw=False)
            options = {"temperature": temperature}
            told = forecast(speculator, ids, options, (given.plan_tokens, given.max_tokens))
            result["sets"].append({"set": name, "temperature": temperature, **told})
            for cell in told["cells"]:
                mark = "" if cell["held"] else "  not held"
                print(
                    f"{name} at {temperature:g}, {cell['name']}: {cell['measured']:.2f}, planned "
                    f"{cell['speedup']:.2f} ({cell['low']:.2f} to {cell['high']:.2f}){mark}",
                    flush=True,
                )
            result |= counted(result["sets"])
            if given.output is not None:  # a run may be cut off
                write_result("forecasts", result, given.output)
    if given.output is None:
        write_result("forecasts", result, None)
    print(json.dumps(result))


def counted(sets: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """In how many cells the interval held, and how many recommendations were close."""
    cells = [cell for one in sets for cell in one["cells"]]
    return {
        "held": sum(cell["held"] for cell in cells),
        "cells": len(cells),
        "recommendations_close": sum(one["recommended_is_close"] for one in sets),
    }


if __name__ == "__main__":
    main()
