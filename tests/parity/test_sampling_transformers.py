"""Laws equal those that transformers' own processors give, wherever the two mean the same.

Where they do not:

- transformers has no presence or frequency penalty. Here they are those of OpenAI and vLLM: over
  output tokens only, after the repetition penalty. `tests/properties` checks them by hand.
- transformers' top-p breaks ties by whatever order its sort gives; here the lower ids stay.
- transformers' logit bias takes sequences; here a bias belongs to one token, as in OpenAI's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftproof.core import Dense
from draftproof.sampling import Sampling, Standardiser

torch = pytest.importorskip("torch")
generation = pytest.importorskip("transformers.generation")

VOCAB = 1000
PROMPT = (5, 17, 17, 900, 3)
OUTPUT = (42, 5, 7, 42)
EOS = 11


def logits_of(seed: int) -> np.ndarray:
    """Distinct values, so that no tie has to be broken."""
    return np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)


def theirs(processors: list[Any], logits: np.ndarray, output: tuple[int, ...]) -> np.ndarray:
    ids = torch.tensor([[*PROMPT, *output]])
    scores = torch.from_numpy(logits.copy())[None]
    scores = generation.LogitsProcessorList(processors)(ids, scores)
    return torch.softmax(scores.double(), dim=-1)[0].numpy()


def ours(
    sampling: Sampling, logits: np.ndarray, output: tuple[int, ...], min_tokens: int = 0
) -> np.ndarray:
    law = Standardiser(sampling, PROMPT, frozenset({EOS}), min_tokens).law(logits, output)
    assert isinstance(law, Dense)
    return law.probs


def repetition(penalty: float) -> Any:
    return generation.RepetitionPenaltyLogitsProcessor(penalty)


def no_bad_words(*words: list[int]) -> Any:
    return generation.NoBadWordsLogitsProcessor(list(words), eos_token_id=torch.tensor([EOS]))


def min_new_tokens(count: int) -> Any:
    return generation.MinNewTokensLengthLogitsProcessor(
        len(PROMPT), count, torch.tensor([EOS]), device="cpu"
    )


def bias(values: dict[int, float]) -> Any:
    return generation.SequenceBiasLogitsProcessor({(i,): value for i, value in values.items()})


TEMPERATURE = generation.TemperatureLogitsWarper
TOP_K = generation.TopKLogitsWarper
TOP_P = generation.TopPLogitsWarper
MIN_P = generation.MinPLogitsWarper

CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "plain": ({}, []),
    "temperature": ({"temperature": 0.7}, [TEMPERATURE(0.7)]),
    "hot": ({"temperature": 1.8}, [TEMPERATURE(1.8)]),
    "top_k": ({"top_k": 50}, [TOP_K(50)]),
    "top_k of everything": ({"top_k": 5000}, [TOP_K(5000)]),
    "top_p": ({"top_p": 0.9}, [TOP_P(0.9)]),
    "narrow top_p": ({"top_p": 0.05}, [TOP_P(0.05)]),
    "min_p": ({"min_p": 0.03}, [MIN_P(0.03)]),
    "repetition": ({"repetition_penalty": 1.3}, [repetition(1.3)]),
    "encouraged repetition": ({"repetition_penalty": 0.8}, [repetition(0.8)]),
    "bias": ({"logit_bias": {4: -2.5, 9: 6.0}}, [bias({4: -2.5, 9: 6.0})]),
    "banned": (
        {"banned": ((8,), (7, 42, 1), (42, 2), (3, 42, 5, 7, 42, 6), (5, 9))},
        [no_bad_words([8], [7, 42, 1], [42, 2], [3, 42, 5, 7, 42, 6], [5, 9])],
    ),
    # In the order in which transformers' own generate() builds its list.
    "all together": (
        {
            "repetition_penalty": 1.2,
            "banned": ((8,), (42, 2)),
            "temperature": 0.8,
            "top_k": 200,
            "top_p": 0.95,
            "min_p": 0.002,
        },
        [
            repetition(1.2),
            no_bad_words([8], [42, 2]),
            TEMPERATURE(0.8),
            TOP_K(200),
            TOP_P(0.95),
            MIN_P(0.002),
        ],
    ),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("output", [(), OUTPUT], ids=["first", "later"])
@pytest.mark.parametrize("case", CASES)
def test_equal_laws(case: str, output: tuple[int, ...], seed: int) -> None:
    settings, processors = CASES[case]
    logits = logits_of(seed)
    expected = theirs(processors, logits, output)
    got = ours(Sampling(**{"temperature": 1.0, **settings}), logits, output)
    np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)
    np.testing.assert_array_equal(got > 0, expected > 0)


@pytest.mark.parametrize("length", range(5))
def test_equal_min_tokens(length: int) -> None:
    logits = logits_of(0)
    logits[EOS] = 20
    expected = theirs([min_new_tokens(3)], logits, OUTPUT[:length])
    got = ours(Sampling(temperature=1.0), logits, OUTPUT[:length], min_tokens=3)
    np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)
    assert (got[EOS] == 0) == (length < 3)


def test_another_temperature_is_noticed() -> None:
    """Negative control of the comparison itself."""
    logits = logits_of(0)
    got = ours(Sampling(temperature=0.71), logits, ())
    assert np.abs(got - theirs([TEMPERATURE(0.7)], logits, ())).max() > 1e-4
