"""`draftproof bench` and the benchmark scripts: prompts, figures, output and errors."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tiny_models
from click.testing import CliRunner, Result
from fakes import FakeClock, FakeModel, FakeTokenizer

from draftproof.backends import wrap_model
from draftproof.bench import provenance as origin
from draftproof.bench import speed as speed_module
from draftproof.bench.modes import parse_modes, speculators
from draftproof.bench.prompts import BenchPrompt, encode, read_prompts
from draftproof.bench.speed import (
    Mode,
    Run,
    comparable,
    differences,
    measure,
    speculator_mode,
    summarise,
)
from draftproof.catalog import ENTRIES
from draftproof.cli.bench import bench
from draftproof.drafters import CrossVocab, DraftModel
from draftproof.drafters import model as model_module
from draftproof.engine import request as request_module
from draftproof.engine import round as round_module
from draftproof.errors import InvalidInput, InvalidSetting, PromptTooLong
from draftproof.load import Parts, compose, costly_of, pair

ROOT = Path(__file__).parents[2]
PROMPTS = ((1, 2, 3), (4, 5, 6), (7, 1, 2))


# --- prompts


def test_a_prompt_a_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one\\u2028line"}\n\n{"id": 7, "prompt": "two"}\n', "utf-8")
    assert read_prompts(file) == [BenchPrompt("line 1", "one\u2028line"), BenchPrompt("7", "two")]


def test_spec_bench_gives_its_first_turns(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    file.write_text('{"question_id": 81, "category": "writing", "turns": ["first", "second"]}')
    assert read_prompts(file) == [BenchPrompt("81", "first")]


def test_human_eval_is_read_gzipped(tmp_path: Path) -> None:
    file = tmp_path / "HumanEval.jsonl.gz"
    lines = [{"task_id": f"HumanEval/{i}", "prompt": f"def f{i}():", "test": ""} for i in range(9)]
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    assert read_prompts(file, 2) == [
        BenchPrompt("HumanEval/0", "def f0():"),
        BenchPrompt("HumanEval/1", "def f1():"),
    ]


def test_the_package_has_prompts_of_its_own() -> None:
    prompts = read_prompts(None)
    assert 6 <= len(prompts) == len({prompt.name for prompt in prompts})


@pytest.mark.parametrize(
    ("content", "what", "why"),
    [
        (b"", "holds no prompt", ""),
        (b"\n \n", "holds no prompt", ""),
        (b'{"prompt": "fine"}\n{"prompt": ', "line 2 of", "not JSON"),
        (b'{"prompt": "fine"}\n\n["prompt"]', "line 3 of", "not a JSON object"),
        (b'{"text": "x"}', "line 1 of", "neither"),
        (b'{"prompt": 3}', "line 1 of", "neither"),
        (b'{"turns": []}', "line 1 of", "neither"),
        (b'{"turns": [{"content": "x"}]}', "line 1 of", "neither"),
        (b'{"prompt": " "}', "line 1 of", "empty"),
        (b"\xff\xfe", "cannot be read", "utf-8"),
    ],
)
def test_ill_formed_prompts_are_refused_by_line(
    tmp_path: Path, content: bytes, what: str, why: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        read_prompts(file)
    assert what in caught.value.what
    assert why in caught.value.why
    assert '"prompt"' in caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"plain text", gzip.compress(b"{}" * 99, mtime=0)[:-9]])
def test_a_damaged_gz_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "prompts.jsonl.gz"
    file.write_bytes(content)
    with pytest.raises(InvalidInput):
        read_prompts(file)


def test_a_missing_file_and_a_limit_of_zero_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_prompts(tmp_path / "nowhere.jsonl")
    with pytest.raises(InvalidSetting, match="limit"):
        read_prompts(None, 0)


def test_the_chat_template_is_used_unless_raw() -> None:
    prompts = [BenchPrompt("a", "hello world")]
    tokenizer = FakeTokenizer()
    (chatted,) = encode(prompts, tokenizer, raw=False)
    assert chatted == tokenizer.chat([{"role": "user", "content": "hello world"}])
    assert encode(prompts, tokenizer, raw=True) == [tokenizer.encode("hello world")]
    with pytest.raises(InvalidSetting, match="--raw"):
        encode(prompts, FakeTokenizer(template=False), raw=False)


# --- modes


def test_plain_is_always_among_the_modes() -> None:
    assert parse_modes(None, draft=True) == ("plain", "draft", "lookup", "suffix", "auto")
    assert parse_modes(None, draft=False) == ("plain", "lookup", "suffix", "auto")
    assert parse_modes("auto, plain", draft=False) == ("plain", "auto")
    assert parse_modes("lookup", draft=False) == ("plain", "lookup")


@pytest.mark.parametrize(
    ("text", "what"),
    [("plain,fast", "'fast'"), ("auto,auto", "twice"), ("plain,draft", "needs a draft model")],
)
def test_modes_that_cannot_be_are_refused(text: str, what: str) -> None:
    with pytest.raises(InvalidSetting, match=what):
        parse_modes(text, draft=False)


def test_every_mode_shares_the_models() -> None:
    target = FakeModel(8, seed=1)
    draft = pair(target, None, FakeModel(8, seed=2), None)
    made = speculators(target, None, draft, ("plain", "draft", "lookup", "suffix", "auto"), 3)
    assert all(speculator.target is target for speculator in made.values())
    assert made["plain"].drafter is None
    assert made["draft"].drafter is draft is costly_of(made["auto"].drafter)
    assert made["auto"].drafter.name == "mix"
    across = CrossVocab(FakeModel(8), FakeTokenizer(), FakeTokenizer(), 8)
    other = speculators(target, None, across, ("plain", "draft", "auto"), 3)
    assert other["draft"].drafter is across is costly_of(other["auto"].drafter)
    assert [made[name].drafter.name for name in ("lookup", "suffix")] == ["lookup", "suffix"]
    made = speculators(target, None, None, ("suffix", "auto"), 3)
    assert made["auto"] is made["suffix"]  # measured once


# --- measuring


def test_modes_take_turns_in_rotating_order_after_a_short_warm_up() -> None:
    calls = []

    def mode(name: str) -> Mode:
        def run(prompt: tuple[int, ...], max_tokens: int) -> Run:
            calls.append((name, prompt, max_tokens))
            return Run((0,), 1.0, 1.0)

        return Mode(name, run)

    runs = measure([mode("a"), mode("b"), mode("c")], PROMPTS, 64)
    assert calls[:3] == [(name, PROMPTS[0], 8) for name in "abc"]
    assert calls[3:] == [
        (name, prompt, 64)
        for prompt, order in zip(PROMPTS, ("abc", "bca", "cab"), strict=True)
        for name in order
    ]
    assert {name: len(found) for name, found in runs.items()} == {"a": 3, "b": 3, "c": 3}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    for module in (request_module, round_module, speed_module, model_module):
        monkeypatch.setattr(module, "perf_counter", clock)
    return clock


def timed_pair(clock: FakeClock) -> tuple[FakeModel, DraftModel]:
    """A target of a second per pass (ten for a prompt) and a draft that is always right."""
    prompt = len(PROMPTS[0]) - 1
    target = FakeModel(8, seed=1, clock=clock, seconds=lambda n: 10.0 if n == prompt else 1.0)
    # Passes of the draft over one token: after a full acceptance it reads two.
    draft = FakeModel(8, near=target, clock=clock, seconds=lambda n: 0.1)
    return target, pair(target, None, draft, None)


def test_speed_counts_tokens_over_seconds_without_the_prompt(clock: FakeClock) -> None:
    """Draft length 3, all accepted: a round of 1 + 3 * 0.1 seconds gives 4 tokens."""
    target, draft = timed_pair(clock)
    modes = [
        speculator_mode("plain", compose(target, None, None, 0), {}),
        speculator_mode("draft", compose(target, None, draft, 3), {}),
    ]
    runs = measure(modes, PROMPTS, 12)
    report = summarise(runs, PROMPTS, comparable=True, scorer=target)
    plain, drafted = report["plain"], report["draft"]
    assert plain["tokens_per_second"] == pytest.approx(1)
    assert plain["total_tokens_per_second"] == pytest.approx(12 / (10 + 12))
    assert plain["speedup"] == plain["tokens_per_round"] == plain["efficiency"] == 1
    assert plain["acceptance"] is None
    assert drafted["tokens_per_second"] == pytest.approx(4 / 1.3)
    assert drafted["speedup"] == pytest.approx(4 / 1.3)
    assert drafted["speedup_low"] == pytest.approx(4 / 1.3) == drafted["speedup_high"]
    assert drafted["tokens_per_round"] == 4
    assert drafted["acceptance"] == 1
    assert drafted["efficiency"] == pytest.approx(1 / 1.3)
    assert drafted["seconds"]["score"] == pytest.approx(9)
    assert drafted["seconds"]["draft"] == pytest.approx(9 * 0.3)
    assert drafted["identical"] is True
    assert drafted["different"] == []
    # Reading the prompt: both modes by the target, and a pass of the draft.
    assert drafted["total_speedup"] == pytest.approx(22 / (10 + 0.1 + 3 * 1.3), rel=0.01)


def test_where_an_output_leaves_plain_is_reported_with_its_margin() -> None:
    target = FakeModel(8, seed=1)
    outputs = [tuple(target.plain(prompt, 6)) for prompt in PROMPTS]
    plain = [Run(ids, 1.0, 1.0) for ids in outputs]
    other = (outputs[1][4] + 1) % 8
    wrong = (*outputs[1][:4], other, 0)
    runs = [plain[0], Run(wrong, 1.0, 1.0), Run(outputs[2][:5], 1.0, 1.0)]
    found = differences(runs, plain, PROMPTS, target)
    assert [(d.prompt, d.position) for d in found] == [(1, 4), (2, 5)]
    logits = target.logits_after((*PROMPTS[1], *outputs[1][:4]))
    assert found[0].margin == pytest.approx(float(logits[outputs[1][4]] - logits[other]), abs=1e-6)
    assert found[0].margin > 0
    assert found[1].margin is None  # it ended early: there is no other token
    assert target.open_sessions == 0
    report = summarise({"plain": plain, "x": runs}, PROMPTS, comparable=True, scorer=target)
    assert report["x"]["identical"] is False
    assert [entry["position"] for entry in report["x"]["different"]] == [4, 5]
    assert report["x"]["tokens_per_round"] is None  # nothing is known of its rounds
    assert differences(plain, plain, PROMPTS, target) == []


@pytest.mark.parametrize(
    ("options", "promised"),
    [
        ({}, True),
        ({"temperature": 0.0, "verify": "block"}, True),
        ({"temperature": 1.0}, False),
        ({"temperature": 1.0, "seed": 3}, True),
        ({"temperature": 1.0, "seed": 3, "verify": "coupled"}, True),
        ({"temperature": 1.0, "seed": 3, "verify": "block"}, False),
        ({"temperature": 1.0, "verify": "coupled"}, False),
    ],
)
def test_sampled_outputs_are_compared_only_where_they_should_agree(
    options: dict[str, Any], promised: bool
) -> None:
    assert comparable(options) is promised
    target = FakeModel(8, seed=1)
    draft = pair(target, None, FakeModel(8, near=target, distance=0.5, seed=2), None)
    modes = [
        speculator_mode("plain", compose(target, None, None, 0), options),
        speculator_mode("draft", compose(target, None, draft, 3), options),
    ]
    runs = measure(modes, PROMPTS, 20)
    report = summarise(runs, PROMPTS, comparable=promised, scorer=None)
    assert report["draft"]["identical"] is (True if promised else None)
    assert report["draft"]["different"] == ([] if promised else None)


# --- where figures come from


def test_provenance_names_code_machine_versions_and_models(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    found = origin.provenance({"target": "smollm2-135m", "draft": str(weights), "none": None})
    assert found["models"]["target"]["sha256"] == ENTRIES["smollm2-135m"].sha256
    assert set(found["models"]) == {"target", "draft"}
    assert origin.describe(str(file))["sha256"] == hashlib.sha256(b"weights").hexdigest()
    before = found["models"]["draft"]["sha256"]
    (weights / "config.json").write_text("{ }")
    assert origin.describe(str(weights))["sha256"] != before
    assert found["logical_cores"] >= 1
    assert found["memory_bytes"] > 0
    assert found["runtime"]["threads"] >= 1
    assert set(found["versions"]) == set(origin.PACKAGES)
    assert found["versions"]["numpy"] == np.__version__
    json.dumps(found)


def test_an_installed_copy_claims_no_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A copy of the file that no repository tracks, as in site-packages."""
    monkeypatch.setattr(origin, "__file__", str(tmp_path / "provenance.py"))
    assert origin.revision() == {"commit": None, "dirty": None}


