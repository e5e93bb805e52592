"""What belongs to the user is the same after use as before: models, settings, global state.

Python's own generator is left out: the type checker of the tests draws from it.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch

from draftproof.backends import wrap_model

MAKERS = {**tiny_models.CAUSAL, **tiny_models.SEQ2SEQ}


def tensors(model: Any) -> dict[str, bytes]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: t.detach().numpy().tobytes() for name, t in named}


def settings(model: Any) -> tuple[Any, ...]:
    return (
        copy.deepcopy(model.config.to_dict()),
        copy.deepcopy(model.generation_config.to_dict()),
        [m.training for m in model.modules()],
        [p.requires_grad for p in model.parameters()],
        [p.data_ptr() for p in model.parameters()],
        sorted(k for m in model.modules() for k in vars(m)),
        model.config._attn_implementation,
    )


def numpy_state() -> bytes:
    keys: bytes = np.random.get_state()[1].tobytes()  # noqa: NPY002  # what must not be touched
    return keys


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_models_are_only_read(make: Any) -> None:
    loaded = make()
    before = tensors(loaded), settings(loaded)
    state = torch.get_rng_state(), numpy_state()
    modes = torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype()

    model = wrap_model(loaded)
    shape = tiny_models.WHISPER_SHAPE
    prompt = np.ones(shape, np.float32) if make is tiny_models.whisper else (3, 4, 5)
    session = model.open(prompt)
    session.score((3, 4, 5), 2)
    session.rewind(1)
    session.score((6,) * 20, 1)
    session.close()
    assert model.cache_bytes_per_token > 0
    assert model.weight_bytes > 0

    assert (tensors(loaded), settings(loaded)) == before
    assert torch.equal(torch.get_rng_state(), state[0])
    assert numpy_state() == state[1]
    now = torch.is_grad_enabled(), torch.get_num_threads(), torch.get_default_dtype()
    assert now == modes


def test_a_model_can_still_be_trained() -> None:
    loaded = tiny_models.llama()
    wrap_model(loaded).open((3, 4)).score((3, 4), 1)
    ids = torch.tensor([[3, 4, 5]])
    loaded(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in loaded.parameters())
