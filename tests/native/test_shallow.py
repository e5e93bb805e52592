"""The first layers of a model are a model, with the bits that a file of these layers alone has."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("draftproof._native", reason="the CPU engine was not built")

import mixed_models
from cpu_models import cpu_model, same
from mixed_models import FORMATS, LAYERS, VOCAB, build

from draftproof.ports import Pass, Shallowing

TOKENS = np.random.default_rng(5).integers(0, VOCAB, 90).tolist()


@pytest.mark.parametrize("architecture", mixed_models.TRAITS)
@pytest.mark.parametrize("layers", range(1, LAYERS + 1))
def test_the_bits_are_those_of_a_model_of_these_layers(architecture: str, layers: int) -> None:
    whole = cpu_model(build(FORMATS, architecture))
    assert isinstance(whole, Shallowing)
    model = whole.shallow(layers)
    assert (whole.layers, model.layers) == (LAYERS, layers)
    alone = cpu_model(build(FORMATS, architecture, layers=layers))
    expected = alone.open((1,)).score(TOKENS, keep=90)
    session = model.open((1,))
    parts = [session.score(TOKENS[a:b], keep=b - a) for a, b in ((0, 70), (70, 71), (71, 90))]
    assert same(np.concatenate(parts), expected)
    deep = whole.open((1,)).score(TOKENS, keep=90)
    assert same(deep, expected) == (layers == LAYERS)  # the control: one layer is another model


def test_target_and_draft_of_one_model_in_turn() -> None:
    """What the one scores changes nothing for the other; trees and narrow heads as ever."""
    whole = cpu_model(build(FORMATS))
    narrowed, among = whole.shallow(1).narrow([9, 70])
    alone = cpu_model(build(FORMATS, layers=1))
    target, draft = whole.open((1,)), narrowed.open((1,))
    expected = alone.open((1,)).score(TOKENS[:30], keep=30)[:, among]
    deep = whole.open((1,)).score(TOKENS[:30], keep=30)
    for at in range(0, 30, 5):
        part = draft.score_tree(TOKENS[at : at + 5], range(-1, 4))
        draft.keep(range(5))
        assert same(part, np.ascontiguousarray(expected[at : at + 5]))
        assert same(target.score(TOKENS[at : at + 5], keep=5), deep[at : at + 5])


def test_what_is_shared_and_what_is_not() -> None:
    engine = build(("Q8_0",))
    whole = cpu_model(engine)
    model = whole.shallow(1)
    assert model.weight_bytes == 0  # none of its own
    assert model.engine.pass_bytes < engine.pass_bytes
    assert model.cache_bytes_per_token == whole.cache_bytes_per_token // LAYERS
    session = model.open((1,))
    session.score([5], keep=1)
    assert engine.cache_used == engine.page_bytes // LAYERS
    for one, other in ((whole, session), (model, whole.open((1,)))):
        with pytest.raises(ValueError, match="another model"):
            one.score_together([Pass(other, (1,), 1)])
    with pytest.raises(ValueError, match="complete"):
        engine.set("output_norm.weight", "F32", 1, 4, np.zeros(16, np.uint8))


def test_it_outlives_the_whole_model() -> None:
    def shallow() -> Any:
        return cpu_model(build(("Q8_0",))).shallow(1)

    model = shallow()
    gc.collect()
    alone = cpu_model(build(("Q8_0",), layers=1))
    assert same(model.open((1,)).score(TOKENS, keep=90), alone.open((1,)).score(TOKENS, keep=90))


@pytest.mark.parametrize("layers", [0, -1, LAYERS + 1])
def test_layers_that_it_lacks_are_refused(layers: int) -> None:
    with pytest.raises(ValueError, match=f"the first {layers} layers of {LAYERS}"):
        cpu_model(build(("Q8_0",))).shallow(layers)
