"""A llama-server of one mode, and what its answers say."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import psutil

from draftproof.bench.peers import PeerFailed, seconds_of_all
from draftproof.bench.speed import PLAIN, Mode, Run
from draftproof.errors import InvalidSetting

# What llama.cpp calls a kind of speculation, and the options that set its draft length.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "draft": ("draft-simple", ("--spec-draft-n-max",)),
    "ngram-simple": ("ngram-simple", ("--spec-ngram-simple-size-m",)),
    "ngram-map-k": ("ngram-map-k", ("--spec-ngram-map-k-size-m",)),
    "ngram-map-k4v": ("ngram-map-k4v", ("--spec-ngram-map-k4v-size-m",)),
    "ngram-mod": ("ngram-mod", ("--spec-ngram-mod-n-max", "--spec-ngram-mod-n-min")),
    "ngram-cache": ("ngram-cache", ()),
}
DRAFT = "--spec-draft-model"
LOADING = 600.0  # seconds until a server has to be ready
ANSWERING = 3600.0  # and until it has to have answered


def mode_arguments(mode: str, draft: Path | None) -> list[str]:
    """The server's options for a mode: "plain", or kinds joined by "+", each perhaps "KIND:LENGTH".

    Without a length a kind drafts as many tokens as llama.cpp itself finds right.

    Raises:
        InvalidSetting: There is no such kind, or it cannot have that length, or it lacks its draft.
    """
    if mode == PLAIN:
        return []
    types, options = [], []
    for part in mode.split("+"):
        kind, colon, length = part.partition(":")
        if kind not in KINDS:
            raise wrong(mode, f"no kind of speculation of llama.cpp is called {kind!r}")
        name, settings = KINDS[kind]
        if colon and not (settings and length.isdecimal() and int(length) > 0):
            raise wrong(mode, f"{kind} cannot draft {length!r} tokens")
        if kind == "draft" and draft is None:
            raise wrong(mode, "a draft model drafts, and none was named with --draft")
        types.append(name)
        options += [word for setting in settings if colon for word in (setting, length)]
        options += [DRAFT, str(draft)] if kind == "draft" else []
    return ["--spec-type", ",".join(types), *options]


def parse_peer_modes(text: str | None, draft: Path | None) -> dict[str, list[str]]:
    """The server's options by mode, plain first; None takes every kind that applies."""
    if text is None:
        names = [kind for kind in KINDS if kind != "draft" or draft is not None]
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    return {name: mode_arguments(name, draft) for name in dict.fromkeys([PLAIN, *names])}


def drafts(options: Sequence[str]) -> bool:
    """Whether a mode's options load a draft model."""
    return DRAFT in options


def wrong(mode: str, why: str) -> InvalidSetting:
    return InvalidSetting(
        f"llama.cpp has no mode {mode!r}",
        why=why,
        remedy=f"use plain and {', '.join(KINDS)}, with :LENGTH where drafts are to have that "
        "length, joined by + where several are to draft, and separated by commas",
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server says of one completion."""

    ids: tuple[int, ...]
    prompt_seconds: float
    predicted_seconds: float  # from the first token, which the prompt's pass gave, to the last
    drafted: int
    accepted: int

    @classmethod
    def of(cls, reply: Any, prompt: Sequence[int]) -> Answer:
        """Read a reply to a request that was for token ids.

        Raises:
            PeerFailed: Something is missing, or the prompt was not read anew as it was given.
        """
        try:
            ids, times = tuple(reply["tokens"]), reply["timings"]
            read, seconds = times["prompt_n"], (times["prompt_ms"], times["predicted_ms"])
            if not ids or not all(isinstance(token, int) for token in ids):
                raise ValueError("no token ids")
            if len(ids) != times["predicted_n"] or read != len(prompt):
                raise ValueError(
                    f"{len(ids)} ids of {times['predicted_n']} tokens, after reading {read} tokens "
                    f"of a prompt of {len(prompt)}"
                )
            counts = times.get("draft_n", 0), times.get("draft_n_accepted", 0)
            return cls(ids, seconds[0] / 1e3, seconds[1] / 1e3, *counts)
        except (KeyError, TypeError, ValueError) as error:
            raise PeerFailed(
                "llama-server gave an answer that cannot be measured",
                why=f"{type(error).__name__}: {error}",
                remedy="use a llama.cpp whose server answers /completion with tokens and timings",
            ) from error


class Server:
    """A llama-server on a port of this machine's loopback; used as a context.

    Args:
        program: llama-server.
        name: The mode's name.
        arguments: Model, threads and mode.
    """

    def __init__(self, program: Path, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.answers: list[Answer] = []
        self.port = free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
        own = ["--host", "127.0.0.1", "--port", str(self.port), "--offline", "--no-webui"]
        # One request at a time, nothing remembered of the one before.
        own += ["--parallel", "1", "--cache-ram", "0"]
        self.process = psutil.Popen(
            [str(program), *arguments, *own], stdout=self._log, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> Server:
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self) -> None:
        """Until the model is loaded."""
        deadline = perf_counter() + LOADING
        while perf_counter() < deadline:
            if self.process.poll() is not None:
                raise self._failed("it ended while loading")
            try:
                if self._ask("GET", "/health", None, 5.0)[0] == http.client.OK:
                    return
            except OSError:
                pass  # it does not listen yet
            sleep(0.1)
        raise self._failed(f"it was not ready after {LOADING:.0f} seconds")

    def complete(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        """Continue a prompt greedily.

        Raises:
            PeerFailed: It ended, refused, or its answer cannot be used.
        """
        body = {
            "prompt": list(prompt),
            "n_predict": max_tokens,
            "temperature": 0.0,
            "samplers": ["temperature"],
            "cache_prompt": False,
            "return_tokens": True,
        }
        try:
            status, reply = self._ask("POST", "/completion", body, ANSWERING)
        except OSError as error:
            raise self._failed(f"it did not answer: {error}") from error
        if status != http.client.OK:
            raise self._failed(f"it answered with status {status}: {reply}")
        answer = Answer.of(reply, prompt)
        self.answers.append(answer)
        return answer

    def mode(self) -> Mode:
        """This server as a mode of `bench.speed`."""

        def run(prompt: tuple[int, ...], max_tokens: int) -> Run:
            started = perf_counter()
            answer = self.complete(prompt, max_tokens)
            total = perf_counter() - started
            decode = seconds_of_all(answer.predicted_seconds, len(answer.ids))
            return Run(answer.ids, decode, total)

        return Mode(self.name, run)

    def account(self, last: int) -> dict[str, Any]:
        """What its last answers add up to."""
        answers = self.answers[-last:]
        drafted = sum(answer.drafted for answer in answers)
        accepted = sum(answer.accepted for answer in answers)
        return {
            "drafted": drafted,
            "accepted": accepted,
            "acceptance": accepted / drafted if drafted else None,
            "prompt_seconds": sum(answer.prompt_seconds for answer in answers),
        }

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except psutil.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()

    def _ask(self, verb: str, path: str, body: Mapping[str, Any] | None, limit: float) -> Any:
        """Status and JSON of one request; not through a proxy."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)
        try:
            connection.request(
                verb, path, json.dumps(body) if body else None, {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            text = response.read()
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text.decode(errors="replace")[:500]

    def _failed(self, why: str) -> PeerFailed:
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()
        return PeerFailed(
            f"llama-server failed in the mode {self.name}",
            why="\n".join([why, *said[-6:]]),
            remedy="leave the mode out of --peer-modes, or use another llama.cpp",
        )


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time of all the threads of a process, until now."""
    times = process.cpu_times()
    return float(times.user + times.system)


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