def test_a_result_is_written_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert origin.write_result("speed", {"a": 1}, None) is None
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    written = origin.write_result("speed", {"a": 1}, None)
    assert written.parent == Path("benchmarks/results")
    assert written.name.startswith("speed-")
    assert json.loads(written.read_text()) == {"a": 1}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(origin.os, "replace", full)
    with pytest.raises(InvalidInput, match="No space left"):
        origin.write_result("speed", {"a": 2}, tmp_path / "out.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["benchmarks"]


# --- the commands


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeModel:
    """The loader gives fakes; the current folder is empty."""
    tokenizer = FakeTokenizer.of_bytes()
    target = FakeModel(tokenizer.vocab_size, seed=1, context_length=4000)
    small = FakeModel(tokenizer.vocab_size, near=target, distance=0.3, seed=2)

    def load_parts(target_name: str, draft: str | None = None, **_: Any) -> Parts:
        drafter = None if draft is None else pair(target, tokenizer, small, tokenizer)
        return Parts(target, tokenizer, drafter)

    monkeypatch.setattr(sys.modules["draftproof.cli.bench"], "load_parts", load_parts)
    monkeypatch.chdir(tmp_path)
    return target


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments, catch_exceptions=False)


SPEED = ("speed", "--limit", "2", "--max-tokens", "6")
PAIR = (*SPEED, "--draft", "qwen2.5-coder-0.5b")


