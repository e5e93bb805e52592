"""Parity and speed on a CUDA device, in under five minutes, with no weights to fetch.

    python benchmarks/gpu.py                       random weights
    python benchmarks/gpu.py --target DIR --draft DIR
    python benchmarks/gpu.py --device cpu --tiny   tries the script itself

The random target has the shape of a model of about a billion weights. Its draft is the target's
own first layer between the same embedding and head, and the target's other layers are turned down,
so that the two agree often but not always, as a real pair does.

Parity: greedy ids with speculation against plain ones, for several drafters and draft lengths, in
float32 and bfloat16. A GPU rounds differently for different numbers of tokens, so a near-tie may
flip; each difference is reported with its margin, and one above what rounding explains
(`NEAR_TIE`) fails the run with exit status 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from draftproof.backends import wrap_model
from draftproof.bench.modes import parse_modes, speculators
from draftproof.bench.provenance import check_output, provenance, write_result
from draftproof.bench.speed import differences, measure, speculator_mode, summarise
from draftproof.errors import DraftproofError
from draftproof.load import compose, load_parts, modelless, pair
from draftproof.ports import Drafter, Model

LENGTHS = (1, 3, 5, 8)
# Log-probability margins up to these are near-ties. Random logits have a standard deviation near 1,
# of which rounding touches about 1e-5 in float32 and 2e-2 in bfloat16; a wrong cache costs about 1.
NEAR_TIE = {"float32": 1e-3, "bfloat16": 0.25}
OPTIONS = {"eos": ()}  # every output runs to its full length

BILLION = {
    "vocab_size": 16384,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
TINY = {
    **BILLION,
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
QUIET = 0.4  # how loud all later layers together are beside the first


def random_pair(shape: dict[str, Any], device: str, dtype: str) -> tuple[Any, Any]:
    """A target and the draft made from its first layer, with the same weights every time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def made(**changes: Any) -> Any:
        config = LlamaConfig(**{**shape, **changes, "eos_token_id": None})
        with torch.device(device):
            return LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()

    torch.manual_seed(0)
    target = made()
    later = target.model.layers[1:]
    with torch.no_grad():
        for layer in later:
            for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
                projection.weight *= QUIET / len(later) ** 0.5
    draft = made(num_hidden_layers=1)
    weights = target.state_dict()
    draft.load_state_dict({name: weights[name] for name in draft.state_dict()})
    return target, draft


def make_prompts(count: int, vocab: int, length: int) -> list[tuple[int, ...]]:
    """Random token ids; each prompt says its first half twice, so that lookup finds something."""
    import numpy as np

    rng = np.random.default_rng(0)
    halves = (rng.integers(vocab, size=length // 2) for _ in range(count))
    return [tuple(int(token) for token in (*half, *half)) for half in halves]


def parity(
    target: Model, drafters: dict[str, Drafter], prompts: Sequence[tuple[int, ...]], tokens: int
) -> dict[str, Any]:
    """Where greedy outputs with speculation differ from plain ones, and by what margin."""
    plain_mode = speculator_mode("plain", compose(target, None, None, 0), OPTIONS)
    plain = [plain_mode.run(prompt, tokens) for prompt in prompts]
    report: dict[str, Any] = {}
    for name, drafter in drafters.items():
        for length in LENGTHS:
            mode = speculator_mode(name, compose(target, None, drafter, length), OPTIONS)
            runs = [mode.run(prompt, tokens) for prompt in prompts]
            unlike = differences(runs, plain, prompts, target)
            report[f"{name}, {length}"] = {
                "identical": not unlike,
                "different": [asdict(d) for d in unlike],
                "accepted": sum(run.stats.accepted for run in runs if run.stats),
                "drafted": sum(run.stats.drafted for run in runs if run.stats),
            }
    return report


def verdict(report: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Count outputs and differences, and whether near-ties explain them all."""
    unlike = [entry for mode in report.values() for entry in mode["different"]]
    margins = [entry["margin"] for entry in unlike]
    return {
        "differences": len(unlike),
        "largest_margin": max((abs(m) for m in margins if m is not None), default=None),
        "near_tie": NEAR_TIE[dtype],
        "passed": all(m is not None and abs(m) <= NEAR_TIE[dtype] for m in margins),
    }


def models(given: argparse.Namespace, dtype: str) -> tuple[Model, Drafter]:
    """The carried weights, or random ones."""
    if given.target:
        parts = load_parts(
            given.target,
            given.draft,
            backend="torch",
            device=given.device,
            dtype=dtype,
            draft_dtype=dtype,
        )
        if parts.draft is None:
            sys.exit("error: --target needs --draft beside it")
        return parts.target, parts.draft
    shape = TINY if given.tiny else BILLION
    target, draft = (wrap_model(model) for model in random_pair(shape, given.device, dtype))
    return target, pair(target, None, draft, None)


def speed(
    target: Model, draft: Drafter, prompts: Sequence[tuple[int, ...]], tokens: int
) -> dict[str, Any]:
    """The modes of `bench speed`, with its procedure."""
    made = speculators(target, None, draft, parse_modes(None, draft=True), draft_length=3)
    modes = [speculator_mode(name, speculator, OPTIONS) for name, speculator in made.items()]
    runs = measure(modes, prompts, tokens)
    return summarise(runs, prompts, comparable=True, scorer=target)


def absent(device: str) -> bool:
    """Whether the device is not there; says so."""
    import torch

    if not device.startswith("cuda") or torch.cuda.is_available():
        return False
    print(
        "There is no CUDA device here (or this PyTorch was built without CUDA): nothing was "
        "measured.\nThe script itself can be tried with --device cpu --tiny."
    )
    return True


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny random models")
    parser.add_argument("--target", help="weights to use instead of random ones")
    parser.add_argument("--draft")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128, help="per prompt, in the speed part")
    parser.add_argument("--output", type=Path)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both parts; the exit status says whether parity holds."""
    given = parse(arguments)
    check_output(given.output)
    if absent(given.device):
        return 0
    started = perf_counter()
    result: dict[str, Any] = {"device": given.device, "parity": {}}
    for dtype in NEAR_TIE:
        target, draft = models(given, dtype)
        lookup = modelless("lookup", None, target, None)
        drafters = {"draft": draft} | ({"lookup": lookup} if lookup else {})
        prompts = make_prompts(given.prompts, min(target.vocab_size, 16000), length=96)
        outputs = parity(target, drafters, prompts[:3], max(given.tokens // 2, 1))
        result["parity"][dtype] = {**verdict(outputs, dtype), "outputs": outputs}
        print(f"parity, {dtype}: {verdict(outputs, dtype)}", file=sys.stderr)
    result["weights"] = target.weight_bytes, getattr(draft.model, "weight_bytes", None)
    result["modes"] = speed(target, draft, prompts, given.tokens)  # in the last dtype, bfloat16
    result["seconds"] = perf_counter() - started
    result["provenance"] = provenance({"target": given.target, "draft": given.draft})
    path = write_result("gpu", result, given.output)
    if path is not None:
        print(f"written to {path}", file=sys.stderr)
    print(json.dumps(result))
    return 0 if all(part["passed"] for part in result["parity"].values()) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DraftproofError as error:
        sys.exit(f"error: {error}")
