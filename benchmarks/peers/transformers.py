"""draftproof beside transformers' own generation: plain, assisted, prompt lookup.

    python benchmarks/peers/transformers.py --target qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b

Both sides use the same loaded models, in one process, on the same prompts, greedy, ended by the
same tokens, and take turns prompt by prompt in rotating order. The wall time of a whole call
counts for both, the reading of the prompt included: the only figure that can be had of both in
the same way. Of our own modes the time without the prompt is reported too.

transformers' assisted generation runs with the schedule and settings that it has by default;
prompt lookup needs a length, and 10 tokens is the one that its authors recommend.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from draftproof.bench.modes import parse_modes, speculators
from draftproof.bench.peers import compete, publish, run_script, show
from draftproof.bench.prompts import encode, read_prompts
from draftproof.bench.provenance import check_output, provenance
from draftproof.bench.speed import PLAIN, Mode, Run, speculator_mode
from draftproof.errors import UnsupportedModel
from draftproof.load import Parts, load_parts

# Ours, and the peer that it is to be ahead of.
RIVALS = (
    (PLAIN, PLAIN),
    ("auto", "assisted"),
    ("draft", "assisted"),
    ("lookup", "lookup"),
    ("auto", "lookup"),
)


def peer_mode(name: str, target: Any, eos: Sequence[int], **how: Any) -> Mode:
    """A mode of transformers: `target.generate`, greedy, with these arguments."""
    import torch

    settings = {
        "do_sample": False,
        "num_beams": 1,
        "repetition_penalty": 1.0,  # some models' own settings have another
        "eos_token_id": list(eos) or None,
        "pad_token_id": eos[0] if eos else 0,
        **how,
    }

    def run(prompt: tuple[int, ...], max_tokens: int) -> Run:
        started = perf_counter()
        ids = torch.tensor([prompt], device=target.device)
        output = target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, **settings
        )
        emitted = tuple(output[0, len(prompt) :].tolist())
        seconds = perf_counter() - started
        return Run(emitted, seconds, seconds)

    return Mode(name, run)


def peer_modes(parts: Parts, lookup_tokens: int) -> list[Mode]:
    """What transformers offers for these models."""
    target, eos = loaded(parts.target), sorted(parts.target.eos)
    modes = [
        peer_mode(PLAIN, target, eos),
        peer_mode("lookup", target, eos, prompt_lookup_num_tokens=lookup_tokens),
    ]
    if parts.draft is not None:
        assistant = loaded(parts.draft.model)
        modes.append(peer_mode("assisted", target, eos, assistant_model=assistant))
    return modes


def loaded(model: Any) -> Any:
    """The transformers object behind a decoder-only model."""
    found = getattr(model, "model", None)
    if found is None or found.config.is_encoder_decoder:
        raise UnsupportedModel(
            f"{model.name} is not a decoder-only model of transformers",
            why="the peers are called with a prompt of token ids",
            remedy="choose a decoder-only model",
        )
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--draft-length", type=int, default=3)
    parser.add_argument("--lookup-tokens", type=int, default=10)
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--output", type=Path)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> Mapping[str, Any]:
    """Measure, write the result, print it as one JSON object."""
    given = parse(arguments)
    check_output(given.output)
    prompts = read_prompts(given.prompts, given.limit)
    parts = load_parts(
        given.target,
        given.draft,
        backend="torch",
        device=given.device,
        dtype=given.dtype,
        draft_dtype=given.dtype,
    )
    ids = encode(prompts, parts.tokenizer, given.raw)
    names = parse_modes(None, parts.draft is not None)
    made = speculators(parts.target, parts.tokenizer, parts.draft, names, given.draft_length)
    result = {
        "target": given.target,
        "draft": given.draft,
        "prompts": [prompt.name for prompt in prompts],
        "raw": given.raw,
        "max_tokens": given.max_tokens,
        "draft_length": given.draft_length,
        "lookup_tokens": given.lookup_tokens,
        **compete(
            [speculator_mode(name, made[name], {}) for name in names],
            peer_modes(parts, given.lookup_tokens),
            ids,
            given.max_tokens,
            system="transformers",
            clock="total",
            scorer=parts.target,
            pairs=RIVALS,
            tell=show,
        ),
        "provenance": provenance({"target": given.target, "draft": given.draft}),
    }
    publish("peers", result, given.output)
    return result


if __name__ == "__main__":
    run_script(main, __file__)
