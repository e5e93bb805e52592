"""How near the CPU engine's laws are to transformers' in float32, on the same weights.

    python benchmarks/accuracy.py [--targets NAME ...] [--tokens N] [--output FILE]

The engine computes with the file's own quantised weights and quantises activations; the reference
computes in float32 with the weights that the file stands for. Both read 512 tokens of code (a
module of Python's library) and 512 of prose (Python's own documentation). For each:

    kl        mean of KL(reference || engine) over positions, in nats
    top1      share of positions where both have the same most probable token
    perplexity  of the text by the reference, by the engine, and their ratio

The result is written with its provenance to benchmarks/results/, and the last line of stdout is
the same JSON document. It needs the extra `torch`, and 7 GB of memory for 1.5 billion weights.
"""

from __future__ import annotations

import argparse
import heapq
import inspect
import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from draftproof.backends import load_model
from draftproof.backends.cpu.load import load_cpu_model
from draftproof.bench.provenance import check_output, provenance, write_result
from draftproof.catalog import resolve, silent
from draftproof.core import Logits

TARGETS = ["smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
TEXTS = {
    "code": inspect.getsource(heapq),
    "prose": topics["objects"] + topics["naming"] + topics["types"],
}


def log_softmax(logits: Logits) -> np.ndarray:
    """In float64, row by row."""
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return np.asarray(rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)))


def compare(reference: Logits, engine: Logits, tokens: list[int]) -> dict[str, float]:
    """The figures of one text; `tokens` are its ids."""
    p, q = log_softmax(reference), log_softmax(engine)
    following = np.array(tokens[1:])
    at = np.arange(len(following))
    by_reference, by_engine = (float(np.exp(-logs[at, following].mean())) for logs in (p, q))
    divergence = (np.exp(p) * (p - q)).sum(axis=1)
    return {
        "kl": round(float(divergence.mean()), 6),
        "largest_kl": round(float(divergence.max()), 4),
        "top1": round(float((p.argmax(axis=1) == q.argmax(axis=1)).mean()), 4),
        "perplexity_reference": round(by_reference, 4),
        "perplexity_engine": round(by_engine, 4),
        "perplexity_ratio": round(by_engine / by_reference, 5),
    }


def measure(target: str, count: int) -> dict[str, Any]:
    path = resolve(target, silent)
    model, tokenizer = load_cpu_model(path)
    prompts = {name: tokenizer.encode(text)[:count] for name, text in TEXTS.items()}
    ours = {}
    for name, ids in prompts.items():
        session = model.open(ids)
        ours[name] = session.score(ids, keep=len(ids))
        session.close()
    kernels = model.engine.kernels
    del model
    reference = load_model(path, device="cpu", dtype="float32")
    found: dict[str, Any] = {"kernels": kernels}
    for name, ids in prompts.items():
        session = reference.open(ids)
        found[name] = compare(session.score(ids, keep=len(ids)), ours[name], list(ids))
        session.close()
        print(f"{target} {name}: {found[name]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    check_output(arguments.output)
    document = {
        "tokens": arguments.tokens,
        "models": {target: measure(target, arguments.tokens) for target in arguments.targets},
        "provenance": provenance({name: name for name in arguments.targets}),
    }
    write_result("accuracy", document, arguments.output)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
