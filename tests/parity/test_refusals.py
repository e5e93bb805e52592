"""Models that cannot be rewound exactly are refused by name, before the first token."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from transformers.modeling_outputs import CausalLMOutputWithPast

from draftproof.backends import wrap_model
from draftproof.backends.causal import CausalModel
from draftproof.errors import InvalidInput, UnsupportedModel


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (tiny_models.mamba, "MambaForCausalLM.* recurrent layers"),
        (tiny_models.jamba, "JambaForCausalLM.* recurrent layers"),
        (tiny_models.lfm2, "Lfm2ForCausalLM.* cannot be rewound: conv$"),
    ],
    ids=["mamba", "jamba", "lfm2"],
)
def test_recurrent_and_hybrid_models(make: Any, named: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        wrap_model(make())
    assert_matches(named, caught.value)


def test_encoders() -> None:
    with pytest.raises(UnsupportedModel, match=r"BertLMHeadModel.* is not a decoder"):
        wrap_model(tiny_models.bert())
    assert CausalModel(tiny_models.bert(decoder=True)).open((3, 4)).score((3, 4), 1).shape[0] == 1


def test_models_without_a_head() -> None:
    with pytest.raises(UnsupportedModel, match=r"LlamaModel.* is not a decoder"):
        wrap_model(tiny_models.llama().model)


def test_encoder_decoder_models_are_not_causal() -> None:
    with pytest.raises(UnsupportedModel, match="is an encoder-decoder model"):
        CausalModel(tiny_models.t5())


def test_objects_that_are_no_models() -> None:
    with pytest.raises(InvalidInput, match="a str is not a model"):
        wrap_model("gpt2")


CACHE = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(transformers.LlamaForCausalLM.forward).parameters
)


class Strange(transformers.LlamaForCausalLM):
    """An architecture that nobody told draftproof about, with a fault to choose."""

    fault = ""

    def forward(self, input_ids: Any, cache: Any = None, **kwargs: Any) -> Any:
        if self.fault == "ignores":
            return super().forward(input_ids=input_ids, **{**kwargs, "use_cache": False})
        if self.fault == "replaces":
            return super().forward(input_ids=input_ids, use_cache=True)
        output = super().forward(input_ids=input_ids, **{CACHE: cache}, **kwargs)
        if self.fault == "skips":
            cache.layers[1].rewind(0)
        if self.fault == "head":
            output = CausalLMOutputWithPast(logits=output.logits[..., 1:])
        return output


@pytest.mark.parametrize("fault", ["ignores", "replaces", "skips"])
def test_models_that_misuse_the_cache(fault: str) -> None:
    session = strange(fault).open((3, 4))
    with pytest.raises(UnsupportedModel, match=r"Strange.* does not keep what it reads"):
        session.score((3, 4), 1)


def test_models_whose_head_is_not_what_they_say() -> None:
    with pytest.raises(UnsupportedModel, match="returned 95 logits"):
        strange("head").open((3, 4)).score((3, 4), 1)


def test_strange_models_that_behave_are_fine() -> None:
    assert strange("").open((3, 4)).score((3, 4), 1).shape == (1, tiny_models.VOCAB)


def test_a_model_without_a_cache_argument() -> None:
    class Cacheless(transformers.LlamaForCausalLM):
        def forward(self, input_ids: Any) -> Any:
            return super().forward(input_ids=input_ids)

    with pytest.raises(UnsupportedModel, match="takes no key-value cache"):
        CausalModel(Cacheless(tiny_models.llama().config).eval())


@pytest.mark.parametrize("make", [tiny_models.gpt2, tiny_models.t5], ids=["causal", "seq2seq"])
def test_training_mode(make: Any) -> None:
    loaded = make()
    model = wrap_model(loaded)
    next(m for m in loaded.modules() if isinstance(m, torch.nn.Dropout)).train()
    with pytest.raises(InvalidInput, match="training mode") as caught:
        model.open((3, 4))
    assert "model.eval()" in caught.value.remedy


def strange(fault: str) -> CausalModel:
    with torch.random.fork_rng(devices=[]):
        loaded = Strange(tiny_models.llama().config).eval()
    loaded.fault = fault
    return CausalModel(loaded)


def assert_matches(pattern: str, error: UnsupportedModel) -> None:
    assert re.search(pattern, error.what), error.what
