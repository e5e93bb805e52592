"""draftproof beside llama.cpp, on the same GGUF files and prompts, in the same interleaved run.

    python benchmarks/peers/llamacpp.py speed  --build build/peers --target qwen2.5-coder-1.5b \\
        --draft qwen2.5-coder-0.5b --prompts benchmarks/data/HumanEval.jsonl.gz --limit 20
    python benchmarks/peers/llamacpp.py passes --build build/peers --target qwen2.5-coder-1.5b

`speed` decodes greedily with every mode of both in turn, prompt by prompt, in rotating order. Each
mode of llama.cpp is a llama-server of its own, and gets the same token ids. Compared is the time of
decoding without the prompt's reading: of llama.cpp by the server's own account, which leaves out
what HTTP costs.

`passes` times a pass over n new tokens. llama-bench computes the logits of the last token alone;
llama-batched-bench those of all, as the scoring of a draft needs them and as our passes do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from llamacpp_passes import passes
from llamacpp_programs import BENCH, SERVER, Programs, programs
from llamacpp_server import Server, cpu_seconds, drafts, parse_peer_modes

from draftproof.bench.modes import parse_modes, speculators
from draftproof.bench.peers import (
    PeerFailed,
    compete,
    explain,
    gguf_file,
    publish,
    run_script,
    show,
)
from draftproof.bench.prompts import encode, read_prompts
from draftproof.bench.provenance import check_output, provenance
from draftproof.bench.speed import PLAIN, Mode, Run, speculator_mode
from draftproof.errors import InvalidSetting, OutOfMemory
from draftproof.load import Parts, load_parts

ROOM = 128  # tokens of context beyond prompt and answer, so that no draft is cut short


def start(
    stack: ExitStack,
    found: Programs,
    model: Path,
    modes: Mapping[str, Sequence[str]],
    *,
    threads: int,
    context: int,
) -> tuple[list[Server], dict[str, Any]]:
    """A server per mode, one after the other; and those that do not start, with the reason."""
    servers, absent = [], {}
    own = ["-m", str(model), "-t", str(threads), "-tb", str(threads), "-c", str(context)]
    for name, options in modes.items():
        show(f"starting llama.cpp, {name}", len(servers) + len(absent), len(modes))
        try:
            server = Server(found.find(SERVER), name, [*own, *options])
            servers.append(stack.enter_context(server))
        except PeerFailed as error:
            if name == PLAIN:
                raise
            absent[name] = explain(error)
    return servers, absent


def require_memory(files: Sequence[Path]) -> None:
    """Refuse servers that would not fit: each has its weights to itself once it repacks them."""
    needed = sum(file.stat().st_size for file in files)
    available = psutil.virtual_memory().available
    if needed > available:
        raise OutOfMemory(
            f"llama.cpp's modes need about {needed / 1e9:.1f} GB at once, and "
            f"{available / 1e9:.1f} GB are free",
            why="each mode is a server of its own, so that all can take turns",
            remedy="measure fewer at a time with --peer-modes",
        )


def watched(mode: Mode, others: Sequence[psutil.Process], idle: list[float]) -> Mode:
    """The mode, with the processor time noted that those who should wait used meanwhile."""

    def run(prompt: tuple[int, ...], max_tokens: int) -> Run:
        before = sum(map(cpu_seconds, others))
        found = mode.run(prompt, max_tokens)
        idle.append((sum(map(cpu_seconds, others)) - before) / found.total_seconds)
        return found

    return Mode(mode.name, run)


def others(server: Server, waiting: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Who should wait while a server computes: this process, and every other server."""
    return [psutil.Process(), *(process for process in waiting if process != server.process)]


