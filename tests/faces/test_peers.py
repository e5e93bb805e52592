"""The scripts that set other systems beside draftproof, with programs that only act like them."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fakes import FakeModel, FakeTokenizer

from draftproof.bench.peers import PeerFailed, ahead, median_ratio, summarise_peers
from draftproof.bench.speed import Run
from draftproof.errors import (
    InvalidInput,
    InvalidSetting,
    OutOfMemory,
    ResourceError,
    UnsupportedModel,
)
from draftproof.load import Parts, pair

SCRIPTS = Path(__file__).parents[2] / "benchmarks/peers"

# Emits the ids 1, 2, 3, ...; with n-gram caches the last one differs. Does not know ngram-mod.
FAKE_SERVER = """
import http.server, json, sys
words = sys.argv[1:]
if "--version" in words:
    sys.exit("version: 0 (fake)")
kind = words[words.index("--spec-type") + 1] if "--spec-type" in words else "none"
if kind == "ngram-mod":
    sys.exit("error: unknown speculative type: ngram-mod")

class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.reply({"status": "ok"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/completion" and asked["temperature"] == 0
        assert asked["cache_prompt"] is False and asked["return_tokens"] is True
        n = asked["n_predict"]
        tokens = list(range(1, n + 1))
        if kind == "ngram-cache":
            tokens[-1] = 0
        times = {"prompt_n": len(asked["prompt"]), "prompt_ms": 5.0, "predicted_n": n}
        times["predicted_ms"] = 10.0 * (n - 1)
        if kind != "none":
            times |= {"draft_n": 4, "draft_n_accepted": 1}
        self.reply({"tokens": tokens, "timings": times})

    def log_message(self, *_):
        pass

port = int(words[words.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

# A pass costs 10 ms and 1 ms a token.
FAKE_BENCH = """
import json, sys
words = sys.argv[1:]
print("a line that is no JSON")
for n in words[words.index("-p") + 1].split(","):
    print(json.dumps({"n_prompt": int(n), "samples_ns": [(10 + int(n)) * 1e6, 1e9, 1e6]}))
"""
FAKE_BATCHED = """
import json, sys
words = sys.argv[1:]
for n in words[words.index("-npl") + 1].split(","):
    print(json.dumps({"pl": int(n), "tg": 3, "t_tg": 3 * (0.02 + 0.002 * int(n))}))
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}", "utf-8")
    path.chmod(0o755)


@pytest.fixture
def llamacpp(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, its neighbours found as they are when it is run."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        found = importlib.import_module("llamacpp")
    yield found
    for name in [name for name in sys.modules if name.startswith("llamacpp")]:
        del sys.modules[name]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    program(folder / "llama-server", FAKE_SERVER)
    program(folder / "llama-bench", FAKE_BENCH)
    program(folder / "llama-batched-bench", FAKE_BATCHED)
    return folder


@pytest.fixture
def model(tmp_path: Path, llamacpp: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for the fake programs; our side loads fakes. Results have no place to be kept."""
    tokenizer = FakeTokenizer.of_bytes()
    target = FakeModel(tokenizer.vocab_size, seed=1, context_length=4000)
    small = FakeModel(tokenizer.vocab_size, near=target, distance=0.3, seed=2)

    def load_parts(name: str, draft: str | None = None, **_: Any) -> Parts:
        drafter = None if draft is None else pair(target, tokenizer, small, tokenizer)
        return Parts(target, tokenizer, drafter)

    monkeypatch.setattr(llamacpp, "load_parts", load_parts)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def run_speed(llamacpp: ModuleType, model: Path, programs: Path, *more: str) -> dict[str, Any]:
    arguments = ["--target", str(model), "--llamacpp", str(programs), "--limit", "2"]
    return llamacpp.main(["speed", *arguments, "--max-tokens", "6", *more])


# --- llama.cpp, end to end


def test_llamacpp_takes_turns_with_ours(
    llamacpp: ModuleType, model: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_speed(llamacpp, model, programs, "--draft", str(model))
    assert list(found["modes"]) == ["plain", "draft", "lookup", "suffix", "auto"]
    assert list(found["peers"]) == [
        *("plain", "draft", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-cache")
    ]
    plain = found["peers"]["plain"]
    # Five passes of 10 ms after the prompt's gave the first of six tokens.
    assert plain["tokens_per_second"] == pytest.approx(100)
    assert plain["total_tokens_per_second"] != plain["tokens_per_second"]
    assert plain["speedup"]["value"] == 1
    assert plain["identical_prompts"] == 2
    assert plain["acceptance"] is None
    cached = found["peers"]["ngram-cache"]
    assert cached["identical"] is False
    assert cached["identical_prompts"] == 0
    assert [entry["position"] for entry in cached["different"]] == [5, 5]
    # The answers to the warm-up are not counted.
    assert (cached["drafted"], cached["accepted"], cached["acceptance"]) == (8, 2, 0.25)
    assert "unknown speculative type" in found["unavailable"]["ngram-mod"]["why"]
    assert "draft over llama.cpp ngram-simple" in found["ahead"]
    assert len(found["ahead"]) == 5 * 6
    assert found["best_peer"] in found["peers"]
    assert found["peers"]["draft"]["options"][1] == "draft-simple"
    assert found["idle_processors"]["median"] < 1
    assert found["llama.cpp"]["version"] == ["version: 0 (fake)"]
    assert found["provenance"]["models"]["draft"]["sha256"]
    assert json.loads(capsys.readouterr().out) == found


def test_llamacpp_passes_are_compared_size_by_size(
    llamacpp: ModuleType, model: Path, programs: Path
) -> None:
    arguments = ["--target", str(model), "--llamacpp", str(programs), "--repeats", "3"]
    found = llamacpp.main(["passes", *arguments])
    assert found["ms"]["llama-bench"]["8"] == pytest.approx(18)
    assert found["ms"]["llama-batched-bench"]["8"] == pytest.approx(36)
    assert found["over_one_token"]["llama-bench"]["8"] == pytest.approx(18 / 11)
    assert set(found["faster"]["llama-bench"]) == {*map(str, (1, 2, 3, 4, 6, 8, 12, 16, 512))}
    assert set(found["faster"]["llama-batched-bench"]) == {*map(str, (1, 2, 3, 4, 6, 8, 12, 16))}
    eight = found["seconds"]["draftproof"]["8"]
    assert len(eight) == 3
    assert found["faster"]["llama-bench"]["8"]["value"] == pytest.approx(0.018 / sorted(eight)[1])


def test_a_plain_server_that_does_not_start_is_an_error(
    llamacpp: ModuleType, model: Path, programs: Path
) -> None:
    program(programs / "llama-server", "import sys; sys.exit('error: no such file')")
    with pytest.raises(PeerFailed, match="mode plain") as caught:
        run_speed(llamacpp, model, programs)
    assert "no such file" in caught.value.why


def test_a_bench_that_prints_nothing_is_an_error(
    llamacpp: ModuleType, model: Path, programs: Path
) -> None:
    program(programs / "llama-bench", "import sys; sys.exit('error: out of memory')")
    with pytest.raises(PeerFailed, match="llama-bench") as caught:
        llamacpp.main(["passes", "--target", str(model), "--llamacpp", str(programs)])
    assert "out of memory" in caught.value.why


# --- llama.cpp, what cannot be measured


def test_missing_programs_say_what_to_do(llamacpp: ModuleType, model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="llama-server") as caught:
        run_speed(llamacpp, model, tmp_path)
    assert "--build" in caught.value.remedy
    with pytest.raises(InvalidInput, match="no llama"):
        llamacpp.main(["speed", "--target", str(model)])


def test_no_compiler_says_what_to_do(
    llamacpp: ModuleType, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ResourceError, match="no cmake") as caught:
        llamacpp.main(["speed", "--target", str(model), "--build", str(tmp_path / "made")])
    assert "pip install cmake" in caught.value.remedy


@pytest.mark.parametrize(
    ("arguments", "error", "what"),
    [
        (("--peer-modes", "plain,magic"), InvalidSetting, "magic"),
        (("--peer-modes", "draft"), InvalidSetting, "draft"),
        (("--peer-modes", "ngram-cache:3"), InvalidSetting, "ngram-cache:3"),
        (("--peer-modes", "ngram-mod:0"), InvalidSetting, "ngram-mod:0"),
        (("--modes", "fast"), InvalidSetting, "fast"),
        (("--threads", "0"), InvalidSetting, "--threads is 0"),
        (("--max-tokens", "0"), InvalidSetting, "--max-tokens is 0"),
        (("--limit", "0"), InvalidSetting, "limit"),
        (("--output", "nowhere/result.json"), InvalidInput, "no folder"),
        (("--draft", "."), UnsupportedModel, "not a GGUF file"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    llamacpp: ModuleType,
    model: Path,
    programs: Path,
    arguments: tuple[str, ...],
    error: type[Exception],
    what: str,
) -> None:
    with pytest.raises(error, match=what):
        run_speed(llamacpp, model, programs, *arguments)


def test_servers_that_do_not_fit_are_refused(
    llamacpp: ModuleType, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = llamacpp.psutil.virtual_memory()._replace(available=9)
    monkeypatch.setattr(llamacpp.psutil, "virtual_memory", lambda: memory)
    llamacpp.require_memory([model, model])
    with pytest.raises(OutOfMemory, match="--peer-modes"):
        llamacpp.require_memory([model, model, model])


# --- llama.cpp, its parts


def test_modes_become_the_servers_options(llamacpp: ModuleType) -> None:
    server = sys.modules["llamacpp_server"]
    draft = Path("small.gguf")
    assert server.mode_arguments("plain", None) == []
    assert server.mode_arguments("ngram-map-k", None) == ["--spec-type", "ngram-map-k"]
    assert server.mode_arguments("ngram-simple:16+draft:5", draft) == [
        *("--spec-type", "ngram-simple,draft-simple", "--spec-ngram-simple-size-m", "16"),
        *("--spec-draft-n-max", "5", "--spec-draft-model", "small.gguf"),
    ]
    assert list(server.parse_peer_modes("draft:2,plain", draft)) == ["plain", "draft:2"]
    assert "draft" not in server.parse_peer_modes(None, None)


GOOD = {"prompt_n": 2, "prompt_ms": 5.0, "predicted_n": 3, "predicted_ms": 20.0}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("busy", "TypeError"),
        ({"timings": GOOD}, "tokens"),
        ({"tokens": [1, 2, 3]}, "timings"),
        ({"tokens": [], "timings": {**GOOD, "predicted_n": 0}}, "no token ids"),
        ({"tokens": ["a", "b", "c"], "timings": GOOD}, "no token ids"),
        ({"tokens": [1, 2], "timings": GOOD}, "2 ids of 3 tokens"),
        ({"tokens": [1, 2, 3], "timings": {**GOOD, "prompt_n": 1}}, "after reading 1 tokens"),
    ],
)
def test_an_answer_that_cannot_be_measured_is_an_error(
    llamacpp: ModuleType, reply: Any, why: str
) -> None:
    answer = sys.modules["llamacpp_server"].Answer
    assert answer.of({"tokens": [1, 2, 3], "timings": GOOD}, (7, 8)).predicted_seconds == 0.02
    with pytest.raises(PeerFailed) as caught:
        answer.of(reply, (7, 8))
    assert why in caught.value.why


def test_only_llamacpp_is_taken_out_of_the_source_distribution(
    llamacpp: ModuleType, tmp_path: Path
) -> None:
    root = tmp_path / "llama_cpp_python-1"
    for name in ("setup.py", "vendor/llama.cpp/CMakeLists.txt", "vendor/llama.cpp/src/a.cpp"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    archive = tmp_path / "sdist.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(root, root.name)
    sys.modules["llamacpp_programs"].unpack(archive, tmp_path / "out")
    files = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")}
    assert files == {"CMakeLists.txt", "src/a.cpp"}


# --- OpenVINO

# Stands for the interpreter of its environment: told "-I -c ..." or "-I worker.py".
FAKE_PYTHON = """
import json, sys
if "-c" in sys.argv:
    print(json.dumps({"openvino-genai": "0"}))
    sys.exit()
settings = json.loads(sys.stdin.readline())
if settings["mode"] == "draft":
    print(json.dumps({"error": "RuntimeError: no file " + settings["draft"] + "/openvino.xml"}))
    sys.exit()
print(json.dumps({"ready": 1.5}), flush=True)
for line in sys.stdin:
    n = json.loads(line)["max_tokens"]
    told = {"ids": list(range(n)), "seconds": 0.5 + 0.01 * (n - 1), "first": 0.5}
    print(json.dumps(told), flush=True)
"""


@pytest.fixture
def openvino(model: Path, llamacpp: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = script("openvino")
    monkeypatch.setattr(found, "load_parts", llamacpp.load_parts)
    return found


def script(name: str) -> ModuleType:
    """A script by its path: its name is a library's."""
    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_openvino_takes_turns_with_ours(
    openvino: ModuleType, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path / "bin/python", FAKE_PYTHON)
    arguments = ["--target", str(model), "--draft", str(model), "--limit", "2"]
    arguments += ["--max-tokens", "6", "--python", str(tmp_path / "bin/python")]
    found = openvino.main(arguments)
    assert list(found["modes"]) == ["plain", "draft", "lookup", "suffix", "auto"]
    assert list(found["peers"]) == ["plain", "lookup"]
    assert found["peers"]["plain"]["tokens_per_second"] == pytest.approx(100)
    assert found["peers"]["lookup"]["load_seconds"] == 1.5
    assert found["peers"]["lookup"]["identical"]
    # What it said, without the folders of this machine.
    assert found["unavailable"]["draft"]["why"] == "RuntimeError: no file model.gguf/openvino.xml"
    assert len(found["ahead"]) == 5 * 2
    assert found["openvino"] == {"openvino-genai": "0"}
    assert json.loads(capsys.readouterr().out) == found


def test_an_environment_without_openvino_says_what_to_do(
    openvino: ModuleType, model: Path, tmp_path: Path
) -> None:
    program(tmp_path / "bin/python", "import sys; sys.exit('PackageNotFoundError: openvino')")
    for python in ("bin/python", "bin/nowhere"):
        with pytest.raises(InvalidInput, match="no openvino-genai") as caught:
            openvino.main(["--target", str(model), "--python", str(tmp_path / python)])
        assert "pip install openvino-genai" in caught.value.remedy
    with pytest.raises(InvalidSetting, match="needs a draft model"):
        openvino.main(["--target", str(model), "--peer-modes", "draft"])


def test_a_plain_mode_of_openvino_that_does_not_load_is_an_error(
    openvino: ModuleType, model: Path, tmp_path: Path
) -> None:
    program(tmp_path / "bin/python", FAKE_PYTHON.replace('== "draft"', '!= ""'))
    with pytest.raises(PeerFailed, match="mode plain"):
        openvino.main(["--target", str(model), "--python", str(tmp_path / "bin/python")])


class FakeGenai(ModuleType):
    """As much of OpenVINO GenAI as the worker uses; its draft models load from folders alone."""

    class GenerationConfig:
        pass

    class LLMPipeline:
        def __init__(self, path: str, device: str, **properties: Any) -> None:
            self.properties = properties
            if properties.get("enable_save_ov_model"):
                Path(path).with_name("openvino_model.xml").touch()

        def generate(self, ids: Any, config: Any) -> Any:
            print("chatter")  # not among the answers
            tokens = [*ids[0], config.max_new_tokens, len(self.properties)]
            first = SimpleNamespace(get_ttft=lambda: SimpleNamespace(mean=250.0))
            return SimpleNamespace(tokens=[tokens], perf_metrics=first)

    @staticmethod
    def draft_model(path: str, device: str, **_: Any) -> None:
        if not Path(path, "openvino_model.xml").exists():
            raise RuntimeError("no openvino_model.xml")


def test_the_worker_answers_line_by_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "openvino_genai", FakeGenai("openvino_genai"))
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Tensor=lambda array: array))
    worker = script("openvino_worker")
    draft, scratch = tmp_path / "d.gguf", tmp_path / "scratch"
    draft.touch()
    scratch.mkdir()
    settings = {"target": "t", "draft": str(draft), "threads": 2, "eos": [3]}
    settings["scratch"] = str(scratch)
    settings |= {"draft_length": 3, "lookup_tokens": 5, "ngram": 3}
    request = {"prompt": [7, 8], "max_tokens": 4}

    def answers(mode: str) -> list[dict[str, Any]]:
        lines = [{**settings, "mode": mode}, request, {"max_tokens": 4}]
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(map(json.dumps, lines))))
        monkeypatch.setattr(sys, "stdout", out := io.StringIO())
        worker.main()
        return [json.loads(line) for line in out.getvalue().splitlines()]

    ready, answer, wrong = answers("lookup")
    assert ready["ready"] >= 0
    assert answer["ids"] == [7, 8, 4, 2]  # threads and prompt lookup
    assert answer["first"] == 0.25
    assert wrong["error"] == "KeyError: 'prompt'"
    assert answers("plain")[1]["ids"] == [7, 8, 4, 1]
    drafted = answers("draft")
    assert drafted[0]["gguf_draft_refused"] == "no openvino_model.xml"
    assert drafted[1]["ids"] == [7, 8, 4, 2]  # threads and the draft
    draft.unlink()
    (lost,) = answers("draft")
    assert "d.gguf" in lost["error"]


# --- what is reported


def test_peers_are_compared_with_both_plains() -> None:
    prompts = ((1,), (2,))
    own = {"plain": [Run((1, 2), 2.0, 3.0), Run((1, 3), 2.0, 3.0)]}
    peers = {
        "plain": [Run((1, 2), 4.0, 8.0), Run((1, 4), 4.0, 8.0)],
        "fast": [Run((1, 2), 1.0, 2.0), Run((1, 5), 1.0, 2.0)],
    }
    decode = summarise_peers(own, peers, prompts, clock="decode", scorer=None)["fast"]
    assert decode["tokens_per_second"] == 2
    assert decode["speedup"]["value"] == 4
    assert decode["speedup_over_our_plain"]["value"] == 2
    assert (decode["identical"], decode["identical_prompts"]) == (False, 1)
    assert decode["identical_to_our_plain_prompts"] == 1
    total = summarise_peers(own, peers, prompts, clock="total", scorer=None)["fast"]
    assert "tokens_per_second" not in total
    assert total["speedup"]["value"] == 4
    assert total["speedup_over_our_plain"]["value"] == 1.5
    pairs = [("plain", "plain"), ("plain", "slow"), ("auto", "plain")]
    found = ahead(own, peers, pairs, clock="decode", system="theirs")
    assert list(found) == ["plain over theirs plain"]
    assert found["plain over theirs plain"]["value"] == 2


def test_a_ratio_of_medians_is_not_moved_by_one_slow_round() -> None:
    found = median_ratio([2.0, 2.0, 2.0, 90.0, 2.0], [1.0, 1.0, 1.0, 1.0, 1.0])
    assert (found.value, found.low) == (2, 2)
    assert found.high >= 2
    assert median_ratio([3.0], [1.0]) == type(found)(3.0, None, None)
