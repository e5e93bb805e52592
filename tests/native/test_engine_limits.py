"""What the engine refuses: nothing is appended then, and it goes on as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("draftproof._native", reason="the CPU engine was not built")

from cpu_models import cpu_model
from mixed_models import VOCAB, build, score

from draftproof import _native as native
from draftproof.errors import InvalidInput, OutOfMemory, PromptTooLong

PAGE = native.PAGE


@pytest.fixture(scope="module")
def model() -> Any:
    return build(("Q8_0",))


def rows(count: int, parents: Any = None) -> tuple[np.ndarray, ...]:
    chain = np.arange(-1, count - 1, dtype=np.int32)
    return (
        np.zeros(count, np.int32),
        np.arange(count, dtype=np.int32),
        chain if parents is None else np.array(parents, np.int32),
        np.ones(count, bool),
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ((1, VOCAB), "token 272 is outside"),
        ((1, -1), "token -1 is outside"),
        ((2, 3), "no earlier row"),
        ((2, -2), "no earlier row"),
        ((0, 1), "owner"),
        ((0, -1), "owner"),
    ],
)
def test_rows_that_cannot_be_are_refused(
    model: Any, change: tuple[int, int], sentence: str
) -> None:
    sequence = model.open()
    arrays = rows(5)
    arrays[change[0]][3] = change[1]
    with pytest.raises(ValueError, match=sentence):
        model.score([sequence], *arrays)
    assert sequence.length == 0
    score(model, sequence, [1, 2])
    assert sequence.length == 2


def test_a_sequence_of_another_model_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="another model"):
        model.score([build(("F32",)).open()], *rows(2))


def test_an_open_tree_must_be_chosen_from(model: Any) -> None:
    sequence = model.open()
    score(model, sequence, [5, 6])
    score(model, sequence, [1, 2, 3], [-1, -1, 0])
    assert (sequence.length, sequence.open_rows) == (2, 3)
    with pytest.raises(ValueError, match="open tree"):
        score(model, sequence, [1])
    for path in ([1, 2], [2], [0, 1], [3], [0, 0]):
        with pytest.raises(ValueError, match="does not continue the path"):
            sequence.keep(path)
    sequence.keep([0, 2])
    assert (sequence.length, sequence.open_rows) == (4, 0)
    with pytest.raises(ValueError, match="cannot be rewound to 5"):
        sequence.rewind(5)
    sequence.rewind(1)
    assert sequence.length == 1


def test_the_limit_of_key_and_value_memory_is_named() -> None:
    page = build(("Q8_0",)).page_bytes
    model = cpu_model(build(("Q8_0",), cache_bytes=2 * page))
    first, second = model.open((1,)), model.open((1,))
    first.score([3] * PAGE, keep=1)
    second.score([3], keep=1)
    with pytest.raises(OutOfMemory, match=f"of at most {2 * page} are in use") as caught:
        first.score([3], keep=1)
    assert "--cache-memory" in caught.value.remedy
    assert (first.length, second.length) == (PAGE, 1)
    second.score([3] * (PAGE - 1), keep=1)  # its page has room
    second.close()
    first.score([3], keep=1)  # what the other held is free again
    assert first.length == PAGE + 1


def test_sessions_refuse_what_every_backend_refuses() -> None:
    model = cpu_model(build(("Q8_0",)), context=10)
    session = model.open((1, 2, 3))
    with pytest.raises(InvalidInput, match="token id 272"):
        session.score([VOCAB], keep=1)
    with pytest.raises(PromptTooLong, match="11 tokens"):
        session.score([1] * 11, keep=1)
    assert session.length == 0
    with pytest.raises(PromptTooLong):
        model.open((1,) * 11)
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.score([1], keep=1)


def test_weights_that_do_not_fit_are_named() -> None:
    engine = native.Model(
        hidden=32, heads=2, kv_heads=1, head_dim=16, feed_forward=64, vocab=10, norm_epsilon=1e-6,
        attention_scale=0.25, embedding_scale=1.0, gelu=False, interleaved=False, qkv_bias=False,
        qk_norm=False, post_norms=False, ropes=[([1.0] * 8, 1.0)], layers=[(0, 0)], threads=1,
        kernels=None, cache_bytes=1 << 20,
    )  # fmt: skip
    with pytest.raises(native.BadWeights, match=r"token_embd\.weight is 11 x 32"):
        engine.set("token_embd.weight", "F32", 11, 32, np.zeros(11 * 32 * 4, np.uint8))
    with pytest.raises(ValueError, match="bytes are not those of its shape"):
        engine.set("token_embd.weight", "F32", 10, 32, np.zeros(100, np.uint8))
    assert not engine.set("blk.1.attn_q.weight", "F32", 32, 32, np.zeros(4096, np.uint8))
    assert not engine.set("blk.0.attn_q_norm.weight", "F32", 1, 16, np.zeros(64, np.uint8))
    with pytest.raises(native.BadWeights, match=r"no weights for token_embd\.weight, output_norm"):
        engine.finish()
    with pytest.raises(ValueError, match="not complete"):
        engine.score([engine.open()], *rows(1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_computes_alone_and_ends() -> None:
    """Its parent's threads are not there: it would wait for them for ever."""
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from mixed_models import *\n"
        "model = build(('Q8_0',)); tokens = list(range(40))\n"
        "logits = one_by_one(model, tokens)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    right = bool((score(model, model.open(), tokens) == logits).all())\n"
        "    del model\n"
        "    os._exit(0 if right else 3)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, tests], timeout=60, check=False
    )
    assert done.returncode == 0
