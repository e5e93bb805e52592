"""Faults that users of other systems met, on tiny random transformers models.

Everything goes through the public API. `test_engine_cases.py` has the cases that need no real
model. Passes over different numbers of tokens round differently in float32; the weights are drawn
wide, so that no two logits are so near that this could change an argmax.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import taught_models
import tiny_models
import torch
import transformers
from fakes import FakeClock
from torch.utils._python_dispatch import TorchDispatchMode

import draftproof as dp
from draftproof.cli import main
from draftproof.core import Draft
from draftproof.drafters import NGram
from draftproof.engine import Generation, Speculator, decode
from draftproof.engine import request as request_module
from draftproof.engine import round as round_module
from draftproof.engine.round import play_round
from draftproof.errors import (
    InvalidInput,
    InvalidSetting,
    PromptTooLong,
    TokenizerMismatch,
    UnsupportedModel,
)
from draftproof.planner import measure_costs
from draftproof.planner import measured as measured_module
from draftproof.ports import Drafter, Proposer

PROMPT = (5, 6, 7, 5, 6)
ANSWER = (*(int(t) for t in np.random.default_rng(3).integers(3, 90, 30)), 1)
SOUND = np.random.default_rng(1).standard_normal(tiny_models.WHISPER_SHAPE).astype(np.float32)
FINGERPRINTS: dict[str, str] = {}
UNTIED = {"tie_word_embeddings": False}  # tied heads make random models repeat one token

MAKERS = {
    "llama": partial(tiny_models.llama, 2),
    "llama, unrelated": partial(tiny_models.llama, 7),
    "qwen2": tiny_models.qwen2,
    "qwen2, unrelated": partial(tiny_models.qwen2, 7),
    "gpt2": partial(tiny_models.gpt2, **UNTIED),
    "gpt2, unrelated": partial(tiny_models.gpt2, 7, **UNTIED),
    "gemma3": partial(tiny_models.gemma3, **UNTIED),
    "gemma3, unrelated": partial(tiny_models.gemma3, 7, **UNTIED),
    "gemma2": partial(tiny_models.gemma2, 1, **UNTIED),
    "mistral": partial(tiny_models.mistral, 1),
    "t5": partial(taught_models.taught_t5, PROMPT, ANSWER),
    "t5, unrelated": partial(tiny_models.t5, 7),
    "whisper": partial(tiny_models.whisper, **UNTIED),
    "whisper, unrelated": partial(tiny_models.whisper, 7, **UNTIED),
    "taught": taught_models.taught,
}
GREEDY = ("llama", "qwen2", "gpt2", "gemma3", "t5")
KINDS = ("near model", "unrelated model", "itself", "lookup", "ngram")
TEXT_DRAFTS = ("near", "half taught", "lookup", None)


def lengths(draft: str | None, *given: int) -> tuple[int, ...]:
    """Draft lengths to try; for plain decoding there is one."""
    return given if draft else (0,)


@cache
def model(name: str) -> Any:
    made = MAKERS[name]()
    FINGERPRINTS[name] = fingerprint(made)
    return made


@cache
def near(name: str, distance: float = 0.05) -> Any:
    return taught_models.near(model(name), distance)


@cache
def bpe() -> Any:
    return taught_models.bpe()


def fingerprint(made: Any) -> str:
    """What must not change: weights, settings, modes, hooks and attributes."""
    state = hashlib.sha256()
    for name, tensor in made.state_dict().items():
        state.update(name.encode() + tensor.numpy().tobytes())
    state.update(json.dumps(made.config.to_dict(), default=str).encode())
    state.update(json.dumps(made.generation_config.to_dict(), default=str).encode())
    for module in made.modules():
        state.update(repr((module.training, sorted(vars(module)))).encode())
        state.update(repr(len(module._forward_hooks)).encode())
    state.update(repr([(p.requires_grad, p.grad) for p in made.parameters()]).encode())
    return state.hexdigest()


@pytest.fixture(scope="module", autouse=True)
def _user_objects_are_unchanged_after_everything() -> Iterator[None]:
    yield
    for name, before in FINGERPRINTS.items():
        assert fingerprint(model(name)) == before, name


def draft_of(kind: str, name: str) -> Any:
    if kind == "ngram":
        return NGram.count([plain(name, max_tokens=60, eos=[]).token_ids], tiny_models.VOCAB)
    draft: dict[str, Any] = {
        "near model": near(name),
        "unrelated model": model(f"{name}, unrelated"),
        "itself": model(name),
        "lookup": "lookup",
    }
    return draft[kind]


def plain(name: str, prompt: Any = PROMPT, **options: Any) -> Generation:
    return dp.from_transformers(model(name)).generate(prompt, **options)


@cache
def greedy(name: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Plain decoding's first 12 tokens."""
    return plain(name, prompt, max_tokens=12).token_ids


