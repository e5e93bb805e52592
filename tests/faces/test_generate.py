"""`draftproof generate` and `draftproof chat`, on a tiny model in a folder."""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import taught_models

from draftproof.backends.session import CachedSession
from draftproof.engine import Speculator
from draftproof.errors import BadLogits

PROMPT, TEXT = taught_models.PROMPT, taught_models.TEXT
KEYS = {"text", "token_ids", "finish_reason", "seed", "rule", "prompt_tokens", "stats"}
SAMPLED = {"temperature": 3.0, "top_k": 40, "seed": 5, "max_tokens": 30}


def flags(options: dict[str, Any]) -> list[str]:
    return [part for name, value in options.items()
            for part in (f"--{name.replace('_', '-')}", str(value))]  # fmt: skip


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int, by: BaseException | None = None) -> None:
    """Ctrl-C, or an error, in the `at`-th pass of the target that gives logits, counted from 1."""
    real = CachedSession.score
    passes = 0

    def score(self: CachedSession, tokens: Any, keep: int) -> Any:
        nonlocal passes
        passes += keep > 0
        if passes == at and keep > 0:
            raise by or KeyboardInterrupt
        return real(self, tokens, keep)

    monkeypatch.setattr(CachedSession, "score", score)


def test_the_text_is_what_python_gives(run: Any, api: Speculator, folder: Path) -> None:
    for arguments in (
        [],
        ["--drafter", "none"],
        ["--draft-length", "3"],
        ["--drafter", "ngram"],
        ["--draft", str(folder / "draft")],
        ["--draft", str(folder / "draft"), "--draft-length", "8"],
    ):
        status, out, _ = run("generate", *arguments, PROMPT)
        assert (status, out) == (0, TEXT + "\n")
    assert api.generate(PROMPT).text == TEXT


def test_options_reach_the_engine(run: Any, api: Speculator, folder: Path) -> None:
    draft = ["--draft", str(folder / "draft"), "--draft-length", "4"]
    for options in (
        SAMPLED,
        {**SAMPLED, "verify": "block"},
        {**SAMPLED, "verify": "token", "top_p": 0.9, "min_p": 0.01},
        {**SAMPLED, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"min_tokens": 20, "max_tokens": 25},
    ):
        _, out, _ = run("generate", *draft, *flags(options), "--json", PROMPT)
        expected = api.generate(PROMPT, **options)
        document = json.loads(out)
        assert document["token_ids"] == list(expected.token_ids)
        assert document["rule"] == expected.rule
    token = api.generate(PROMPT).token_ids[4]
    _, out, _ = run("generate", "--logit-bias", f"{token}=-100", "--json", PROMPT)
    expected = api.generate(PROMPT, logit_bias={token: -100.0})
    assert json.loads(out)["token_ids"] == list(expected.token_ids)
    _, out, _ = run("generate", "--ban", "owls", PROMPT)
    assert out == api.generate(PROMPT, banned=["owls"]).text + "\n"
    assert "owls" not in out


def test_json_is_one_object_and_nothing_else(run: Any, api: Speculator, folder: Path) -> None:
    draft = ["--draft", str(folder / "draft"), "--draft-length", "4"]
    status, out, _ = run("generate", *draft, "--json", PROMPT)
    expected = api.generate(PROMPT)
    document = json.loads(out)
    assert status == 0
    assert out.count("\n") == 1
    assert set(document) == KEYS
    assert document["text"] == TEXT
    assert document["token_ids"] == list(expected.token_ids)
    assert document["finish_reason"] == "eos"
    assert document["prompt_tokens"] == len(taught_models.bpe()(PROMPT)["input_ids"])
    for name in ("rounds", "drafted", "accepted", "emitted", "acceptance", "tokens_per_round"):
        assert document["stats"][name] == getattr(expected.stats, name)


@pytest.mark.parametrize("count", [0, 3])
def test_json_has_logprobs_on_request(run: Any, api: Speculator, count: int) -> None:
    _, out, _ = run("generate", "--json", "--logprobs", str(count), PROMPT)
    document = json.loads(out)
    assert set(document) == KEYS | {"logprobs"}
    expected = api.generate(PROMPT, logprobs=count).tokens
    assert len(document["logprobs"]) == len(document["token_ids"]) == len(expected)
    for entry, token in zip(document["logprobs"], expected, strict=True):
        assert entry["id"] == token.id
        assert entry["logprob"] == pytest.approx(token.logprob, abs=1e-4)
        assert [top["id"] for top in entry["top"]] == [i for i, _ in token.top_logprobs]
        assert len(entry["top"]) == count


def test_stop_strings(run: Any) -> None:
    _, out, _ = run("generate", "--stop", "never", "--stop", "🦉", PROMPT)
    assert out == TEXT[: TEXT.index("🦉")] + "\n"


