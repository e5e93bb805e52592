"""What each choice gains on a real pair: rule, trees, adaptive lengths, drafters side by side.

    python benchmarks/gains.py --target qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b \\
        --prompts benchmarks/data/spec-1.jsonl --max-tokens 96

Each comparison runs its modes prompt by prompt in turn, plain decoding among them, and reports the
speed-up of the first over each other with a 95 % interval (bootstrap over prompts). `block` against
`token` is sampled at temperature 0.7, without `coupled`; the others are greedy.
"""

from __future__ import annotations

from typing import Any

from pair_arguments import pair_parser, publish

from draftproof.bench.prompts import encode, read_prompts
from draftproof.bench.provenance import check_output
from draftproof.bench.speed import Mode, compare, counts, measure, speculator_mode
from draftproof.core import Prompt
from draftproof.engine import Speculator
from draftproof.load import Parts, compose, load_parts, modelless, with_matches
from draftproof.ports import Guide, Guiding, LengthPolicy, Lengths

FIXED = (1, 2, 3, 4, 6)
SAMPLED = {"temperature": 0.7}


class Chains:
    """Lengths whose guides never branch."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths

    def begin(self, prompt: Prompt, reproducible: bool = False) -> LengthPolicy:
        policy = self._lengths.begin(prompt, reproducible)
        return OneBranch(policy) if isinstance(policy, Guiding) else policy


class OneBranch:
    """A policy that tells its guides that the target scores no trees."""

    def __init__(self, policy: Guiding) -> None:
        self._policy = policy
        self.length = policy.length
        self.observe = policy.observe

    @property
    def reasons(self) -> tuple[str, ...]:
        return self._policy.reasons

    def guide(self, branching: bool, room: int, unread: float) -> Guide:
        return self._policy.guide(False, room, unread)


def chains(speculator: Speculator) -> Speculator:
    return Speculator(
        speculator.target, speculator.tokenizer, speculator.drafter, Chains(speculator.lengths)
    )


def comparisons(parts: Parts, seed: int) -> dict[str, list[Mode]]:
    """The modes of each comparison; the first is compared with the others."""
    target, tokenizer, draft = parts.target, parts.tokenizer, parts.draft
    assert draft is not None

    def auto(drafter: Any) -> Speculator:
        return compose(target, tokenizer, drafter, "auto")

    mix, suffix = with_matches(draft), modelless("suffix", None, target, tokenizer)
    plain = compose(target, tokenizer, None, 0)
    fixed = {n: compose(target, tokenizer, draft, n) for n in FIXED}
    rules = {rule: {**SAMPLED, "verify": rule, "seed": seed} for rule in ("block", "token")}
    return {
        "block against token": [
            *(speculator_mode(rule, fixed[4], options) for rule, options in rules.items()),
            speculator_mode("plain", plain, {**SAMPLED, "seed": seed}),
        ],
        "trees against chains": [
            speculator_mode("mix, trees", auto(mix), {}),
            speculator_mode("mix, chains", chains(auto(mix)), {}),
            speculator_mode("suffix, trees", auto(suffix), {}),
            speculator_mode("suffix, chains", chains(auto(suffix)), {}),
        ],
        "adaptive against fixed": [
            speculator_mode("model, adaptive", auto(draft), {}),
            *(speculator_mode(f"model, {n}", one, {}) for n, one in fixed.items()),
            speculator_mode("plain", plain, {}),
        ],
    }


def main() -> None:
    parser = pair_parser(__doc__, 96)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    check_output(given.output)
    prompts = read_prompts(given.prompts, given.limit)
    parts = load_parts(given.target, given.draft)
    assert parts.draft is not None
    ids = encode(prompts, parts.tokenizer, raw=False)
    gains: dict[str, Any] = {}
    for name, modes in comparisons(parts, given.seed).items():
        runs = measure(modes, ids, given.max_tokens)
        first = modes[0].name
        gains[name] = {
            "of": first,
            "accounts": {mode: counts(made) for mode, made in runs.items()},
            "over": {},
        }
        for mode in runs:
            if mode != first:
                gain = compare(runs[first], runs[mode], "decode")
                whole = compare(runs[first], runs[mode], "total")
                gains[name]["over"][mode] = {
                    "gain": gain.value, "low": gain.low, "high": gain.high,
                    "total_gain": whole.value, "total_low": whole.low, "total_high": whole.high,
                }  # fmt: skip
                print(
                    f"{first} over {mode}: {gain.value:.2f} ({gain.low:.2f} to {gain.high:.2f}), "
                    f"whole calls {whole.value:.2f}"
                )
    result = {"prompts": [prompt.name for prompt in prompts], "gains": gains}
    publish("gains", given, result, target=parts.target, draft=parts.draft.model)


if __name__ == "__main__":
    main()