@cache
def taught_text(logprobs: int | None = None) -> Generation:
    """What the taught model says by plain decoding."""
    return text_speculator(None, 0).generate(taught_models.PROMPT, logprobs=logprobs)


def speculate(
    name: str, draft: Any, length: int, prompt: Any = PROMPT, drafter: Any = None, **options: Any
) -> Any:
    spec = dp.from_transformers(model(name), draft, draft_length=length, drafter=drafter)
    return spec.generate(prompt, **options)


def text_speculator(draft: str | None, length: int) -> Speculator:
    """The taught model and its tokenizer, with one of `TEXT_DRAFTS`."""
    drafts = {"near": partial(near, "taught", 0.5), "half taught": half_taught}
    made = drafts[draft]() if draft in drafts else draft
    return dp.from_transformers(model("taught"), made, bpe(), draft_length=length)


@cache
def half_taught() -> Any:
    return taught_models.taught(1, steps=12)


def full_pass(made: Any, prompt: Sequence[int], ids: Sequence[int]) -> np.ndarray:
    """The logits before each of `ids`, from one pass without a cache."""
    with torch.no_grad():
        logits = made(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0]
    rows: np.ndarray = logits[len(prompt) - 1 : -1].double().numpy()
    return rows


class Watching:
    """Notes every draft of another drafter."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.name, self.model = inner, inner.name, inner.model
        self.drafts: list[Draft] = []

    def begin(self, prompt: Any, standardise: Any) -> Proposer:
        proposer: Any = self.inner.begin(prompt, standardise)
        make = proposer.draft

        def draft(*given: Any) -> Draft:
            self.drafts.append(make(*given))
            return self.drafts[-1]

        proposer.draft = draft
        return proposer  # type: ignore[no-any-return]

    def never_drafted(self, ids: range) -> None:
        assert any(self.drafts)
        for draft in self.drafts:
            assert not set(draft.tokens) & set(ids)
            assert not any(law.prob(token) for law in draft.laws for token in ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GREEDY)
def test_case_02_greedy_output_equals_plain(name: str, kind: str) -> None:
    draft = draft_of(kind, name)
    for length in range(1, 9):
        prompt = PROMPT if length % 2 else (*PROMPT, length, 80 - length)
        result = speculate(name, draft, length, prompt, max_tokens=12)
        assert result.token_ids == greedy(name, prompt)
        assert result.stats.drafted > 0


@pytest.mark.parametrize("name", [*GREEDY, "gemma2", "mistral"])
def test_case_02_plain_decoding_is_what_transformers_generates(name: str) -> None:
    loaded = model(name)
    for prompt in (PROMPT, (9,), tuple(range(20, 40))):
        free = plain(name, prompt, max_tokens=30).token_ids
        for eos in ([free[-1]], [free[len(free) // 2], 3], None):
            settings = {} if eos is None else {"eos_token_id": eos}
            (ids,) = loaded.generate(
                torch.tensor([prompt]), do_sample=False, max_new_tokens=30, **settings
            )
            expected = ids[1 if loaded.config.is_encoder_decoder else len(prompt) :].tolist()
            assert list(plain(name, prompt, max_tokens=30, eos=eos).token_ids) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "t5"])
def test_case_04_self_draft_accepts_everything(name: str, rule: str, temperature: float) -> None:
    """p and q come from passes of different sizes and may differ in their last bits, by some 1e-6
    in total variation: at temperature 1 one of these 60 tokens is rejected with a chance below
    1e-3 over all machines, and on any one machine the fixed seed decides."""
    for length in (1, 3, 8):
        result = speculate(
            name, model(name), length, drafter="model",
            temperature=temperature, verify=rule, seed=length, max_tokens=20, eos=[],
        )  # fmt: skip
        assert result.stats.acceptance == 1
        assert result.stats.rounds == -(-20 // (length + 1))


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3"])
def test_case_05_a_sliding_window_slides_exactly(name: str) -> None:
    prompt = (*PROMPT, 11)
    assert len(prompt) < tiny_models.WINDOW
    expected = plain(name, prompt, max_tokens=40, eos=[]).token_ids
    assert tuple(full_pass(model(name), prompt, expected).argmax(1)) == expected
    for draft in (tiny_models.llama(9), taught_models.near(model(name), 0.3), "lookup"):
        for length in (1, 5):
            result = speculate(name, draft, length, prompt, max_tokens=40, eos=[])
            assert result.token_ids == expected
            assert result.stats.accepted < result.stats.drafted


def test_case_05_control_the_window_matters() -> None:
    wide = tiny_models.mistral(1, sliding_window=500)
    spec = dp.from_transformers(wide)
    assert spec.generate(PROMPT, max_tokens=40, eos=[]).token_ids != (
        plain("mistral", max_tokens=40, eos=[]).token_ids
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (tiny_models.mamba, "MambaForCausalLM.*recurrent"),
        (tiny_models.lfm2, "Lfm2ForCausalLM.*conv"),
        (tiny_models.jamba, "JambaForCausalLM.*(recurrent|mamba|linear_attention)"),
    ],
)
def test_case_06_recurrent_and_hybrid_models_are_refused_by_name(make: Any, said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        dp.from_transformers(make())
    with pytest.raises(UnsupportedModel, match=said):
        dp.from_transformers(model("llama"), make())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Saved models: a target, a draft with its tokenizer, and one with a permuted tokenizer."""
    root = tmp_path_factory.mktemp("models")
    drafts = {"target": model("taught"), "draft": near("taught", 0.5), "other": half_taught()}
    for name, made in drafts.items():
        copy.deepcopy(made).save_pretrained(root / name)  # saving sets the architecture's name
        tokenizer = taught_models.permuted(bpe()) if name == "other" else bpe()
        tokenizer.save_pretrained(root / name)
    return {name: root / name for name in drafts}


