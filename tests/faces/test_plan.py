"""`draftproof plan`: what it measures, predicts and advises, on fakes whose time is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fakes import FakeClock, FakeModel, FakeTokenizer

from draftproof.bench import advice as advice_module
from draftproof.bench import plan as plan_module
from draftproof.bench.advice import GIB, Memory, advise, memory
from draftproof.bench.plan import LONGEST, forecast, measure_pair, simulate
from draftproof.cli import main
from draftproof.cli.plan import plan
from draftproof.core import Limits
from draftproof.drafters import DraftModel, PromptLookup
from draftproof.engine import Request, Running, Speculator, decode
from draftproof.engine import request as request_module
from draftproof.engine import round as round_module
from draftproof.errors import InvalidSetting
from draftproof.planner import Auto, CostCurve, Costs, Fixed, PromptRun, measure
from draftproof.ports import Drafter, Lengths
from draftproof.sampling import Sampling

pytestmark = pytest.mark.usefixtures("elsewhere")

VOCAB = 40
TOKENS = 48
ROOM = Memory(2048, GIB, 1, GIB // 4, 1, GIB, fits=True)

Seconds = Callable[[int], float]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many draws as the product has, but fewer of the slow kind."""
    monkeypatch.setattr(plan_module, "CURVES", 4)
    monkeypatch.setattr(plan_module, "DRAWS", 250)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(round_module, "perf_counter", clock)
    monkeypatch.setattr(request_module, "perf_counter", clock)
    monkeypatch.setattr(plan_module, "measure", partial(measure, clock=clock))
    return clock


def pair(
    clock: FakeClock,
    passes: Seconds = lambda n: 0.1 + 0.01 * n,
    drafts: float = 0.01,
    distance: float = 0.1,
) -> tuple[FakeModel, DraftModel]:
    target = FakeModel(VOCAB, seed=1, clock=clock, seconds=passes)
    draft = FakeModel(
        VOCAB, near=target, distance=distance, seed=2, clock=clock, seconds=lambda n: drafts
    )
    return target, DraftModel(draft, VOCAB)


def requests(count: int = 6, tokens: int = TOKENS) -> list[Request]:
    return [
        Request(prompt=(1, 2, i), sampling=Sampling(), limits=Limits(tokens)) for i in range(count)
    ]


def seconds_per_token(
    clock: FakeClock, target: FakeModel, drafter: Drafter | None, lengths: Lengths
) -> float:
    """What decoding the prompts really takes, their reading apart."""
    seconds = tokens = 0.0
    for request in requests():
        running = Running(request, target, None, drafter, lengths)
        for _ in decode([running]):
            pass
        stats = running.stats()
        seconds += stats.decode_seconds
        tokens += stats.emitted
    return seconds / tokens


# ------------------------------------------------------------------------------- measuring


def test_costs_are_those_of_use(clock: FakeClock) -> None:
    target, drafter = pair(clock)
    measured = measure_pair(target, drafter, requests(), TOKENS)
    assert measured.costs.curve.sizes == tuple(range(1, LONGEST + 2))
    assert measured.costs.curve.seconds == pytest.approx([0.1 + 0.01 * n for n in range(1, 10)])
    assert measured.costs.draft_seconds == pytest.approx(0.01)
    assert measured.costs.ratio == pytest.approx(0.01 / 0.11)
    assert len(measured.runs) == 6
    assert all(run.tokens == TOKENS for run in measured.runs)
    assert target.open_sessions == drafter.model.open_sessions == 0