def test_speed_prints_one_object(parts: FakeModel) -> None:
    result = run(*PAIR, "--json")
    found = json.loads(result.stdout)
    assert list(found["modes"]) == ["plain", "draft", "lookup", "suffix", "auto"]
    needed = {
        *("tokens_per_second", "speedup", "speedup_low", "speedup_high", "tokens_per_round"),
        *("acceptance", "identical", "different", "efficiency", "total_tokens_per_second"),
    }
    for mode in found["modes"].values():
        assert needed <= set(mode)
        assert mode["identical"] is True
        assert [prompt["tokens"] for prompt in mode["prompts"]] == [6, 6]
    assert found["provenance"]["models"]["draft"]["name"] == "qwen2.5-coder-0.5b"
    assert len(found["prompts"]) == 2
    assert parts.open_sessions == 0


def test_speed_without_json_is_a_table(parts: FakeModel) -> None:
    result = run(*SPEED)
    assert "tokens/s" in result.stdout
    assert "lookup" in result.stdout
    assert "{" not in result.stdout


def test_sampling_flags_reach_the_modes(parts: FakeModel) -> None:
    """Prompt by prompt equal with a seed; without one, outputs are not compared."""
    found = json.loads(run(*SPEED, "--json", "--raw", "--temperature", "1", "--seed", "3").stdout)
    assert found["options"]["seed"] == 3
    assert all(mode["identical"] for mode in found["modes"].values())
    found = json.loads(run(*SPEED, "--json", "--raw", "--temperature", "1").stdout)
    assert found["modes"]["lookup"]["identical"] is None