def test_case_08_a_wrong_tokenizer_is_refused(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the draft model is to draft by its ids; by default it drafts by its text."""
    other = taught_models.permuted(bpe())
    assert len(other) == len(bpe())
    target, said = model("taught"), r"mean different strings(.|\n)*--drafter crossvocab"
    with pytest.raises(TokenizerMismatch, match=said):
        dp.from_transformers(target, half_taught(), bpe(), draft_tokenizer=other, drafter="model")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folders["other"])
    with pytest.raises(TokenizerMismatch, match=said):
        dp.from_transformers(target, loaded, bpe(), drafter="model")
    with pytest.raises(TokenizerMismatch, match=said):
        dp.load(folders["target"], draft=folders["other"], drafter="model")

    capsys.readouterr()
    command = ["generate", "--target", str(folders["target"]), "--draft", str(folders["other"])]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--drafter", "model", "the old"])
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert "mean different strings" in err
    assert "remedy" in err


@pytest.mark.parametrize("drafter", [None, "mix", "crossvocab"])
def test_case_08_another_tokenizer_drafts_by_its_text(
    folders: dict[str, Path], drafter: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The right pair's weights behind a permuted tokenizer would draft nothing right by its ids."""
    other = taught_models.permuted(bpe())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folders["other"]).eval()
    options = {"drafter": drafter, "draft_length": 4}
    notices: list[str] = []
    pairs = [
        dp.from_transformers(
            model("taught"), half_taught(), bpe(), draft_tokenizer=other, **options
        ),
        dp.from_transformers(model("taught"), loaded, bpe(), **options),
        dp.load(
            folders["target"], draft=folders["other"], device="cpu",
            progress=lambda what, *_: notices.append(what), **options,
        ),
    ]  # fmt: skip
    for spec in pairs:
        result = spec.generate(taught_models.PROMPT)
        assert result.text == taught_models.TEXT
        sources = {guess.source for round in result.rounds for guess in round.guesses}
        (across,) = sources - {"suffix"}
        assert across.startswith("crossvocab, ")
        assert spec.drafter.name == (across if drafter == "crossvocab" else "mix")
    told = f"{folders['other']} has another tokenizer than {folders['target']}, and drafts by"
    assert sum(told in notice for notice in notices) == (drafter != "crossvocab")

    capsys.readouterr()
    command = ["generate", "--target", str(folders["target"]), "--draft", str(folders["other"])]
    chosen = [] if drafter is None else ["--drafter", drafter]
    main([*command, *chosen, "--explain", "--draft-length", "4", taught_models.PROMPT])
    out, err = capsys.readouterr()
    assert out == taught_models.TEXT + "\n"
    assert "crossvocab, " in err
    assert (told in err) == (drafter != "crossvocab")


