"""What a user sees of each mistake: exit status 2, what, why and remedy, and no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_models
import torch

from draftproof.cli import BROKEN, REFUSED, main
from draftproof.cli import progress as cli_progress

Capture = pytest.CaptureFixture[str]
VOCAB = 300


def fails(capsys: Capture, *arguments: Any, status: int = REFUSED) -> str:
    """Run the command, which must refuse; returns standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert ended.value.code == status
    assert out == ""
    assert "Traceback" not in err
    return err


def refused(capsys: Capture, *arguments: Any) -> str:
    """The same for an error of ours; returns the line that says what was wrong."""
    lines = fails(capsys, *arguments).splitlines()
    assert lines[-3].startswith("error: ")
    assert lines[-2].startswith("  why: ")
    assert lines[-1].startswith("  remedy: ")
    return lines[-3]


def save(folder: Path, model: Any, tokenizer: Any = None) -> Path:
    model.save_pretrained(folder)
    (tokenizer or tiny_models.tokenizer()).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def good(root: Path) -> Path:
    made = tiny_models.llama(vocab_size=VOCAB, max_position_embeddings=64)
    return save(root / "good", made)


def gguf_file(path: Path, architecture: str) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tensor("x", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def _nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading would be an internal error, and so another exit status."""

    def load(**_: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(cli_progress, "load", load)


# --- models ---------------------------------------------------------------------------------


def test_control_a_good_model_generates(good: Path, capsys: Capture) -> None:
    main(["generate", "--target", str(good), "--max-tokens", "3", "--json", "hello"])
    assert len(json.loads(capsys.readouterr().out)["token_ids"]) <= 3


@pytest.mark.parametrize("backend", [[], ["--backend", "torch"]], ids=["default", "torch"])
@pytest.mark.parametrize("keep", [10, 60, -1])
def test_truncated_gguf(tmp_path: Path, capsys: Capture, keep: int, backend: list[str]) -> None:
    path = gguf_file(tmp_path / "cut.gguf", "llama")
    path.write_bytes(path.read_bytes()[:keep])
    said = refused(capsys, "generate", "--target", path, *backend, "hello")
    assert "cut.gguf cannot be read" in said


def test_text_called_gguf(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "story.gguf").write_text("Once upon a time there was a llama.")
    command = ["generate", "--backend", "torch", "--target", tmp_path / "story.gguf", "hello"]
    said = refused(capsys, *command)
    assert "does not begin like a GGUF file" in said


def test_unknown_architecture(tmp_path: Path, capsys: Capture) -> None:
    path = gguf_file(tmp_path / "strange.gguf", "nonsense")
    said = refused(capsys, "generate", "--target", path, "hello")
    assert "unknown architecture 'nonsense'" in said


def test_gguf_without_what_its_architecture_needs(tmp_path: Path, capsys: Capture) -> None:
    path = gguf_file(tmp_path / "bare.gguf", "llama")
    said = refused(capsys, "generate", "--backend", "torch", "--target", path, "hello")
    assert "bare.gguf cannot be read: 32 weights, and its configuration describes" in said


def test_folder_without_weights(good: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.json").write_bytes((good / "config.json").read_bytes())
    said = refused(capsys, "generate", "--target", tmp_path, "hello")
    assert "holds no model.safetensors" in said


def test_folder_without_a_model(tmp_path: Path, capsys: Capture) -> None:
    said = refused(capsys, "generate", "--target", tmp_path, "hello")
    assert "holds no config.json" in said


def test_missing_models(good: Path, tmp_path: Path, capsys: Capture) -> None:
    nowhere = tmp_path / "nowhere.gguf"
    assert "nowhere.gguf" in refused(capsys, "generate", "--target", nowhere, "hello")
    command = ["generate", "--target", good, "--draft", nowhere, "hello"]
    assert "nowhere.gguf" in refused(capsys, *command)
    assert "no-such-name" in refused(capsys, "generate", "--target", "no-such-name", "hello")


def test_a_draft_with_another_tokenizer(good: Path, root: Path, capsys: Capture) -> None:
    from tokenizers import Tokenizer

    described = json.loads(tiny_models.tokenizer().backend_tokenizer.to_str())
    vocabulary = described["model"]["vocab"]
    last = len(vocabulary) + 2
    described["model"]["vocab"] = {t: i if i < 3 else last - i for t, i in vocabulary.items()}
    other = tiny_models.transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)),
        bos_token="<s>", eos_token="</s>", pad_token="<pad>",
    )  # fmt: skip
    draft = save(root / "other", tiny_models.llama(1, vocab_size=VOCAB), other)
    said = refused(
        capsys, "generate", "--target", good, "--draft", draft, "--drafter", "model", "hello"
    )
    assert "token ids mean different strings" in said


@pytest.mark.parametrize("role", ["target", "draft"])
def test_weights_that_are_not_numbers(good: Path, root: Path, capsys: Capture, role: str) -> None:
    made = tiny_models.llama(vocab_size=VOCAB)
    with torch.no_grad():
        made.model.norm.weight[0] = np.nan
    broken = save(root / "broken", made)
    target = broken if role == "target" else good
    draft = broken if role == "draft" else good
    said = refused(
        capsys, "generate", "--json", "--draft-length", 3,
        "--target", target, "--draft", draft, "hello",
    )  # fmt: skip
    named = {
        "target": "the target's logits at output position 0 hold NaN or infinity",
        "draft": "broken returned NaN or infinity at position 5",
    }
    assert named[role] in said


# --- prompts --------------------------------------------------------------------------------


def test_empty_prompt(root: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny_models.tokenizer()
    tokenizer.backend_tokenizer.post_processor = None  # else <s> begins even an empty text
    bare = save(root / "bare", tiny_models.llama(vocab_size=VOCAB), tokenizer)
    assert "prompt is empty" in refused(capsys, "generate", "--target", bare, "--json", "")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(read=lambda: ""))
    assert "prompt is empty" in refused(capsys, "generate", "--target", bare, "--json", "-")


def test_prompt_longer_than_the_context(good: Path, root: Path, capsys: Capture) -> None:
    said = refused(capsys, "generate", "--json", "--target", good, "long " * 20)
    assert "the prompt has 101 tokens, and the context of the target good is 64" in said
    wide = save(root / "wide", tiny_models.llama(2, vocab_size=VOCAB))
    command = ["generate", "--json", "--draft-length", 3, "--target", wide, "--draft", good]
    assert "the context of the draft good is 64" in refused(capsys, *command, "long " * 20)


# --- settings: refused before anything is loaded ----------------------------------------------


@pytest.mark.usefixtures("_nothing_loads")
@pytest.mark.parametrize("command", [["generate", "hello"], ["chat"]])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--top-k", "0"], "top_k is 0"),
        (["--min-p", "2"], "min_p is 2.0"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0.0"),
        (["--logit-bias", "3=nan"], "logit_bias of token 3 is nan"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--min-tokens", "9", "--max-tokens", "3"], "min_tokens is 9"),
        (["--logprobs", "-1"], "logprobs is -1"),
        (["--seed", "-1"], "seed -1"),
    ],
)
def test_settings_out_of_range(
    capsys: Capture, command: list[str], flags: list[str], said: str
) -> None:
    assert said in refused(capsys, *command, *flags)


@pytest.mark.usefixtures("_nothing_loads")
def test_control_fine_settings_go_on_to_load(capsys: Capture) -> None:
    err = fails(capsys, "generate", "hello", "--temperature", "1", status=BROKEN)
    assert "AssertionError: loaded" in err


@pytest.mark.usefixtures("_nothing_loads")
@pytest.mark.parametrize(
    "flags",
    [
        ["--draft-length", "-1"],
        ["--draft-length", "many"],
        ["--temprature", "1"],
        ["--verify", "blok"],
        ["--dtype", "int3"],
        ["--logit-bias", "3"],
        ["--drafter", "oracle"],
    ],
)
def test_unknown_flags_and_words(capsys: Capture, flags: list[str]) -> None:
    err = fails(capsys, "generate", *flags, "hello")
    assert "Error: " in err
    assert flags[0] in err


def test_drafters_that_fit_nothing(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Known before the target is looked for: it does not exist."""
    nowhere = ["generate", "--target", tmp_path / "nowhere", "hello"]
    said = refused(capsys, *nowhere, "--drafter", "model")
    assert "no drafter is called 'model' without a draft model" in said
    for name in ("lookup", "none"):
        said = refused(capsys, *nowhere, "--drafter", name, "--draft", "other")
        assert f"the drafter '{name}' was given the draft other" in said


def test_files_of_counts_that_cannot_be_used(good: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "counts.npz").write_text("no counts")
    for name in ("counts.npz", "nowhere.npz"):
        said = refused(
            capsys, "generate", "--target", good, "--drafter", "ngram",
            "--draft", tmp_path / name, "hello",
        )  # fmt: skip
        assert name in said


def test_an_unknown_rule_is_refused_by_the_python_interface_too() -> None:
    """In a process of its own: here the tests' type checks would speak first."""
    program = "from draftproof.engine import Options; Options.of({'verify': 'blok'})"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "InvalidSetting: no rule is called 'blok'" in run.stderr
