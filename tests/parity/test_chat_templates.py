"""Chat templates: the same text as transformers writes, and the errors where it writes none."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models
import tiny_vocabularies as tiny
from jinja2 import TemplateError

from draftproof.backends.cpu.chat import ChatTemplate
from draftproof.backends.cpu.tokenizer import GgufTokenizer
from draftproof.errors import InvalidInput, UnsupportedModel

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Why <b>&'\"?"}],
    [
        {"role": "user", "content": "你好"},
        {"role": "assistant", "content": "<think>\nx\n</think>\n\nIt's 👩🏿‍🚀"},
        {"role": "user", "content": ""},
    ],
]
EACH = "{% for m in messages %}"
TEMPLATES = {
    "special tokens": EACH + "{{ bos_token + m.content + eos_token }}{{ unk_token }}{% endfor %}",
    "blocks are trimmed": EACH + "\n  {% if true %}\n  {{ m.role }}\n  {% endif %}\n{% endfor %}\n",
    "dashes": "{%- for m in messages -%}\n  {{- m['content'] | trim }}  \n{%- endfor %}",
    "generation prompt": "{% if add_generation_prompt %}yes{% else %}no{% endif %}",
    "json": EACH + "{{ m | tojson }}{{ m | tojson(indent=2) }}{% endfor %}",
    "sorted json": "{{ messages | tojson(sort_keys=true, separators=(',', ':')) }}",
    "ascii": "{{ messages | tojson(ensure_ascii=true) }}",
    "no tools": "{{ tools is defined }}{{ tools is none }}{{ documents is none }}",
    "undefined": "{{ nothing }}{{ nothing is defined }}{% if nothing %}x{% endif %}",
    "loop controls": EACH
    + "{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "continue": EACH + "{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}"
    + EACH
    + "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "generation": EACH + "{% generation %}[{{ m.content }}]{% endgeneration %}{% endfor %}",
    "year": "{{ strftime_now('%Y') }}",
    "methods": EACH + "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% endfor %}",
    "slices": "{{ messages[::-1][0].role }}{{ messages[1:] | length }}{{ messages[-1].content }}",
    "macro": "{% macro f(x) %}<{{ x }}>{% endmacro %}" + EACH + "{{ f(m.role) }}{% endfor %}",
    "dict": "{{ dict(a=1) | tojson }}{% for k, v in messages[0].items() %}{{ k ~ v }}{% endfor %}",
    "alternation": EACH
    + "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    + "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.role }}{% endfor %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_is_that_of_transformers(name: str) -> None:
    theirs: Any = tiny_models.tokenizer(chat_template=TEMPLATES[name])
    rendered = 0
    for conversation in CHATS:
        settings = {"tokenize": False, "add_generation_prompt": True}
        expected, refusal = None, ""
        try:
            expected = theirs.apply_chat_template(conversation, **settings)
        except TemplateError as error:
            refusal = str(error)
        if expected is not None:
            rendered += 1
            assert ChatTemplate(TEMPLATES[name]).render(conversation, NAMED) == expected
            continue
        with pytest.raises(InvalidInput, match="refuses") as caught:
            ChatTemplate(TEMPLATES[name]).render(conversation, NAMED)
        assert caught.value.why == refusal
    assert rendered >= 2


def test_ids_are_those_of_the_text() -> None:
    metadata = tiny.byte_level("qwen2", add_bos_token=True)
    ours = GgufTokenizer(metadata)
    bos, start, end = (
        metadata["tokenizer.ggml.bos_token_id"],
        ours.vocabulary["<|im_start|>"],
        ours.vocabulary["<|im_end|>"],
    )
    user, assistant = (ours.encode(f"{role}\n", special=False) for role in ("user", "assistant"))
    hello = ours.encode("user\nhello", special=False)
    newline = ours.encode("\n", special=False)
    assert ours.chat([{"role": "user", "content": "hello"}]) == (
        bos, start, *hello, end, *newline, start, *assistant
    )  # fmt: skip
    assert user != assistant


def test_without_a_template() -> None:
    metadata = tiny.byte_level("qwen2")
    del metadata["tokenizer.chat_template"]
    with pytest.raises(UnsupportedModel, match="tiny has no chat template") as caught:
        GgufTokenizer(metadata).chat(CHATS[0])
    assert caught.value.remedy


def test_template_that_is_not_written_correctly() -> None:
    with pytest.raises(UnsupportedModel, match="cannot be read") as caught:
        ChatTemplate("\n{% if %}").render(CHATS[0], NAMED)
    assert caught.value.why.startswith("line 2:")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[5].content.upper() }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",  # the sandbox holds
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_template_that_fails(source: str) -> None:
    with pytest.raises(InvalidInput, match="refuses") as caught:
        ChatTemplate(source).render(CHATS[0], NAMED)
    assert caught.value.why


def test_empty_conversation() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        GgufTokenizer(tiny.byte_level("qwen2")).chat([])