def test_case_08_control_the_right_tokenizer_works(folders: dict[str, Path]) -> None:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folders["draft"]).eval()
    pairs = [
        dp.from_transformers(model("taught"), loaded, bpe(), draft_length=4),
        dp.from_transformers(
            model("taught"), loaded, bpe(), draft_tokenizer=taught_models.bpe(), draft_length=4
        ),
        dp.load(folders["target"], draft=folders["draft"], draft_length=4, device="cpu"),
    ]
    for spec in pairs:
        result = spec.generate(taught_models.PROMPT)
        assert result.text == taught_models.TEXT
        assert result.stats.drafted > 0


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_case_08_tokens_that_only_one_tokenizer_has_are_never_drafted(rule: str) -> None:
    """The draft's own added tokens, which it would take most of the time."""
    added = range(320, 324)
    ours, theirs = taught_models.bpe(), taught_models.bpe()
    theirs.add_tokens([f"<extra {i}>" for i in added])
    target = tiny_models.llama(vocab_size=330)
    draft = tiny_models.llama(vocab_size=330)
    with torch.no_grad():
        draft.lm_head.weight[320:324] *= 6
    spec = dp.from_transformers(
        target, draft, ours, draft_tokenizer=theirs, draft_length=4, drafter="model"
    )
    spec.drafter = watching = Watching(spec.drafter)
    options = {"temperature": 1.0, "max_tokens": 60, "seed": 3, "eos": []}
    result = spec.generate(PROMPT, verify=rule, **options)
    watching.never_drafted(added)
    liked = full_pass(draft, PROMPT, result.token_ids).argmax(1)
    assert np.isin(liked, added).mean() > 0.5
    if rule == "coupled":
        alone = dp.from_transformers(target).generate(PROMPT, **options)
        assert result.token_ids == alone.token_ids


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_case_09_a_padded_vocabulary_works_by_default(rule: str) -> None:
    """Target 512 rows, draft 500, tokenizer 490."""
    tokenizer = taught_models.bpe(490)
    assert len(tokenizer) == 490
    target = tiny_models.llama(vocab_size=512)
    draft = tiny_models.llama(1, vocab_size=500)
    with torch.no_grad():
        target.lm_head.weight[490:] *= 2
        draft.lm_head.weight[490:] *= 2
    spec = dp.from_transformers(target, draft, tokenizer, draft_length=4, drafter="model")
    spec.drafter = watching = Watching(spec.drafter)
    options = {"temperature": 1.0, "max_tokens": 150, "seed": 0, "eos": []}
    result = spec.generate("the old", verify=rule, **options)
    watching.never_drafted(range(490, 512))
    assert max(result.token_ids) >= 500
    assert all(not token.q for token in result.tokens if token.id >= 490)
    if rule == "coupled":
        alone = dp.from_transformers(target, None, tokenizer).generate("the old", **options)
        assert (result.token_ids, result.text) == (alone.token_ids, alone.text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(round_module, "perf_counter", clock)
    monkeypatch.setattr(request_module, "perf_counter", clock)
    monkeypatch.setattr(measured_module, "measure_costs", partial(measure_costs, clock=clock))
    return clock


@pytest.mark.parametrize("drafter", ["model", "mix"])
@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (1.0, "switched off before the first round: .*1.00 plain passes to draft"),
        (0.3, r"switched off after round \d+: "),
    ],
)
def test_case_10_drafts_that_do_not_pay_are_switched_off(
    clock: FakeClock, cost: float, said: str, drafter: Any
) -> None:
    """Under a clock that only passes move: a draft as large as the target and one that is cheaper,
    both with unrelated weights. All that speculation loses is under 5 % of 200 plain tokens.
    Matches beside them cost nothing and go on."""
    target, draft = tiny_models.llama(2), tiny_models.llama(7)
    target.register_forward_pre_hook(lambda *_: clock.advance(1.0))
    draft.register_forward_pre_hook(lambda *_: clock.advance(cost))
    spec = dp.from_transformers(target, draft, draft_length="auto", drafter=drafter)
    result = spec.generate(PROMPT, max_tokens=200, eos=[])
    assert re.search(said, result.stats.reasons[0])
    assert result.token_ids == plain("llama", max_tokens=200, eos=[]).token_ids
    assert result.stats.decode_seconds <= 1.05 * 200
    sources = {guess.source for round in result.rounds for guess in round.guesses}
    assert ("suffix" in sources) == (drafter == "mix")
    assert (sources <= {"suffix"}) == (cost == 1.0)