def test_results_are_kept_where_there_is_a_place_for_them(parts: FakeModel, tmp_path: Path) -> None:
    assert "written" not in run(*SPEED).stderr
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    result = run(*SPEED, "--json")
    (kept,) = (tmp_path / "benchmarks/results").iterdir()
    assert json.loads(kept.read_text()) == json.loads(result.stdout)
    run("curve", "--output", "curve.json", "--repeats", "2")
    assert json.loads((tmp_path / "curve.json").read_text())["n"][-1] == 16


@pytest.mark.parametrize(
    ("arguments", "error", "what"),
    [
        (("--modes", "draft"), InvalidSetting, "needs a draft model"),
        (("--modes", "fast"), InvalidSetting, "fast"),
        (("--limit", "0"), InvalidSetting, "limit"),
        (("--prompts", "nowhere.jsonl"), InvalidInput, "nowhere.jsonl"),
        (("--output", "nowhere/result.json"), InvalidInput, "no folder"),
        (("--max-tokens", "0"), InvalidSetting, "max_tokens"),
        (("--temperature", "-1"), InvalidSetting, "temperature"),
        (("--draft", "x", "--draft-length", "-1"), InvalidSetting, "draft length"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    parts: FakeModel, arguments: tuple[str, ...], error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        run("speed", *arguments)


def test_curve_prints_one_object(parts: FakeModel) -> None:
    found = json.loads(run("curve", "--json", "--repeats", "3").stdout)
    assert found["n"] == [1, 2, 3, 4, 6, 8, 12, 16]
    assert len(found["ms"]) == 8
    assert all(
        low <= ms <= high
        for low, ms, high in zip(found["ms_fastest"], found["ms"], found["ms_slowest"], strict=True)
    )
    assert found["model"] == "smollm2-135m"
    assert found["backend"] == "FakeModel"
    assert found["threads"] is None  # a fake says nothing of them
    assert found["repeats"] == 3
    assert "16" in run("curve", "--repeats", "1").stdout


def test_curve_says_what_does_not_fit(parts: FakeModel) -> None:
    with pytest.raises(PromptTooLong, match="4001"):
        run("curve", "--context", "4001")
    with pytest.raises(InvalidSetting, match="context"):
        run("curve", "--context", "0")
    with pytest.raises(InvalidSetting, match="repeats"):
        run("curve", "--repeats", "0")
    found = json.loads(run("curve", "--json", "--repeats", "1", "--context", "3993").stdout)
    assert found["n"] == [1, 2, 3, 4, 6, 8]


# --- the scripts


def script(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{Path(path).stem}", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gpu_script_runs_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = script("benchmarks/gpu.py")
    output = tmp_path / "gpu.json"
    arguments = ["--device", "cpu", "--tiny", "--prompts", "2", "--tokens", "12"]
    assert gpu.main([*arguments, "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert set(found["parity"]) == {"float32", "bfloat16"}
    outputs = found["parity"]["float32"]["outputs"]
    assert len(outputs) == 2 * len(gpu.LENGTHS)
    assert all(entry["identical"] for entry in outputs.values())
    drafted = outputs["draft, 3"]
    assert 0 < drafted["accepted"] < drafted["drafted"]  # both kinds of round were played
    assert set(found["modes"]) == {"plain", "draft", "lookup", "suffix", "auto"}
    assert json.loads(capsys.readouterr().out) == found


def test_the_gpu_script_fails_where_no_near_tie_explains_a_difference() -> None:
    gpu = script("benchmarks/gpu.py")
    clean = {"draft, 1": {"different": []}}
    near = {"draft, 1": {"different": [{"margin": -1e-4}]}}
    wrong = {"draft, 1": {"different": [{"margin": 1.0}]}}
    ended = {"draft, 1": {"different": [{"margin": None}]}}
    verdicts = [gpu.verdict(report, "float32") for report in (clean, near, wrong, ended)]
    assert [verdict["passed"] for verdict in verdicts] == [True, True, False, False]
    assert verdicts[1]["largest_margin"] == 1e-4


def test_the_gpu_script_says_where_there_is_no_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script("benchmarks/gpu.py").main([]) == 0
    assert "no CUDA device" in capsys.readouterr().out


def test_the_peers_run_beside_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = script("benchmarks/peers/transformers.py")
    tokenizer = FakeTokenizer()
    target = wrap_model(tiny_models.llama(0))
    draft = pair(target, None, wrap_model(tiny_models.llama(1)), None)
    monkeypatch.setattr(peers, "load_parts", lambda *_, **__: Parts(target, tokenizer, draft))
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "hello the cat sat"}\n{"prompt": "on the cat, hello"}\n')
    output = tmp_path / "peers.json"
    arguments = ["--prompts", str(file), "--draft", "qwen2.5-coder-0.5b", "--max-tokens", "10"]
    peers.main([*arguments, "--raw", "--output", str(output)])
    found = json.loads(output.read_text())
    assert set(found["peers"]) == {"plain", "assisted", "lookup"}
    for peer in found["peers"].values():
        assert peer["identical"]
        assert peer["identical_to_our_plain"]  # greedy, float32, and ended alike
        assert peer["total_tokens_per_second"] > 0
    assert found["peers"]["plain"]["speedup"]["value"] == 1
    assert set(found["ahead"]) == {
        f"{mode} over transformers {peer}" for mode, peer in peers.RIVALS
    }
    assert all(mode["identical"] for mode in found["modes"].values())
    assert json.loads(capsys.readouterr().out) == found


def test_the_peers_script_does_not_hide_the_library(tmp_path: Path) -> None:
    """A script's folder is searched first: in this one `import transformers` finds the script."""
    program = ROOT / "benchmarks/peers/transformers.py"
    tiny_models.llama().save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, program, "--target", tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "holds no tokenizer" in done.stderr  # so transformers has loaded the model
