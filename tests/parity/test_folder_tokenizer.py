"""The tokenizer of a model folder, against transformers' reading of the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from texts import lines
from transformers import AutoTokenizer

from draftproof.backends.cpu.tokenizer import from_folder
from draftproof.errors import ModelCorrupt, ModelNotFound, UnsupportedModel

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
CHAT = [{"role": "user", "content": "hello"}]


def saved(folder: Path, **settings: Any) -> Path:
    tiny_models.tokenizer(**settings).save_pretrained(folder)
    return folder


def change(folder: Path, name: str = "tokenizer_config.json", **values: Any) -> None:
    path = folder / name
    held = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**held, **values}), "utf-8")


@pytest.mark.parametrize(
    "begins", [None, False, True]
)  # as the setting has it, which is not heeded
def test_same_as_transformers(begins: bool | None, tmp_path: Path) -> None:
    folder = saved(tmp_path, chat_template=TEMPLATE)
    if begins is not None:
        change(folder, add_bos_token=begins, add_eos_token=begins)
    ours, theirs = from_folder(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.vocabulary == theirs.get_vocab()
    for text in lines(300, seed=7):
        for special in (True, False):
            expected = theirs(text, add_special_tokens=special)["input_ids"]
            assert list(ours.encode(text, special=special)) == expected
        assert ours.decode(ours.encode(text)) == theirs.decode(
            theirs(text)["input_ids"], skip_special_tokens=True
        )
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert list(ours.chat(CHAT)) == expected


def test_padding_and_truncation_in_the_file_change_nothing(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    inner = tiny_models.tokenizer().backend_tokenizer
    inner.enable_truncation(max_length=3)
    inner.enable_padding(length=64)
    inner.save(str(folder / "tokenizer.json"))
    assert len(from_folder(folder).encode("a longer text", special=False)) == 13


@pytest.mark.parametrize("where", ["chat_template.jinja", "setting", "list"])
def test_where_the_template_stands(where: str, tmp_path: Path) -> None:
    folder = saved(tmp_path)
    if where == "chat_template.jinja":
        change(folder, chat_template="{{ raise_exception('the file goes first') }}")
        (folder / where).write_text(TEMPLATE, "utf-8")
    elif where == "setting":
        change(folder, chat_template=TEMPLATE)
    else:
        both = [{"name": "rag", "template": "x"}, {"name": "default", "template": TEMPLATE}]
        change(folder, chat_template=both)
    ours = from_folder(folder)
    assert ours.chat(CHAT) == (1, *ours.encode("hello", special=False), 2)


def test_special_tokens_as_objects(tmp_path: Path) -> None:
    folder = saved(tmp_path, chat_template=TEMPLATE)
    change(folder, eos_token={"content": "<|stop|>", "lstrip": False})
    ours = from_folder(folder)
    assert ours.encode("<|stop|>", special=False) == (ours.vocabulary["<|stop|>"],)
    assert ours.decode([ours.vocabulary["<|stop|>"]]) == ""
    assert ours.chat(CHAT)[-1] == ours.vocabulary["<|stop|>"]


def test_folders_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="holds no tokenizer"):
        from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(UnsupportedModel, match=r"as tokenizer\.model only") as caught:
        from_folder(tmp_path)
    assert "AutoTokenizer" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": 1}'),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("special_tokens_map.json", "no"),
    ],
)
def test_damaged_files(name: str, text: str, tmp_path: Path) -> None:
    folder = saved(tmp_path)
    (folder / name).write_text(text, "utf-8")
    with pytest.raises(ModelCorrupt, match=name):
        from_folder(folder)


def test_folder_without_a_template(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="no chat template"):
        from_folder(saved(tmp_path)).chat(CHAT)