def test_case_10_a_useless_draft_is_switched_off_by_the_wall_clock() -> None:
    spec = dp.from_transformers(model("llama"), model("llama, unrelated"), drafter="model")
    running = spec.start(PROMPT, max_tokens=150, eos=[])
    for _ in decode([running]):
        pass
    assert tuple(running.output) == plain("llama", max_tokens=150, eos=[]).token_ids
    when = r"speculation switched off (before the first round|after round \d+): \w+"
    assert re.match(when, running.stats().reasons[0])
    assert sum(round.drafted == 0 for round in running.rounds) > len(running.rounds) / 2


class Recorder(TorchDispatchMode):
    """Notes the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        self.operations.append(str(operation))
        return operation(*given, **(named or {}))


def test_case_11_a_rewind_copies_nothing_at_any_length() -> None:
    """A rewind takes views of the same buffers, as many at 4096 tokens as at 64."""
    spec = dp.from_transformers(tiny_models.llama(max_position_embeddings=8192))
    seen = []
    for length in (64, 4096):
        running = spec.start([i % 90 + 3 for i in range(length)], max_tokens=8)
        session: Any = running.session
        before = [layer.addresses for layer in session.cache.rewindable]
        assert len(before) == 2
        with Recorder() as recorder:
            session.rewind(length - 9)
        assert [layer.addresses for layer in session.cache.rewindable] == before
        assert session.length == length - 9
        assert {layer.keys.shape[-2] for layer in session.cache.rewindable} == {length - 9}
        assert set(recorder.operations) <= {"aten.narrow.default", "aten.slice.Tensor"}  # views
        seen.append(recorder.operations)
        with Recorder() as recorder:  # control: a copy would be seen
            session.cache.rewindable[0].keys.clone()
        assert recorder.operations == ["aten.clone.default"]
        running.close()
    assert seen[0] == seen[1]


def test_case_11_a_cache_is_seldom_copied_as_it_grows() -> None:
    """Buffers double: 64, 128, 256 and 512 tokens, and never between."""
    session: Any = dp.from_transformers(model("llama")).start(PROMPT, max_tokens=500).session
    addresses = []
    for _ in range(300):
        session.score([5], keep=0)
        addresses.append(session.cache.rewindable[0].addresses)
    assert sum(now != then for now, then in pairwise(addresses)) <= 3


def test_case_12_every_row_of_a_batch_equals_its_solo_run() -> None:
    rng = np.random.default_rng(5)
    prompts = [[int(t) for t in rng.integers(3, 90, n)] for n in (1, 2, 3, 5, 8, 13, 21, 34)]
    ends = [int(t) for t in plain("llama", prompts[3], max_tokens=20, eos=[]).token_ids[5:8]]
    spec = dp.from_transformers(model("llama"), near("llama"), draft_length=4)
    together = spec.generate(prompts, max_tokens=32, eos=ends)
    assert len({len(row.token_ids) for row in together}) > 2  # different finish times
    for prompt, row in zip(prompts, together, strict=True):
        alone = spec.generate(prompt, max_tokens=32, eos=ends)
        assert row.token_ids == alone.token_ids
        assert row.token_ids == plain("llama", prompt, max_tokens=32, eos=ends).token_ids
        assert (row.stats.accepted, row.stats.rounds) == (alone.stats.accepted, alone.stats.rounds)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_case_15_the_draft_cache_follows_the_output(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = dp.from_transformers(model(name), near(name), draft_length=4, drafter="model")
    draft: Any = spec.drafter.model
    sessions: list[Any] = []
    opened = draft.open

    def open_session(prompt: Any) -> Any:
        sessions.append(opened(prompt))
        return sessions[-1]

    monkeypatch.setattr(draft, "open", open_session)
    running = spec.start(PROMPT, max_tokens=200, temperature=1.0, seed=1, eos=[])
    while running.finish_reason is None:
        play_round([running])
        if running.finish_reason is None:
            scored = len(PROMPT) + len(running.output) - 1
            assert running.session.length == scored
            assert scored - sessions[-1].length in (0, 1)
            for layer in sessions[-1].cache.rewindable:
                assert layer.get_seq_length() == sessions[-1].length
    assert len(sessions) == 1
    rates = [round.accepted / max(1, round.drafted) for round in running.rounds]
    half = len(rates) // 2
    assert abs(np.mean(rates[:half]) - np.mean(rates[half:])) < 0.25


@pytest.mark.parametrize("draft", TEXT_DRAFTS)
def test_case_16_nothing_follows_eos_inside_a_block(draft: str | None) -> None:
    free = taught_text()
    assert free.text == taught_models.TEXT
    assert free.finish_reason == "eos"
    for position in (7, 12, 20):
        eos = free.token_ids[position]
        end = free.token_ids.index(eos) + 1
        for length in lengths(draft, 1, 4, 16):
            stream = text_speculator(draft, length).stream(taught_models.PROMPT, eos=[eos])
            streamed = [(token.id, str(token)) for token in stream]
            result = stream.result
            assert tuple(i for i, _ in streamed) == result.token_ids == free.token_ids[:end]
            assert "".join(text for _, text in streamed) == result.text
            assert result.text == bpe().decode(free.token_ids[:end], skip_special_tokens=True)
            assert result.finish_reason == "eos"


@pytest.mark.parametrize("draft", TEXT_DRAFTS)
@pytest.mark.parametrize("stop", ["🦉", " 漢", "字 po", "é s", "owls,", "…"])
def test_case_17_stop_strings_end_everything_at_one_place(draft: str | None, stop: str) -> None:
    """Characters of up to four bytes, each a token of its own."""
    expected = taught_models.TEXT[: taught_models.TEXT.index(stop)]
    free = taught_text(logprobs=2)
    for length in lengths(draft, 4, 20):
        spec = text_speculator(draft, length)
        stream = spec.stream(taught_models.PROMPT, stop=[stop, "never"], logprobs=2)
        streamed = list(stream)
        result = stream.result
        count = len(result.token_ids)
        assert result.finish_reason == "stop"
        assert "".join(map(str, streamed)) == result.text == expected
        assert tuple(token.id for token in streamed) == result.token_ids
        assert result.token_ids == free.token_ids[:count]
        assert result.stats.emitted == len(result.tokens) == count
        assert bpe().decode(result.token_ids).startswith(expected)
        assert not bpe().decode(result.token_ids[:-1]).startswith(expected)


@pytest.mark.parametrize("draft", TEXT_DRAFTS)
def test_case_17_a_stop_string_that_only_begins_stops_nothing(draft: str | None) -> None:
    result = text_speculator(draft, 4).generate(taught_models.PROMPT, stop=["🦉 owl!", "was. "])
    assert result.text == taught_models.TEXT


@pytest.mark.parametrize("draft", ["near", "lookup", None])
def test_case_18_exactly_as_many_tokens_as_asked(draft: str | None) -> None:
    free = taught_text()
    for length in lengths(draft, 1, 4, 8):
        spec = text_speculator(draft, length)
        for count in range(1, 21):
            result = spec.generate(taught_models.PROMPT, max_tokens=count)
            assert result.token_ids == free.token_ids[:count]
            assert result.text == bpe().decode(free.token_ids[:count])
            assert result.stats.emitted == count
            assert result.finish_reason == "length"


@pytest.mark.parametrize("draft", ["near", "half taught", "lookup"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_case_19_logprobs_are_a_teacher_forced_pass(draft: str, temperature: float) -> None:
    options = {"temperature": temperature, "seed": 4, "max_tokens": 40, "logprobs": 5, "eos": []}
    expected = text_speculator(None, 0).generate(taught_models.PROMPT, **options)
    for length in (1, 6):
        result = text_speculator(draft, length).generate(taught_models.PROMPT, **options)
        assert result.token_ids == expected.token_ids
        rows = full_pass(
            model("taught"), bpe()(taught_models.PROMPT)["input_ids"], result.token_ids
        )
        logs = rows - np.log(np.exp(rows).sum(1, keepdims=True))
        for token, other, row in zip(result.tokens, expected.tokens, logs, strict=True):
            assert token.logprob == pytest.approx(row[token.id], abs=1e-4)
            assert [i for i, _ in token.top_logprobs] == [i for i, _ in other.top_logprobs]
            for i, value in token.top_logprobs:
                assert value == pytest.approx(row[i], abs=1e-4)
            assert len(token.top_logprobs) == 5


def numpy_state() -> bytes:
    keys: bytes = np.random.get_state()[1].tobytes()  # noqa: NPY002  # what must not be touched
    return keys


@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_case_20_a_seed_fixes_the_text_and_leaves_no_trace(name: str, rule: str) -> None:
    before = [fingerprint(made) for made in (model(name), near(name))]
    state = torch.get_rng_state(), numpy_state()
    spec = dp.from_transformers(model(name), near(name), draft_length=3)
    temperature = 5.0 if name == "t5" else 1.2  # it was taught one answer
    options = {"temperature": temperature, "max_tokens": 40, "seed": 9, "eos": []}
    first = spec.generate(PROMPT, verify=rule, **options)
    spec.generate((9, 8), temperature=1.0, max_tokens=10)
    next(iter(stream := spec.stream(PROMPT, max_tokens=10)))
    stream.close()
    second = spec.generate(PROMPT, verify=rule, **options)
    assert first.token_ids == second.token_ids
    again = dp.from_transformers(model(name), near(name), draft_length=3)
    assert again.generate(PROMPT, verify=rule, **options).token_ids == first.token_ids
    assert spec.generate(PROMPT, verify=rule, **{**options, "seed": 10}).token_ids != (
        first.token_ids
    )
    assert torch.equal(torch.get_rng_state(), state[0])
    assert numpy_state() == state[1]
    assert [fingerprint(made) for made in (model(name), near(name))] == before


def test_case_21_what_cannot_work_is_refused(folders: dict[str, Path]) -> None:
    short = tiny_models.llama(max_position_embeddings=16)
    with pytest.raises(PromptTooLong, match="target"):
        dp.from_transformers(short, "lookup").generate([5] * 17)
    with pytest.raises(PromptTooLong, match="draft"):
        dp.from_transformers(model("llama"), short, draft_length=4).generate([5] * 17)
    training = tiny_models.llama()
    for pair in ((training, None), (model("llama"), training)):
        spec = dp.from_transformers(*pair, draft_length=4)
        training.train()
        with pytest.raises(InvalidInput, match="training mode"):
            spec.generate(PROMPT)
        training.eval()
    for pair in ((tiny_models.bert(), None), (model("llama"), tiny_models.bert())):
        with pytest.raises(UnsupportedModel, match="not a decoder"):
            dp.from_transformers(*pair)
    with pytest.raises(InvalidInput, match="not a model"):
        dp.from_transformers(object())
    with pytest.raises(InvalidSetting, match="without a draft model"):
        dp.load(folders["target"], drafter="model", device="cpu")
    with pytest.raises(InvalidSetting, match="needs a tokenizer"):
        dp.from_transformers(model("llama")).generate("text")
    with pytest.raises(InvalidSetting, match="-1"):
        dp.from_transformers(model("llama"), "lookup", draft_length=-1)
    for given in ({"draft": "smollm2-135m"}, {"draft": "mix"}, {"drafter": "mix"}):
        with pytest.raises(InvalidSetting, match=r"no drafter is called .* without a draft model"):
            dp.from_transformers(model("llama"), **given)
    with pytest.raises(InvalidSetting, match="crossvocab was asked for without tokenizers"):
        dp.from_transformers(model("llama"), near("llama"), drafter="crossvocab")


def test_case_21_what_was_named_is_never_left_out_in_silence(folders: dict[str, Path]) -> None:
    """A draft model beside a drafter that reads none."""
    for drafter in ("lookup", "none"):
        with pytest.raises(InvalidSetting, match=drafter):
            dp.load(folders["target"], draft=folders["draft"], drafter=drafter, device="cpu")
    for drafter in ("suffix", "lookup", "ngram", "selfspec", "none"):
        with pytest.raises(InvalidSetting, match=f"'{drafter}' was given the draft Llama"):
            dp.from_transformers(model("llama"), near("llama"), drafter=drafter)


def test_transformers_models_draft_by_the_name_that_is_asked_for() -> None:
    target, draft = model("llama"), near("llama")
    named = {None: "mix", "mix": "mix", "model": "LlamaForCausalLM"}
    for drafter, name in named.items():
        assert dp.from_transformers(target, draft, drafter=drafter).drafter.name == name
    for name in ("suffix", "lookup", "ngram"):
        assert dp.from_transformers(target, name).drafter.name == name
        assert dp.from_transformers(target, drafter=name).drafter.name == name
    assert dp.from_transformers(target, "none").drafter is None


def test_case_21_plain_decoding_shows_in_the_account(folders: dict[str, Path]) -> None:
    spec = dp.load(folders["target"], draft="none", device="cpu")
    result = spec.generate(taught_models.PROMPT)
    assert result.text == taught_models.TEXT
    assert result.stats.drafted == 0
    assert result.stats.acceptance is None
    assert {token.origin for token in result.tokens} == {"plain"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_case_22_the_draft_may_have_another_dtype(dtype: torch.dtype) -> None:
    draft = taught_models.near(model("llama"), 0.0).to(dtype)
    expected = plain("llama", max_tokens=40, eos=[]).token_ids
    for length in (1, 4):
        result = speculate("llama", draft, length, max_tokens=40, eos=[])
        assert result.token_ids == expected
        assert result.stats.acceptance > 0.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_case_22_the_draft_may_be_on_another_device() -> None:
    target = tiny_models.llama(2).to("cuda")
    expected = dp.from_transformers(target).generate(PROMPT, max_tokens=40, eos=[]).token_ids
    for draft in (near("llama"), taught_models.near(model("llama"), 0.0).to("cuda").bfloat16()):
        spec = dp.from_transformers(target, draft, draft_length=4)
        assert spec.generate(PROMPT, max_tokens=40, eos=[]).token_ids == expected


@pytest.mark.parametrize("draft", ["near model", "unrelated model", "lookup"])
@pytest.mark.parametrize(("name", "prompt"), [("t5", PROMPT), ("whisper", SOUND)])
def test_case_23_encoder_decoder_pairs(name: str, prompt: Any, draft: str) -> None:
    expected = plain(name, prompt, max_tokens=40).token_ids
    drafting = draft_of(draft, name)
    encoders = [made.get_encoder() for made in (model(name), drafting) if made != "lookup"]
    for length in (1, 2, 4, 8):
        spec = dp.from_transformers(model(name), drafting, draft_length=length)
        calls: list[Any] = []
        hooks = [
            encoder.register_forward_hook(lambda module, *_, calls=calls: calls.append(module))
            for encoder in encoders
        ]
        result = spec.generate(prompt, max_tokens=40)
        for hook in hooks:
            hook.remove()
        assert result.token_ids == expected
        assert calls == encoders


def test_case_23_speech_is_what_transformers_generates() -> None:
    loaded = model("whisper")
    ids = transformers.GenerationMixin.generate(
        loaded, input_features=torch.tensor(SOUND)[None], do_sample=False, max_new_tokens=40
    )
    assert list(plain("whisper", SOUND, max_tokens=40).token_ids) == ids[0, 1:].tolist()


class Echo:
    """Somebody else's drafter: the last token, over and over."""

    name = "echo"
    model = None

    def begin(self, prompt: Any, standardise: Any) -> Proposer:
        return self

    def draft(self, output: Sequence[int], limit: int, stream: Any) -> Draft:
        return Draft.of_certain((output[-1],) * limit if output else ())

    def observe(self, verdict: Any) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("length", [3, "auto"])
def test_a_drafter_from_elsewhere_works(folders: dict[str, Path], length: Any) -> None:
    name = "t5, unrelated"  # which repeats one token
    result = speculate(name, Echo(), length, max_tokens=40, eos=[])
    assert result.token_ids == plain(name, max_tokens=40, eos=[]).token_ids
    if length == 3:
        assert result.stats.accepted > 0
    loaded = dp.load(folders["target"], draft=Echo(), draft_length=length, device="cpu")
    assert loaded.generate(taught_models.PROMPT).text == taught_models.TEXT
