"""draftproof beside OpenVINO GenAI, on the same GGUF files and prompts, in one interleaved run.

    python -m venv build/openvino && build/openvino/bin/pip install openvino-genai
    python benchmarks/peers/openvino.py --python build/openvino/bin/python \\
        --target qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b

OpenVINO reads the GGUF file itself, in an environment of its own: plain, with its prompt lookup,
and with a draft model, which it saves in its own format first where it refuses the file. A mode
that it cannot load is part of the result, with its own words. Every mode is a process that waits
while another computes. Compared is the time of decoding without the prompt's reading, of OpenVINO
from its first token on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import psutil

from draftproof.bench.modes import parse_modes, speculators
from draftproof.bench.peers import (
    PeerFailed,
    compete,
    explain,
    gguf_file,
    publish,
    run_script,
    seconds_of_all,
    show,
)
from draftproof.bench.prompts import encode, read_prompts
from draftproof.bench.provenance import check_output, provenance
from draftproof.bench.speed import PLAIN, Mode, Run, speculator_mode
from draftproof.errors import InvalidInput
from draftproof.load import load_parts

WORKER = Path(__file__).with_name("openvino_worker.py")
PEER_MODES = (PLAIN, "lookup", "draft")
NGRAM = 3  # tokens that its prompt lookup matches, as in its own examples


class Worker:
    """A process of OpenVINO with one mode loaded; used as a context."""

    def __init__(self, python: Path, settings: Mapping[str, Any]) -> None:
        self.name = str(settings["mode"])
        files = (settings["target"], settings["draft"])
        self._folders = [Path(file).parent for file in files if file is not None]
        self._process = subprocess.Popen(
            # Isolated, so that the folder of this script does not hide the library openvino.
            [str(python), "-I", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            told = self._ask(settings, "ready")
            self.notes = {"load_seconds": told.pop("ready"), **self._without_folders(told)}
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def mode(self) -> Mode:
        """This worker as a mode of `bench.speed`."""

        def run(prompt: tuple[int, ...], max_tokens: int) -> Run:
            started = perf_counter()
            told = self._ask({"prompt": prompt, "max_tokens": max_tokens}, "ids", "first")
            total = perf_counter() - started
            ids = tuple(told["ids"])
            return Run(ids, seconds_of_all(told["seconds"] - told["first"], len(ids)), total)

        return Mode(self.name, run)

    def _ask(self, request: Mapping[str, Any], *needed: str) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        answer = json.loads(line) if line else {"error": "the process ended"}
        if not set(needed) <= set(answer):
            found = self._without_folders({"why": str(answer.get("error", answer))})
            raise PeerFailed(
                f"OpenVINO failed in the mode {self.name}",
                why=found["why"],
                remedy="leave the mode out of --peer-modes, or install another openvino-genai",
            )
        return answer

    def _without_folders(self, texts: Mapping[str, str]) -> dict[str, str]:
        """What OpenVINO said, without where this machine keeps its models."""
        found = dict(texts)
        for folder in self._folders:
            found = {key: text.replace(f"{folder}/", "").strip() for key, text in found.items()}
        return found


def versions(python: Path) -> dict[str, str]:
    """The versions of OpenVINO's packages in an environment.

    Raises:
        InvalidInput: It has none, or is none.
    """
    ask = (
        "import importlib.metadata as m, json; print(json.dumps({p: m.version(p) for p in "
        "('openvino-genai', 'openvino', 'openvino-tokenizers')}))"
    )
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", ask], capture_output=True, text=True, check=False
        )
        why = done.stderr.strip()[-300:]
    except OSError as error:
        done, why = None, str(error)
    if done is None or done.returncode != 0:
        raise InvalidInput(
            f"{python} has no openvino-genai",
            why=why,
            remedy="make an environment for it (python -m venv build/openvino; "
            "build/openvino/bin/pip install openvino-genai) and give its interpreter to --python",
        )
    return dict(json.loads(done.stdout))


def start(
    stack: ExitStack, python: Path, names: Sequence[str], settings: Mapping[str, Any]
) -> tuple[list[Worker], dict[str, Any]]:
    """A worker per mode, one after the other; and those that do not load, with the reason."""
    workers, absent = [], {}
    for name in names:
        show(f"loading OpenVINO, {name}", len(workers) + len(absent), len(names))
        try:
            workers.append(stack.enter_context(Worker(python, {**settings, "mode": name})))
        except PeerFailed as error:
            if name == PLAIN:
                raise
            absent[name] = explain(error)
    return workers, absent


def parse_peer_modes(text: str | None, draft: bool) -> list[str]:
    """OpenVINO's modes in a list with commas, plain first; None takes all that apply."""
    names = parse_modes(text or ",".join(PEER_MODES if draft else PEER_MODES[:2]), draft)
    return [name for name in names if name in PEER_MODES]


def speed(given: argparse.Namespace) -> dict[str, Any]:
    """Every mode of both sides on every prompt."""
    prompts = read_prompts(given.prompts, given.limit)
    target, draft = gguf_file(given.target), gguf_file(given.draft)
    parts = load_parts(given.target, given.draft, backend=given.backend, threads=given.threads)
    ids = encode(prompts, parts.tokenizer, given.raw)
    names = parse_modes(given.modes, draft is not None)
    made = speculators(parts.target, parts.tokenizer, parts.draft, names, given.draft_length)
    settings = {
        "target": str(target),
        "draft": None if draft is None else str(draft),
        "threads": given.threads or psutil.cpu_count(logical=False) or 1,
        "draft_length": given.draft_length,
        "lookup_tokens": given.lookup_tokens,
        "ngram": NGRAM,
        "eos": sorted(parts.target.eos),
    }
    with ExitStack() as stack:
        settings["scratch"] = stack.enter_context(TemporaryDirectory())
        peer_names = parse_peer_modes(given.peer_modes, draft is not None)
        workers, absent = start(stack, given.python, peer_names, settings)
        result = compete(
            [speculator_mode(name, made[name], {}) for name in names],
            [worker.mode() for worker in workers],
            ids, given.max_tokens,
            system="OpenVINO", clock="decode", scorer=parts.target, tell=show,
        )  # fmt: skip
    for worker in workers:
        result["peers"][worker.name].update(worker.notes)
    asked = ("target", "draft", "raw", "max_tokens", "draft_length", "lookup_tokens")
    return {
        **{name: getattr(given, name) for name in asked},
        "prompts": [prompt.name for prompt in prompts],
        "threads": settings["threads"],
        **result,
        "unavailable": absent,
        "provenance": provenance(
            {"target": given.target, "draft": given.draft},
            {"target": parts.target, "draft": parts.draft.model if parts.draft else None},
        ),
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--draft")
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="that has openvino-genai"
    )
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--draft-length", type=int, default=3)
    parser.add_argument("--lookup-tokens", type=int, default=5)
    parser.add_argument("--modes", help="ours, as in `bench speed`")
    parser.add_argument("--peer-modes", help="OpenVINO's, of plain, lookup and draft")
    parser.add_argument("--threads", type=int, help="of both sides")
    parser.add_argument("--backend", choices=("cpu", "torch"), help="of our side")
    parser.add_argument("--output", "--out", type=Path)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> Mapping[str, Any]:
    """Measure, write the result, print it as one JSON object."""
    given = parse(arguments)
    check_output(given.output)
    parse_modes(given.modes, given.draft is not None)
    parse_peer_modes(given.peer_modes, given.draft is not None)
    found = versions(given.python)
    result = {**speed(given), "openvino": found}
    publish("peers-openvino", result, given.output)
    return result


if __name__ == "__main__":
    run_script(main, __file__)