def test_passes_between_drafts_and_decisions_count(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In use a pass over several tokens takes twice what it does alone, a decision 1 ms a row."""
    target, drafter = pair(clock)
    alone = target.spend
    drafting = {"now": False}

    def spend(n: int) -> None:
        alone(n)
        if n > 1 and drafting["now"]:
            clock.advance(0.1 + 0.01 * n)

    def judge(turn: Any, laws: Any) -> Any:
        clock.advance(0.001 * len(laws))
        return real_judge(turn, laws)

    def draft(*arguments: Any) -> Any:
        drafting["now"] = True
        return real_begin(*arguments)

    real_judge, real_begin = round_module.judge, drafter.begin
    monkeypatch.setattr(target, "spend", spend)
    monkeypatch.setattr(round_module, "judge", judge)
    monkeypatch.setattr(drafter, "begin", draft, raising=False)
    curve = measure_pair(target, drafter, requests(1), TOKENS).costs.curve
    assert curve(1) == pytest.approx(0.11 + 0.001)
    assert curve(5) == pytest.approx(2 * 0.15 + 0.005, rel=0.01)


def test_a_drafter_that_finds_nothing(clock: FakeClock) -> None:
    target = FakeModel(VOCAB, seed=1, order=8, sharpness=9.0, clock=clock, seconds=lambda n: 0.1)
    measured = measure_pair(target, PromptLookup(max_match=9, min_match=9), requests(2), 8)
    expected = forecast(measured)
    assert [p.length for p in expected.fixed.predictions] == [0]
    use, sentence = advise(measured, expected, ROOM)
    assert not use
    assert "found nothing to draft" in sentence


def test_no_prompt_is_refused(clock: FakeClock) -> None:
    with pytest.raises(InvalidSetting, match="no prompt"):
        measure_pair(*pair(clock), [], TOKENS)


# ------------------------------------------------------------------------------ predicting


@pytest.mark.parametrize("distance", [0.05, 0.2])
def test_the_prediction_holds_what_is_then_measured(clock: FakeClock, distance: float) -> None:
    """The same prompts at every fixed length and with auto; 95 % intervals, fixed seeds."""
    target, drafter = pair(clock, distance=distance)
    measured = measure_pair(target, drafter, requests(), TOKENS)
    expected = forecast(measured)
    plain = seconds_per_token(clock, target, None, Fixed(0))
    for prediction in expected.fixed.predictions[1:]:
        real = plain / seconds_per_token(clock, target, drafter, Fixed(prediction.length))
        assert prediction.low <= real <= prediction.high
        assert prediction.low < prediction.speedup < prediction.high
    real = plain / seconds_per_token(clock, target, drafter, Auto(measured.costs, limit=LONGEST))
    assert expected.auto.low <= real <= expected.auto.high


def test_auto_is_played_out() -> None:
    """Every draft is accepted and free: 9 tokens a pass; none is: plain decoding and its try."""
    costs = Costs(CostCurve((1, 9), (1.0, 1.0)), (0.0,))
    seconds, tokens, length = simulate(costs, [PromptRun(((8, 8),) * 6)], 54, 8)
    assert (seconds.tolist(), tokens.tolist(), length) == ([6.0], [54.0], 8.0)
    dear = Costs(CostCurve((1, 9), (1.0, 9.0)), (1.0,))
    seconds, tokens, length = simulate(dear, [PromptRun(((8, 0),) * 50)], 50, 8)
    assert 50 <= seconds.sum() <= 53
    assert length < 0.5


def test_the_interval_is_reproducible(clock: FakeClock) -> None:
    measured = measure_pair(*pair(clock), requests(), TOKENS)
    assert forecast(measured) == forecast(measured)


# --------------------------------------------------------------------------------- advising


def advised(clock: FakeClock, **settings: Any) -> tuple[bool, str]:
    measured = measure_pair(*pair(clock, **settings), requests(), TOKENS)
    return advise(measured, forecast(measured), ROOM)


def test_a_good_pair_is_to_be_used(clock: FakeClock) -> None:
    use, sentence = advised(clock)
    assert use
    assert sentence.startswith("Use it: expect 1.")


@pytest.mark.parametrize(
    ("settings", "reason", "others"),
    [
        ({"distance": 1.0}, "acceptance is low", ("much cheaper", "passes over")),
        ({"drafts": 0.1}, "not much cheaper than the target (c = 0.91)", ("is low", "passes over")),
        ({"passes": lambda n: 0.1 * n}, "(over 4 tokens 4.00 times", ("is low", "much cheaper")),
    ],
)
def test_a_pair_that_does_not_pay_is_told_why(
    clock: FakeClock, settings: dict[str, Any], reason: str, others: tuple[str, ...]
) -> None:
    """One thing is wrong with each pair, and that one is named."""
    use, sentence = advised(clock, **settings)
    assert not use
    assert sentence.startswith("Do not use it: expect ")
    assert reason in sentence
    assert not any(other in sentence for other in others)


def test_no_memory_is_a_reason(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter = pair(clock)
    monkeypatch.setattr(advice_module, "free_bytes", lambda model: 10_000)
    fitting, short = memory(target, drafter, 1000), memory(target, drafter, 1500)
    assert fitting.fits
    assert not short.fits  # 1500 tokens of 4 bytes, in target and draft
    assert (short.target_cache, short.draft_cache) == (6000, 6000)
    assert short.target_weights == short.draft_weights == 4 * VOCAB
    measured = measure_pair(target, drafter, requests(), TOKENS)
    use, sentence = advise(measured, forecast(measured), short)
    assert not use
    assert "no memory for the caches" in sentence


# ------------------------------------------------------------------------------- the command

TOKENIZER = FakeTokenizer()
KEYS = {
    "pass_ms", "cost_ratio", "acceptance", "predicted", "best_draft_length", "speedup",
    "speedup_low", "speedup_high", "memory", "advice", "use",
}  # fmt: skip


@pytest.fixture
def run(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command, on a pair of fakes."""
    vocab = TOKENIZER.vocab_size
    target = FakeModel(vocab, seed=1, clock=clock, seconds=lambda n: 0.1 + 0.01 * n)
    draft = FakeModel(vocab, near=target, distance=0.1, clock=clock, seconds=lambda n: 0.01)

    def load(*, drafter: str | None, draft_length: int, **loading: Any) -> Speculator:
        made = None if drafter == "none" else DraftModel(draft, vocab)
        return Speculator(target, TOKENIZER, made, Fixed(draft_length))

    monkeypatch.setattr(sys.modules["draftproof.cli.progress"], "load_with_progress", load)

    def texts(path: Any, limit: int) -> list[Any]:
        from draftproof.bench.prompts import BenchPrompt

        return [BenchPrompt(f"p{i}", f"the cat {i}") for i in range(limit)]

    monkeypatch.setattr(sys.modules["draftproof.cli.plan"], "read_prompts", texts)
    return lambda *arguments: CliRunner().invoke(plan, arguments)


def test_json(run: Callable[..., Result]) -> None:
    result = run("--json", "--limit", "3")
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert set(document) >= KEYS
    assert list(document["pass_ms"]) == [str(n) for n in range(1, LONGEST + 2)]
    assert document["pass_ms"]["1"] == pytest.approx(110)
    assert list(document["acceptance"]["by_prompt"]) == ["p0", "p1", "p2"]
    rates = document["acceptance"]
    assert 0 < rates["low"] <= rates["overall"] <= rates["high"] <= 1
    assert [p["draft_length"] for p in document["predicted"]] == list(range(LONGEST + 1))
    best = max(document["predicted"], key=lambda p: p["speedup"])
    assert document["best_draft_length"] == best["draft_length"]
    assert document["speedup_low"] < document["speedup"] < document["speedup_high"]
    assert document["use"] is True
    assert document["memory"]["fits"]


def test_for_a_person(run: Callable[..., Result]) -> None:
    result = run("--limit", "2", "--raw", "--max-tokens", "16")
    assert result.exit_code == 0, result.output
    for words in ("c = 0.09", "acceptance", "draft length", "auto", "memory: ", "expect"):
        assert words in result.output


def test_settings_reach_the_runs(run: Callable[..., Result]) -> None:
    """Sampling at a high temperature accepts another share than the argmax."""
    arguments = ("--json", "--limit", "2")
    cold = json.loads(run(*arguments).output)["acceptance"]["overall"]
    warm = json.loads(run(*arguments, "--temperature", "3").output)
    assert warm["acceptance"]["overall"] != pytest.approx(cold, abs=0.01)


def test_without_a_drafter_there_is_nothing_to_plan(
    run: Callable[..., Result], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", "--drafter", "none"])
    assert caught.value.code == 2
    assert "no drafter to plan for" in capsys.readouterr().err
