"""`draftproof check`: what it finds, what it says, and its exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import taught_models
import tiny_models
from click.testing import CliRunner, Result
from fakes import FakeModel, FakeSession, FakeTokenizer

from draftproof.backends import wrap_model
from draftproof.bench.check import Check, first_difference
from draftproof.bench.memo import MemoModel
from draftproof.cli import main
from draftproof.cli.check import check
from draftproof.core import Dense, Draft, Law, Limits, Verdict
from draftproof.drafters import DraftModel, PromptLookup
from draftproof.engine import Request, Speculator
from draftproof.engine import round as round_module
from draftproof.planner import Fixed
from draftproof.ports import Branching, Drafter, Model, Pass
from draftproof.sampling import Sampling

pytestmark = pytest.mark.usefixtures("elsewhere")

TOKENIZER = FakeTokenizer()
VOCAB = TOKENIZER.vocab_size
WARM = ("--temperature", "1", "--top-p", "0.8", "--verify", "token")
GREEDY = Sampling()

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command, on a pair of fakes."""
    target = FakeModel(VOCAB, seed=4, sharpness=3.0)
    draft = FakeModel(VOCAB, near=target, distance=0.3, seed=5, sharpness=3.0)

    def load(*, drafter: str | None, draft_length: int, **loading: Any) -> Speculator:
        made = None if drafter == "none" else DraftModel(draft, VOCAB)
        return Speculator(target, TOKENIZER, made, Fixed(draft_length))

    monkeypatch.setattr(sys.modules["draftproof.cli.progress"], "load_with_progress", load)

    def invoke(*arguments: str, prompts: Sequence[str] = ("the cat", "on the")) -> Result:
        file = tmp_path / "prompts.jsonl"
        file.write_text("\n".join(json.dumps({"prompt": text}) for text in prompts))
        return CliRunner().invoke(check, ["--prompts", str(file), *arguments])

    return invoke


def keep_every_draft(draft: Draft, laws: Sequence[Law], stream: Any) -> Verdict:
    return Verdict(len(draft), stream.target(len(draft), laws[len(draft)]), "bonus")


def test_a_right_pair_passes(run: Run) -> None:
    """False alarms of the law test: at most 1e-4, with fixed seeds."""
    result = run(*WARM)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.split(":")[0].split() for line in lines[:-1]] == [
        ["pass", "greedy", "equality"],
        ["pass", "self-draft"],
        ["pass", "self-draft"],
        ["pass", "output", "law"],
    ]
    assert lines[-1].startswith("verdict: exact")
    assert "false alarms at most 0.0001, misses at most 0.01" in lines[-2]


def test_a_wrong_rule_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Misses: with fixed seeds none; the rule's law is far from every right one."""
    monkeypatch.setattr(round_module, "token", keep_every_draft)
    result = run(*WARM)
    assert result.exit_code == 1
    assert "fail       output law: token: " in result.output
    assert result.output.splitlines()[-1] == "verdict: NOT exact (output law)"


def test_a_rule_that_ignores_the_target_fails_greedily(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_module, "coupled", keep_every_draft)
    result = run()
    assert result.exit_code == 1
    assert "outputs differ from plain decoding, the first at prompt 0" in result.output
    assert "verdict: NOT exact (greedy equality)" in result.output


def test_at_temperature_0_equality_is_the_test(run: Run) -> None:
    result = run()
    assert result.exit_code == 0
    assert "skipped    output law: at temperature 0" in result.output


def test_both_rules_of_auto_are_tested(run: Run) -> None:
    result = run("--temperature", "1", "--top-p", "0.8")
    assert result.exit_code == 0, result.output
    assert "output law: block: " in result.output
    assert "output law: coupled: " in result.output