def test_a_dash_reads_standard_input(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    status, out, _ = run("generate", "-")
    assert (status, out) == (0, TEXT + "\n")


def test_the_account_goes_to_stderr(run: Any, api: Speculator, folder: Path) -> None:
    arguments = ["--draft", str(folder / "draft"), "--draft-length", "4"]
    _, out, err = run("generate", *arguments, PROMPT)
    assert out == TEXT + "\n"
    said = " ".join(err.split())
    count = len(api.generate(PROMPT).token_ids)
    assert re.search(rf"^{count} tokens · [\d.]+ tokens/s · [\d.]+ tokens per round", said)
    assert re.search(r"\d+% of \d+ drafted tokens accepted \(mix\) · ended by eos", said)
    _, _, err = run("generate", "--drafter", "none", PROMPT)
    assert "plain decoding" in " ".join(err.split())


def test_reasons_are_told(run: Any) -> None:
    """A seeded text under the block rule has one draft length throughout, and says why."""
    _, _, err = run("generate", *flags({**SAMPLED, "verify": "block"}), PROMPT)
    assert "draft length 4 throughout" in " ".join(err.split())


@pytest.mark.parametrize("at", [1, 2, 6])
def test_ctrl_c_keeps_what_was_generated(
    run: Any, api: Speculator, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    full = api.generate(PROMPT)
    interrupt(monkeypatch, at)
    status, out, err = run("generate", "--drafter", "none", PROMPT)
    assert status == 130
    done = taught_models.bpe().decode(full.token_ids[: at - 1])
    assert out == done + "\n"
    said = " ".join(err.split())
    assert f"{at - 1} tokens ·" in said
    assert "ended by interrupted" in said
    assert "Traceback" not in err


def test_ctrl_c_shows_text_that_was_held_back(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the rest of a stop string that now does not come."""
    stop = TEXT[2:] + "!"
    interrupt(monkeypatch, 6)
    status, out, _ = run("generate", "--drafter", "none", "--stop", stop, PROMPT)
    assert status == 130
    assert len(out) > 3
    assert TEXT.startswith(out.removesuffix("\n"))


def test_ctrl_c_with_json(run: Any, api: Speculator, monkeypatch: pytest.MonkeyPatch) -> None:
    full = api.generate(PROMPT)
    interrupt(monkeypatch, 6)
    status, out, _ = run("generate", "--drafter", "none", "--json", PROMPT)
    document = json.loads(out)
    assert status == 130
    assert document["finish_reason"] == "interrupted"
    assert document["token_ids"] == list(full.token_ids[:5])
    assert document["stats"]["emitted"] == 5


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_on_the_way_keeps_what_was_written(
    run: Any, api: Speculator, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    full = api.generate(PROMPT)
    error = BadLogits("logits hold NaN", why="broken weights", remedy="other weights")
    interrupt(monkeypatch, at=6, by=error)
    flags = ["--json"] if as_json else []
    status, out, err = run("generate", "--drafter", "none", *flags, PROMPT)
    assert status == 2
    assert "logits hold NaN" in err
    assert "Traceback" not in err
    kept = "".join(token.text for token in full.tokens[:5])
    if as_json:
        assert json.loads(out)["token_ids"] == list(full.token_ids[:5])
    else:
        assert out == kept + "\n"
        assert "5 tokens" in err


def test_ctrl_c_while_the_prompt_is_read(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = CachedSession.score

    def score(self: CachedSession, tokens: Any, keep: int) -> Any:
        if len(tokens) > 1:
            raise KeyboardInterrupt
        return real(self, tokens, keep)

    monkeypatch.setattr(CachedSession, "score", score)
    status, out, err = run("generate", "--drafter", "none", TEXT)
    assert (status, out) == (130, "")
    assert "interrupted" in err
    assert "Traceback" not in err


def talk(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))


CHAT_OPTIONS = {"max_tokens": 12, "temperature": 2.0, "seed": 3, "top_k": 20}


def expected_answers(api: Speculator, lines: list[str], system: str | None = None) -> list[Any]:
    """The conversation through the Python API."""
    history = [{"role": "system", "content": system}] if system else []
    answers = []
    for line in lines:
        history.append({"role": "user", "content": line})
        stream = api.chat(history, **CHAT_OPTIONS)
        for _ in stream:
            pass
        answers.append(stream.result)
        history.append({"role": "assistant", "content": stream.result.text})
    return answers


@pytest.mark.parametrize("system", [None, "be brief"])
def test_chat_keeps_the_history(
    run: Any, api: Speculator, monkeypatch: pytest.MonkeyPatch, system: str | None
) -> None:
    prompts: list[list[dict[str, str]]] = []
    real = Speculator.chat

    def chat(self: Speculator, messages: Any, **options: Any) -> Any:
        prompts.append([dict(message) for message in messages])
        return real(self, messages, **options)

    lines = ["who sold owls", "", "and who paid"]
    spoken = [line for line in lines if line]
    answers = expected_answers(api, spoken, system)
    monkeypatch.setattr(Speculator, "chat", chat)
    talk(monkeypatch, *lines)
    more = [] if system is None else ["--system", system]
    status, out, _ = run("chat", *flags(CHAT_OPTIONS), *more, "--json")
    printed = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert len(printed) == len(prompts) == 2
    for document, answer in zip(printed, answers, strict=True):
        assert set(document) == KEYS
        assert document["text"] == answer.text
        assert document["token_ids"] == list(answer.token_ids)
        assert document["prompt_tokens"] == answer.prompt_tokens
    first = 0 if system is None else 1
    assert prompts[1][: first + 1] == prompts[0]
    assert prompts[1][first + 1 :] == [
        {"role": "assistant", "content": answers[0].text},
        {"role": "user", "content": "and who paid"},
    ]


def test_chat_prints_answers_and_accounts(
    run: Any, api: Speculator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["who sold owls", "and who paid"]
    answers = expected_answers(api, lines)
    talk(monkeypatch, *lines)
    status, out, err = run("chat", *flags(CHAT_OPTIONS))
    assert (status, out) == (0, "".join(answer.text + "\n" for answer in answers))
    assert " ".join(err.split()).count("12 tokens ·") == 2


def test_chat_on_the_cpu_engine_reads_what_is_new(
    outcome: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second turn the first one is not read again; the answers are as without that."""
    pytest.importorskip("draftproof._native", reason="the CPU engine was not built")
    from draftproof.backends.cpu.model import CpuModel

    asked = ["--target", folder, "--backend", "cpu", "--drafter", "none", "--json"]
    lines, read = ["who sold owls and why", "and who paid"], list[int]()
    real = CpuModel.score_together

    def score(model: CpuModel, passes: Any) -> Any:
        read.extend(len(part.tokens) for part in passes if not part.keep)
        return real(model, passes)

    monkeypatch.setattr(CpuModel, "score_together", score)
    told = []
    for remembers in (True, False):
        if not remembers:
            monkeypatch.setattr(Speculator, "remember", lambda *given: None)
        talk(monkeypatch, *lines)
        status, out, _ = outcome("chat", *asked, *flags(CHAT_OPTIONS))
        assert status == 0
        told.append([json.loads(line) for line in out.splitlines()])
    answers, anew = told
    assert [a["token_ids"] for a in answers] == [a["token_ids"] for a in anew]
    prompts = [answer["prompt_tokens"] for answer in anew]
    assert read[-2:] == [prompts[0] - 1, prompts[1] - 1]
    assert read[-4] == prompts[0] - 1
    assert read[-3] < prompts[1] - prompts[0] + 2  # the first answer was scored when it was written


def test_chat_goes_on_after_ctrl_c(
    run: Any, api: Speculator, monkeypatch: pytest.MonkeyPatch
) -> None:
    (full,) = expected_answers(api, ["who sold owls"])
    talk(monkeypatch, "who sold owls", "and who paid")
    interrupt(monkeypatch, 4)
    status, out, _ = run("chat", "--drafter", "none", *flags(CHAT_OPTIONS), "--json")
    first, second = (json.loads(line) for line in out.splitlines())
    assert status == 0
    assert first["finish_reason"] == "interrupted"
    assert first["token_ids"] == list(full.token_ids[:3])
    assert second["finish_reason"] == "length"
    history = [
        {"role": "user", "content": "who sold owls"},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": "and who paid"},
    ]
    stream = api.chat(history, **CHAT_OPTIONS)
    assert [token.id for token in stream] == second["token_ids"]


def test_without_a_command_there_is_help(outcome: Any) -> None:
    _, out, err = outcome()
    for command in ("generate", "chat", "plan", "check", "bench", "models"):
        assert command in out + err
    status, out, _ = outcome("--help")
    assert status == 0
    assert "generate" in out


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--colour", "blue"], "--colour"),
        (["--draft-length", "many"], "'many' is neither 'auto' nor a number"),
        (["--draft-length", "-1"], "'-1' is neither 'auto' nor a number"),
        (["--draft-length", "2.5"], "'2.5' is neither 'auto' nor a number"),
        (["--logit-bias", "42"], "'42' is not of the form ID=BIAS"),
        (["--verify", "maybe"], "'maybe' is not one of"),
    ],
)
def test_usage_errors_end_with_2(run: Any, command: str, arguments: list[str], said: str) -> None:
    status, out, err = run(command, *arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_fault_of_ours_leaves_a_log(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a wheel came off")

    monkeypatch.setattr(Speculator, "stream", broken)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    status, out, err = run("generate", PROMPT)
    assert (status, out) == (70, "")
    assert "RuntimeError: a wheel came off" in err
    assert "Traceback" not in err
    (log,) = tmp_path.glob("draftproof-*.log")
    assert str(log) in err
    assert "Traceback" in log.read_text()
    assert "a wheel came off" in log.read_text()
