"""A part of the logits has the bits of the whole, and costs a part of the head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("draftproof._native", reason="the CPU engine was not built")

from cpu_models import cpu_model, same
from mixed_models import FORMATS, VOCAB, build

from draftproof import _native as native
from draftproof.ports import Narrowing, Pass

TABLES = native.kernels()
TOKENS = np.random.default_rng(5).integers(0, VOCAB, 40).tolist()
IDS = {
    "one": [37],
    "the last": [VOCAB - 1],
    "neighbours": list(range(20, 90)),
    "far apart, in no order": [VOCAB - 3, 0, 100, 50, 49, 51, 0],
    "all": list(range(VOCAB)),
}


@pytest.fixture(scope="module", params=[(f, t) for f in FORMATS for t in TABLES])
def engine(request: pytest.FixtureRequest) -> Any:
    """One number format throughout, for every table of kernels."""
    kind, table = request.param
    return build((kind,), kernels=table)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_columns_have_the_bits_of_the_full_head(engine: Any, ids: list[int]) -> None:
    model = cpu_model(engine)
    assert isinstance(model, Narrowing)
    full = model.open((1,)).score(TOKENS, keep=len(TOKENS))
    narrowed, among = model.narrow(ids)
    session = narrowed.open((1,))
    parts = [session.score(TOKENS[a:b], keep=b - a) for a, b in ((0, 1), (1, 12), (12, 40))]
    assert same(np.concatenate(parts), np.ascontiguousarray(full[:, among]))


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_the_columns_are_whole_panels(ids: list[int]) -> None:
    _, among = cpu_model(build(("Q8_0",))).narrow(ids)
    panels = {i // native.PANEL for i in ids}
    assert among.tolist() == [i for i in range(VOCAB) if i // native.PANEL in panels]


def test_a_vocabulary_that_ends_within_a_panel() -> None:
    """The last panel is cut there, beside others and alone."""
    model = cpu_model(build(("Q8_0",), vocab=VOCAB - 5), vocab=VOCAB - 5)
    full = model.open((1,)).score([7, 8], keep=2)
    assert full.shape == (2, VOCAB - 5)
    for ids in ([VOCAB - 6], [0, VOCAB - 6], [VOCAB - 20, VOCAB - 16]):
        narrowed, among = model.narrow(ids)
        assert among[-1] == VOCAB - 6
        got = narrowed.open((1,)).score([7, 8], keep=2)
        assert same(got, np.ascontiguousarray(full[:, among]))


def test_it_reads_every_token_and_keeps_every_bound() -> None:
    engine = build(("Q8_0",))
    model = cpu_model(engine)
    narrowed, among = model.narrow([3])
    assert narrowed.vocab_size == model.vocab_size == VOCAB
    session = narrowed.open((1,))
    assert session.score([VOCAB - 1, 0], keep=2).shape == (2, len(among))
    assert engine.cache_used == engine.page_bytes  # of one budget
    again, _ = narrowed.narrow([VOCAB - 1, 3])
    assert again.open((1,)).score([5], keep=1).shape == (1, 2 * native.PANEL)


def test_several_sessions_in_one_pass() -> None:
    model = cpu_model(build(("Q8_0",)))
    narrowed, among = model.narrow([3, 200])
    sessions = [narrowed.open((1,)) for _ in range(3)]
    logits = narrowed.score_together(
        [Pass(session, tuple(TOKENS[i : i + 4]), i) for i, session in enumerate(sessions)]
    )
    for i, part in enumerate(logits):
        full = model.open((1,)).score(TOKENS[i : i + 4], keep=i)
        assert same(part, np.ascontiguousarray(full[:, among]))


@pytest.mark.parametrize("ids", [[], [-1], [VOCAB], [3, 10 * VOCAB]])
def test_ids_that_are_none_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"panel|columns"):
        cpu_model(build(("Q8_0",))).narrow(ids)


def test_panels_that_do_not_rise_and_other_heads_are_refused() -> None:
    for panels in ([1, 1], [2, 1]):
        with pytest.raises(ValueError, match="does not rise"):
            native.Columns(np.array(panels, np.int32), VOCAB)
    engine = build(("Q8_0",))
    ints = [np.array([value], np.int32) for value in (0, 5, -1)]
    sequence = engine.open()
    other = native.Columns(np.array([0], np.int32), VOCAB + 1)
    with pytest.raises(ValueError, match="another head"):
        engine.score([sequence], *ints, np.ones(1, bool), columns=other)
    assert sequence.length == 0