def test_json(run: Run) -> None:
    result = run("--json", *WARM)
    document = json.loads(result.output)
    assert document["passed"]
    assert [finding["test"] for finding in document["findings"]] == [
        "greedy equality", "self-draft", "self-draft", "output law",
    ]  # fmt: skip
    law = document["findings"][-1]
    assert law["tokens"] > law["target_passes"] > 0
    assert law["draft_passes"] > 0
    assert {entry["outcome"] for entry in law["evidence"].values()} == {"ruled out"}
    assert document["findings"][0]["rounding"]["noise"] == 0


def test_running_out_of_the_budget_is_no_pass(run: Run) -> None:
    result = run("--budget", "0", *WARM)
    assert result.exit_code == 1
    assert "undecided  output law" in result.output
    assert "--budget" in result.output


def test_the_draft_length_is_the_one_that_is_tested(run: Run) -> None:
    assert "at draft length 2: " in run("--draft-length", "2").output
    assert "at draft lengths 1, 3, 7: " in run().output


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--drafter", "none"), "no draft to check"),
        (("--draft-length", "0"), "no draft to check"),
        (("--limit", "0"), "limit"),
    ],
)
def test_nothing_to_check_is_refused(
    run: Run, arguments: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", *arguments])
    assert caught.value.code == 2
    assert what in capsys.readouterr().err


# --------------------------------------------------------------------------- every drafter


@pytest.fixture(scope="module")
def pair(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target of `folder`, a near `draft`, and the same as an `other` with another tokenizer."""
    import transformers

    path = tmp_path_factory.mktemp("pair")
    for name, where in (("target", folder), ("draft", folder / "draft")):
        (path / name).symlink_to(where)
    near = transformers.AutoModelForCausalLM.from_pretrained(folder / "draft")
    near.save_pretrained(path / "other")
    taught_models.permuted(taught_models.bpe()).save_pretrained(path / "other")
    return path


@pytest.mark.parametrize(
    ("drafter", "draft", "trees"),
    [
        ("mix", "draft", True),
        ("model", "draft", True),
        ("mix", "other", False),
        ("crossvocab", "other", False),
        ("suffix", None, True),
        ("lookup", None, False),
        ("ngram", None, False),
        ("selfspec", None, True),
    ],
)
def test_every_drafter_is_checked(
    drafter: str, draft: str | None, trees: bool, pair: Path, outcome: Any
) -> None:
    """False alarms of the law test: at most 1e-4, with fixed seeds."""
    pytest.importorskip("draftproof._native", exc_type=ImportError)
    prompts = pair / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "the old the big the old the naive the"}))
    named = [] if draft is None else ["--draft", pair / draft]
    status, out, err = outcome(
        "check", "--target", pair / "target", "--backend", "cpu", "--threads", 1,
        "--drafter", drafter, *named, "--prompts", prompts,
        "--temperature", 1, "--top-k", 3, "--verify", "block",
    )  # fmt: skip
    lines = out.splitlines()
    assert status == 0, out
    assert [line.split(":")[0].split()[0] for line in lines[:-1]] == ["pass"] * (4 + trees)
    assert (", and with " in lines[0]) == ("output law: block, with trees" in lines[-2]) == trees
    assert lines[-1].startswith("verdict: exact")
    assert ("has another tokenizer" in err) == ((drafter, draft) == ("mix", "other"))


def test_a_wrong_rule_for_trees_fails(
    pair: Path, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the drawn candidate for the draft's only one. Misses: with fixed seeds none."""
    pytest.importorskip("draftproof._native", exc_type=ImportError)

    def keep_the_drawn_one(draft: Draft, laws: Sequence[Law], stream: Any) -> Verdict:
        drawn = [i for i in draft.children(-1) if isinstance(draft.laws[i], Dense)]
        token = draft.tokens[drawn[0]] if drawn else stream.target(0, laws[0])
        return Verdict(0, token, "residual")

    monkeypatch.setattr(round_module, "tree", keep_the_drawn_one)
    prompts = pair / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "the old the big the old the naive the"}))
    status, out, _ = outcome(
        "check", "--target", pair / "target", "--backend", "cpu", "--threads", 1,
        "--draft", pair / "draft", "--prompts", prompts, "--temperature", 1, "--top-k", 3,
        "--verify", "block",
    )  # fmt: skip
    assert status == 1
    assert "fail       output law: block, with trees: " in out
    assert "pass       output law: block: " in out