def speed(given: argparse.Namespace, found: Programs, parts: Parts) -> dict[str, Any]:
    """Every mode of both sides on every prompt."""
    prompts = read_prompts(given.prompts, given.limit)
    ids = encode(prompts, parts.tokenizer, given.raw)
    names = parse_modes(given.modes, parts.draft is not None)
    made = speculators(parts.target, parts.tokenizer, parts.draft, names, given.draft_length)
    model, small = gguf_file(given.target), gguf_file(given.draft)
    options = parse_peer_modes(given.peer_modes, small)
    require_memory([model] * len(options) + [small] * sum(map(drafts, options.values())))
    context = max(map(len, ids)) + given.max_tokens + ROOM
    idle: list[float] = []
    with ExitStack() as stack:
        servers, absent = start(
            stack, found, model, options, threads=given.threads, context=context
        )
        waiting = [server.process for server in servers]
        ours = [watched(speculator_mode(name, made[name], {}), waiting, idle) for name in names]
        theirs = [watched(server.mode(), others(server, waiting), idle) for server in servers]
        result = compete(
            ours, theirs, ids, given.max_tokens,
            system="llama.cpp", clock="decode", scorer=parts.target, tell=show,
        )  # fmt: skip
    for server in servers:
        account = server.account(len(ids))
        account["options"] = [Path(word).name for word in options[server.name]]
        result["peers"][server.name].update(account)
    return {
        "draft": given.draft,
        "prompts": [prompt.name for prompt in prompts],
        "raw": given.raw,
        "max_tokens": given.max_tokens,
        "draft_length": given.draft_length,
        **result,
        "unavailable": absent,
        "idle_processors": {"median": median(idle), "most": max(idle)},
    }


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("speed", "passes"):
        command = commands.add_parser(name)
        command.add_argument("--target", default="smollm2-135m")
        command.add_argument("--llamacpp", type=Path, help="a folder of llama.cpp's programs")
        command.add_argument("--build", type=Path, help="a folder to build them in, once")
        command.add_argument("--threads", type=int, help="of both sides")
        command.add_argument("--backend", choices=("cpu", "torch"), help="of our side")
        command.add_argument("--output", "--out", type=Path)
        if name == "passes":
            command.add_argument("--context", type=int, default=64)
            command.add_argument("--repeats", type=int, default=5)
            continue
        command.add_argument("--draft")
        command.add_argument("--prompts", type=Path)
        command.add_argument("--limit", type=int)
        command.add_argument("--raw", action="store_true")
        command.add_argument("--max-tokens", type=int, default=128)
        command.add_argument("--draft-length", type=int, default=3)
        command.add_argument("--modes", help="ours, as in `bench speed`")
        command.add_argument("--peer-modes", help="llama.cpp's, such as plain,draft:5,ngram-mod")
    return parser.parse_args(arguments)


def check(given: argparse.Namespace) -> None:
    """Refuse what cannot be measured, before anything is built or loaded."""
    check_output(given.output)
    for name in ("threads", "repeats", "context", "max_tokens"):
        if (value := getattr(given, name, None)) is not None and value < 1:
            raise InvalidSetting(
                f"--{name.replace('_', '-')} is {value}",
                why="nothing can be measured with it",
                remedy="set it to 1 or more",
            )
    if given.command == "speed":
        read_prompts(given.prompts, given.limit)
        parse_modes(given.modes, given.draft is not None)
        parse_peer_modes(given.peer_modes, None if given.draft is None else Path(given.draft))


def main(arguments: Sequence[str] | None = None) -> Mapping[str, Any]:
    """Measure, write the result, print it as one JSON object."""
    given = parse(arguments)
    check(given)
    found = programs(given.llamacpp, given.build, lambda what: print(what, file=sys.stderr))
    for program in (SERVER,) if given.command == "speed" else (BENCH,):
        found.find(program)
    gguf_file(given.target)
    draft = getattr(given, "draft", None)
    gguf_file(draft)
    parts = load_parts(given.target, draft, backend=given.backend, threads=given.threads)
    given.threads = given.threads or psutil.cpu_count(logical=False) or 1
    if given.command == "speed":
        measured = speed(given, found, parts)
    else:
        times = {"context": given.context, "repeats": given.repeats, "threads": given.threads}
        measured = passes(parts, found, gguf_file(given.target), show, **times)
    result = {
        "target": given.target,
        "threads": given.threads,
        **measured,
        "llama.cpp": found.origin,
        "provenance": provenance(
            {"target": given.target, "draft": draft},
            {"target": parts.target, "draft": parts.draft.model if parts.draft else None},
        ),
    }
    publish(f"peers-llamacpp-{given.command}", result, given.output)
    return result


if __name__ == "__main__":
    run_script(main, __file__)