# --------------------------------------------------------------------- rounding and near-ties


class Rounding(FakeModel):
    """A fake whose logits depend, a little, on the number of tokens in the pass."""

    def __init__(self, *args: Any, error: float, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.error = error

    def open(self, prompt: Any) -> RoundingSession:
        return RoundingSession(self, prompt, ())


class RoundingSession(FakeSession):
    def score(self, tokens: Sequence[int], keep: int) -> np.ndarray:
        rows = super().score(tokens, keep)
        dice = np.random.default_rng([len(tokens), *self.tokens])
        error = self.model.error if len(tokens) > 1 else 0.0
        return (rows + error * dice.uniform(-1, 1, rows.shape)).astype(np.float32)


def tie(context: tuple[int, ...]) -> list[float]:
    """Two tokens that are nearly as probable, everywhere."""
    return [0.4, 0.4001, 0.1, 0.0999]


def request(sampling: Sampling = GREEDY) -> Request:
    return Request(prompt=(1, 2), sampling=sampling, limits=Limits(4))


def findings(target: Model, drafter: Drafter, sampling: Sampling = GREEDY) -> list[Any]:
    return list(Check(target, drafter, [request(sampling)], ("token",)).run())


def test_near_ties_that_rounding_flips_are_reported_apart() -> None:
    target = Rounding(4, laws=tie, error=0.01)
    drafter = DraftModel(FakeModel(4, laws=tie), 4)
    greedy, self_draft, _ = findings(target, drafter)
    assert greedy.status == "pass"
    assert "near-ties (margin 0.00025" in greedy.line
    assert greedy.details["near_ties"]
    assert 0.005 < greedy.details["rounding"]["noise"] < 0.03  # measured
    assert self_draft.status == "pass"


def test_a_flip_beyond_the_measured_rounding_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same flips, but the logits are the same in every pass: somebody chose wrongly."""
    monkeypatch.setattr(round_module, "coupled", keep_every_draft)
    drafter = DraftModel(FakeModel(4, laws=lambda context: [0.4001, 0.4, 0.1, 0.0999]), 4)
    greedy, *_ = findings(FakeModel(4, laws=tie), drafter)
    assert greedy.status == "fail"
    assert greedy.details["different"][0]["margin"] == pytest.approx(0.00025, rel=0.01)


def test_errors_too_large_for_rounding_excuse_nothing() -> None:
    """A model that scores several tokens wrongly would measure a tolerance for its own fault."""
    greedy, *_ = findings(Rounding(4, seed=1, error=3.0), PromptLookup())
    assert greedy.status == "fail"
    assert "more than rounding does" in greedy.line


def test_a_self_draft_that_is_rejected_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rounding, one rejection is too many; half the drafts are rejected here."""

    def halve(draft: Draft, laws: Sequence[Law], stream: Any) -> Verdict:
        kept = len(draft) // 2
        return Verdict(kept, stream.target(kept, laws[kept]), "residual")

    monkeypatch.setattr(round_module, "token", halve)
    monkeypatch.setattr(round_module, "coupled", halve)
    target = FakeModel(8, seed=1)
    warm = Sampling(temperature=1.0)
    _, greedy, sampled, _ = findings(target, DraftModel(target, 8), warm)
    assert greedy.status == sampled.status == "fail"
    assert sampled.details["allowed"] == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_real_runtime_passes(dtype: str) -> None:
    """Tiny random transformers models; the law test's false alarms are at most 1e-4."""
    import torch

    model = tiny_models.llama(3).to(getattr(torch, dtype))
    target, draft = wrap_model(model), wrap_model(taught_models.near(model, 0.2))
    warm = Sampling(temperature=1.0, top_k=4)
    check = Check(target, DraftModel(draft, target.vocab_size), [request(warm)], ("block",))
    found = [check.greedy(), check.self_draft_greedy(), check.self_draft_sampled("block")]
    if dtype == "bfloat16":
        found.append(check.output_law("block"))
    check.memo.close()
    assert all(finding.status == "pass" for finding in found), [f.line for f in found]
    assert 0 < check.rounding.noise < (1e-3 if dtype == "float32" else 0.5)


# --------------------------------------------------------------------------------- the parts


def test_a_memo_gives_the_models_own_rows_and_makes_no_pass_twice() -> None:
    model = FakeModel(8, seed=3)
    memo = MemoModel(model)
    for _ in range(2):
        session = memo.open((1, 2, 3))
        session.score((1, 2), keep=0)
        rows = session.score((3, 4, 5), keep=3)
        for i, row in enumerate(rows):
            assert np.array_equal(row, model.logits_after((1, 2, 3, 4, 5)[: 3 + i]))
        session.rewind(4)
        (row,) = session.score((6,), keep=1)
        assert np.array_equal(row, model.logits_after((1, 2, 3, 4, 6)))
        assert memo.passes == 2
    memo.close()
    assert model.open_sessions == 0


def test_a_memo_scores_trees_path_by_path() -> None:
    model = FakeModel(8, seed=3)
    session = MemoModel(model).open((1, 2))
    assert isinstance(session, Branching)
    session.score((1,), keep=0)
    rows = session.score_tree((2, 3, 4, 5), (-1, 0, 0, 2))
    for row, path in zip(rows, [(2,), (2, 3), (2, 4), (2, 4, 5)], strict=True):
        assert np.array_equal(row, model.logits_after((1, *path)))
    session.keep((0, 2))
    assert session.length == 3
    (row,) = session.score((6,), keep=1)
    assert np.array_equal(row, model.logits_after((1, 2, 4, 6)))


def test_a_memo_has_the_columns_that_a_smaller_head_would() -> None:
    class Pairs(FakeModel):
        """Its head is computed two rows at a time."""

        def narrow(self, ids: Sequence[int]) -> tuple[FakeModel, np.ndarray]:
            return self, np.unique([(i - i % 2, i - i % 2 + 1) for i in ids])

    for model, expected in ((FakeModel(8, seed=3), [2, 5]), (Pairs(8, seed=3), [2, 3, 4, 5])):
        memo = MemoModel(model)
        narrowed, columns = memo.narrow([5, 2])
        assert columns.tolist() == expected
        for _ in range(2):
            session = memo.open((1, 2))
            session.score((1,), keep=0)
            ((row,),) = narrowed.score_together([Pass(session, (2,), 1)])
            assert np.array_equal(row, model.logits_after((1, 2))[expected])
        assert memo.passes == 1


def test_a_memo_is_bounded() -> None:
    model = FakeModel(8, seed=3)
    memo = MemoModel(model, capacity=2)
    for token in (4, 5, 6, 4):
        memo.open((1,)).score((1, token), keep=1)
    assert memo.passes == 4  # the first row had left by then
    assert memo.open((1,)).score((1, 2, 3, 4), keep=4).shape == (4, 8)


def test_first_difference() -> None:
    assert first_difference((1, 2), (1, 2)) is None
    assert first_difference((1, 2), (1, 3)) == 1
    assert first_difference((1, 2), (1,)) == 1


def test_other_limits_of_the_request_do_not_matter() -> None:
    """Fewer tokens than a test needs, a minimum, a stop string: the tests set their own."""
    target = FakeModel(8, seed=1)
    odd = replace(request(), limits=Limits(2, 2, stop=("x",)))
    greedy, *_ = Check(target, DraftModel(target, 8), [odd], ("token",)).run()
    assert greedy.details["tokens"] == 24
