"""What is still to come of an answer, and whether the draft's reading of the prompt pays for it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from draftproof.core import Guess, Limits, Round, Verdict
from draftproof.drafters import DraftModel, Mix, SuffixDrafter
from draftproof.drafters.head import Head
from draftproof.engine import Request, Running, decode
from draftproof.planner import Auto, CostCurve, Costs
from draftproof.planner.answers import Answers
from draftproof.planner.balance import RATE, Balance
from draftproof.planner.length import AutoPolicy
from draftproof.planner.running import Corrections, Experience, RunningCosts
from draftproof.rng import Independent, Noise
from draftproof.sampling import Sampling, Standardiser
from tests.fakes import FakeModel, take

GENTLE = tuple(0.9 + 0.1 * n for n in range(1, 18))  # seconds by n, of a pass over n tokens
COSTS = Costs(CostCurve(tuple(range(1, 18)), GENTLE), (0.2,))


# --- how much is to come ---


def test_nothing_comes_behind_the_last_token_that_may() -> None:
    assert Answers().ahead(40, 0) == 0
    assert 0 < Answers().ahead(40, 1) <= 1


@pytest.mark.parametrize("lengths", [(6, 14, 20, 9), (100, 180, 90, 250), (12, 200)])
@pytest.mark.parametrize("written", [0, 5, 17, 64])
def test_what_is_expected_comes_near_the_truth(lengths: Sequence[int], written: int) -> None:
    """Within a factor of two of the mean of what follows, or 32 tokens, once 40 answers are known.

    Within a span of a doubling only the number of answers that end is known, not where.
    """
    answers = Answers()
    for _ in range(40):
        for length in lengths:
            answers.learn(length, ended=True)
    left = [length - written for length in lengths if length > written]
    expected = answers.ahead(written, 500)
    if left:
        truth = float(np.mean(left))
        assert truth / 2 - 32 < expected < 2 * truth + 32


def test_an_answer_that_was_cut_off_tells_nothing_of_its_end() -> None:
    cut, ended = Answers(), Answers()
    for _ in range(20):
        cut.learn(128, ended=False)
        ended.learn(129, ended=True)
    assert cut.ahead(0, 128) > 105 > 1.2 * Answers().ahead(0, 128)
    assert cut.ahead(128, 10_000) == Answers().ahead(128, 10_000)
    assert ended.ahead(130, 10_000) < cut.ahead(130, 10_000) / 2


def test_newer_answers_count_for_more() -> None:
    answers = Answers()
    for _ in range(100):
        answers.learn(400, ended=True)
    before = answers.ahead(0, 1000)
    for _ in range(40):
        answers.learn(10, ended=True)
    assert answers.ahead(0, 1000) < before / 3


def test_answers_are_learned_from_threads_without_loss() -> None:
    both, alone = Answers(), Answers()
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda _: both.learn(30, ended=True), range(2000)):
            pass
    for _ in range(2000):
        alone.learn(30, ended=True)
    assert both.counts == alone.counts


# --- whether to read ---

PROMPT = 40.0  # seconds that the target took for it: a draft at a fifth takes 8 plain passes


def reads_at(policy: AutoPolicy, room: int, rounds: int = 300) -> int | None:
    """Tokens that are written when the draft is first let read; None if it never is."""
    for written in range(rounds):
        leads = policy.guide(False, room - written, PROMPT)
        if leads.value("model") > 0:
            return written
        assert "reading" in leads.stopped
        policy.observe(Round(0, 0, 1, 0.0, GENTLE[0], 0.0))
    return None


def experience(*lengths: int) -> Experience:
    known = Experience(0.8, 20.0)
    known.tried = True
    for length in lengths:
        known.answers.learn(length, ended=True)
    return known


def test_the_draft_reads_at_once_where_answers_are_long_and_never_where_they_are_short() -> None:
    auto = Auto(COSTS)
    assert reads_at(AutoPolicy(auto, experience(*[300] * 20)), 1000) == 0
    assert reads_at(AutoPolicy(auto, experience(*[10] * 20)), 1000) not in range(12)
    assert reads_at(AutoPolicy(auto, experience(*[300] * 20)), 12, rounds=12) is None


def test_where_nothing_is_known_it_reads_when_enough_was_written() -> None:
    at = reads_at(AutoPolicy(Auto(COSTS)), 1000)
    assert at is not None
    assert at < 64


def test_what_reading_takes_is_learned() -> None:
    """Passes take a fifth of the target's, but reading takes two fifths."""
    costs = RunningCosts(COSTS, 15)
    assert costs.reading(PROMPT) == pytest.approx(PROMPT / 5)
    for _ in range(6):
        costs.observe_reading(2 * PROMPT / 5, PROMPT)
    assert costs.reading(PROMPT) == pytest.approx(2 * PROMPT / 5, rel=0.1)
    again = RunningCosts(COSTS, 15, costs.corrections)
    assert again.reading(PROMPT) == costs.reading(PROMPT)


def test_a_reading_that_takes_longer_is_put_off() -> None:
    """It takes as long as the target's, which ten requests have seen: 40 plain passes."""
    seen = experience(*[60] * 20)
    assert reads_at(AutoPolicy(Auto(COSTS), seen), 1000) == 0
    for _ in range(10):
        policy = AutoPolicy(Auto(COSTS), seen)
        policy.guide(False, 1000, PROMPT)
        policy.observe(Round(0, 0, 1, 0.0, GENTLE[0], 0.0, read_seconds=PROMPT))
    assert reads_at(AutoPolicy(Auto(COSTS), seen), 60, rounds=60) is None


def test_a_short_answer_may_lose_less() -> None:
    """All drafts are wrong: behind short answers 2 tokens are drafted, behind long ones 6."""
    drafted = []
    for length in (10, 200):
        policy = AutoPolicy(Auto(COSTS), experience(*[length] * 20))
        drafted.append(0)
        for _ in range(10):
            count = take(policy.guide(False, 256, 0.0), 0.9)
            guesses = tuple(
                Guess(0, i - 1, "model", 0.9, None if i else 0.5, False) for i in range(count)
            )
            seconds = COSTS.draft_seconds * count, COSTS.curve(count + 1)
            policy.observe(Round(count, 0, 1, *seconds, 0.0, guesses=guesses))
            drafted[-1] += count
    assert drafted == [2, 6]


def share_switched_off(rate: float, requests: int = 200, tokens: int = 20) -> float:
    """Of answers of so many tokens, drafts being right so often, how many end without drafts.

    How sure the draft is of a token varies, and it is right as often as it says.
    """
    curve = CostCurve(tuple(range(1, 18)), tuple(0.85 + 0.15 * n for n in range(1, 18)))
    costs = Costs(curve, (0.25,))
    rng, known, off = np.random.default_rng(0), Experience(0.7, 8.0), 0
    for _ in range(requests):
        policy, written = AutoPolicy(Auto(costs), known), 0
        while written < tokens:
            leads, chances = policy.guide(False, 256, 0.0), list[float]()
            while leads.value("model") > 0:
                chances.append(float(rng.beta(3 * rate, 3 * (1 - rate))))
                leads.take("model", chances[-1])
            count = len(chances)
            kept = int(np.argmin([*(rng.random(count) < chances), False]))
            guesses = tuple(
                Guess(0, i - 1, "model", chance, 0.5 if i <= kept else None, i < kept)
                for i, chance in enumerate(chances)
            )
            seconds = costs.draft_seconds * count, costs.curve(count + 1)
            policy.observe(Round(count, kept, kept + 1, *seconds, 0.0, guesses=guesses))
            written += kept + 1
        policy.close(ended=True)
        off += "off" in "".join(policy.reasons[-1:])
    return off / requests


def test_one_bad_draft_does_not_end_what_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of short answers that drafting pays for few are given up, and where drafts fail every one.

    The control may lose its whole balance by one draft and none of what others gained, and gives up
    several times as many. Figures are of fixed seeds.
    """
    given_up = share_switched_off(0.75)
    assert given_up <= 0.05
    assert share_switched_off(0.1, requests=50) > 0.95
    limit = Balance.limit
    monkeypatch.setattr(Balance, "risk", lambda balance, worst: balance.passes)

    def strict(balance: Balance, tokens: float, worst: float) -> None:
        balance._gained = 0.0
        limit(balance, tokens, worst)

    monkeypatch.setattr(Balance, "limit", strict)
    assert share_switched_off(0.75) > 3 * given_up


def test_what_is_read_already_costs_nothing_again() -> None:
    policy = AutoPolicy(Auto(COSTS), experience(*[10] * 20))
    assert policy.guide(False, 5, PROMPT).value("model") <= 0
    assert policy.guide(False, 5, 0.0).value("model") > 0


@pytest.mark.parametrize("price", [5.0, 20.0, 60.0])
def test_paying_at_the_best_time_is_not_beaten_by_any_other(price: float) -> None:
    """Answers as they were learned, two in three of 12 tokens and one of 200: gain by start."""
    answers = Answers()
    for _ in range(60):
        for length in (12, 12, 200):
            answers.learn(length, ended=True)

    def gained(start: int) -> float:
        return sum(0.5 * (n - start) - price for n in (12, 12, 200) if n > start) / 3

    chosen = next((w for w in range(200) if answers.pays(w, 300, 0.5, price)), 200)
    best = max(gained(start) for start in range(201))
    assert gained(chosen) >= best - 2.0
    assert min(gained(0), gained(199)) < best - 2.0  # so that it can fail


def test_matches_are_drafted_while_the_model_waits_and_make_it_wait_longer() -> None:
    """Where most tokens come for nothing, a model has few to make sooner."""

    def written(matches: int) -> int:
        waits = AutoPolicy(Auto(COSTS))
        count = 0
        while count < 300:
            leads = waits.guide(False, 1000 - count, 4 * PROMPT)
            if leads.value("model") > 0:
                return count
            for _ in range(matches):
                assert leads.value("suffix", 0.95) > 0
                leads.take("suffix", 0.95)
            told = tuple(Guess(0, i - 1, "suffix", 1.0, 1.0, kept=True) for i in range(matches))
            waits.observe(
                Round(matches, matches, matches + 1, 0.0, GENTLE[matches], 0.0, guesses=told)
            )
            count += matches + 1
        return count

    assert 0 < written(0) < 100
    assert written(6) > 300


def test_a_hopeless_draft_is_not_read_for_again() -> None:
    """Behind failed drafts a probe waits until its reading, too, is a fiftieth of the time."""
    auto, known = Auto(COSTS), Experience(0.7, 4.0)
    read = 0
    for _ in range(20):
        policy, unread = AutoPolicy(auto, known), PROMPT
        for written in range(100):
            count = take(policy.guide(False, 100 - written, unread), 0.5)
            if count and unread:
                read, unread = read + 1, 0.0
            told = tuple(
                Guess(0, i - 1, "model", 0.5, None if i else 0.1, False) for i in range(count)
            )
            policy.observe(Round(count, 0, 1, 0.2 * count, GENTLE[count], 0.0, guesses=told))
        policy.close(ended=True)
    assert 1 <= read <= 3  # 2000 plain passes, and a reading takes 8


# --- what the engine and the drafters do of it ---


def test_a_draft_that_reads_late_reads_what_was_written_too() -> None:
    target = FakeModel(12, seed=1)
    draft = FakeModel(12, near=target, distance=0.5)
    prompt, law = (1, 2, 3, 4), Standardiser(Sampling(temperature=1.0))
    late, early = (DraftModel(draft, 12).begin(prompt, law) for _ in range(2))
    text: list[int] = []
    noise = Noise(5)
    for token in (5, 3, 8, 1, 2):
        early.draft(text, 2, Independent(noise, len(text), attempt=0))
        early.observe(Verdict(0, token, "residual"))
        text.append(token)
    stream = Independent(noise, len(text), attempt=0)
    drafted, again = late.draft(text, 4, stream), early.draft(text, 4, stream)
    assert late.reading_seconds > 0
    assert drafted.tokens == again.tokens
    for law, other in zip(drafted.laws, again.laws, strict=True):
        assert [law.prob(x) for x in range(12)] == [other.prob(x) for x in range(12)]
    assert late.length == early.length
    for one in (late, early):
        one.close()


def test_a_draft_that_is_not_asked_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(Head, "see", lambda head, tokens: told.append(tokens))
    draft = FakeModel(12, seed=1)
    proposer = DraftModel(draft, 12, head=4).begin((1, 2, 3), Standardiser(Sampling()))
    closed = AutoPolicy(Auto(COSTS), experience(*[10] * 20))
    for count in range(40):
        leads, stream = (
            closed.guide(False, 40, 100 * PROMPT),
            Independent(Noise(1), count, attempt=0),
        )
        assert proposer.follow([5] * count, 8, stream, leads).tokens == ()
    assert (told, proposer.reading_seconds, proposer.length) == ([], 0.0, 0)
    proposer.draft([5] * 40, 1, Independent(Noise(1), 40, attempt=0))
    assert told == [[5] * 40]
    proposer.close()


def test_short_answers_are_written_without_the_draft() -> None:
    """In a request of few tokens behind a long prompt only matches draft; in a long one both do."""
    target = FakeModel(12, seed=1)
    draft = FakeModel(12, near=target, distance=0.1)

    class Slow(Running):
        @property
        def read_seconds(self) -> float:
            return PROMPT

        @read_seconds.setter
        def read_seconds(self, seconds: float) -> None: ...

    class Lengths:
        def begin(self, prompt: object, reproducible: bool = False) -> AutoPolicy:
            return AutoPolicy(Auto(COSTS), experience(*[300] * 20))

    for tokens, drafts in ((6, False), (200, True)):
        request = Request(
            prompt=(1, 2, 3),
            sampling=Sampling(),
            limits=Limits(tokens, 0, frozenset(), ()),
            seed=1,
        )
        mix = Mix(DraftModel(draft, 12), SuffixDrafter())
        running = Slow(request, target, None, mix, Lengths())
        for _ in decode([running]):
            pass
        sources = {token.source for token in running.tokens}
        assert (draft.name in sources) is drafts
        assert sum(account.read_seconds > 0 for account in running.rounds) == drafts


# --- what passes cost ---


def dear_among_plain(costs: RunningCosts, drafted: int, factor: float) -> None:
    """A hundred rounds: all of so many drafted tokens that are dear, but for every tenth."""
    for count in range(1, 101):
        n, took = (drafted, factor * GENTLE[drafted]) if count % 10 else (0, GENTLE[0])
        costs.observe(Round(n, n, n + 1, 0.0, took, 0.0), 0, 0.0)


def test_long_passes_that_are_dear_say_little_of_short_ones() -> None:
    costs = RunningCosts(COSTS, 15)
    dear_among_plain(costs, 15, 1.6)
    assert costs.seconds[15] == pytest.approx(1.6 * GENTLE[15], rel=0.1)
    assert 1 < costs.seconds[1] / costs.seconds[0] / (GENTLE[1] / GENTLE[0]) < 1.15
    assert costs.plain_seconds == GENTLE[0]


def test_short_passes_that_are_dear_say_little_of_long_ones() -> None:
    costs = RunningCosts(COSTS, 15)
    dear_among_plain(costs, 1, 1.3)
    assert costs.seconds[1] == pytest.approx(1.3 * GENTLE[1], rel=0.1)
    assert costs.seconds[15] / costs.seconds[0] < 1.5 * GENTLE[15] / GENTLE[0]


def price_of_a_token(costs: RunningCosts) -> float:
    """What a drafted token adds, in plain passes, where three are drafted."""
    return (costs.of(3, 3.0) / costs.seconds[0] - 1) / 3


def test_a_slow_spell_of_the_machine_does_not_make_drafts_dear() -> None:
    """Forty rounds in which all takes 1.4 times as long, seen again in a plain one, or not.

    Where passes with drafts alone are slow, the plain ones between them tell.
    """
    costs, dear = RunningCosts(COSTS, 15), RunningCosts(COSTS, 15)
    believed = price_of_a_token(costs)
    slow = Round(3, 2, 3, 1.4 * 0.6, 1.4 * GENTLE[3], 0.0)
    for _ in range(40):
        costs.observe(slow, 3, 3.0)
    costs.observe(Round(0, 0, 1, 0.0, 1.4 * GENTLE[0], 0.0), 0, 0.0)
    assert price_of_a_token(costs) == pytest.approx(believed, rel=0.1)
    for count in range(60):
        if count % 6:
            dear.observe(slow, 3, 3.0)
        else:
            dear.observe(Round(0, 0, 1, 0.0, GENTLE[0], 0.0), 0, 0.0)
    truth = (1.4 * (0.6 + GENTLE[3]) / GENTLE[0] - 1) / 3
    assert price_of_a_token(dear) == pytest.approx(truth, rel=0.2)
    assert believed < 0.7 * truth  # so that they can be told apart


def test_what_drafts_lost_is_settled_when_a_plain_round_tells_what_plain_ones_take() -> None:
    """Three drafts that fail and a plain round behind them: in a slow spell, or not."""
    balances = []
    for plain in (1.0, 1.4):
        policy = AutoPolicy(Auto(COSTS))
        for _ in range(3):
            policy.observe(Round(1, 0, 1, 0.2, 1.4 * GENTLE[1], 0.0))
        before = policy.balance.passes
        policy.observe(Round(0, 0, 1, 0.0, plain * GENTLE[0], 0.0))
        balances.append(policy.balance.passes - before)
    assert balances[0] == pytest.approx(RATE)
    assert balances[1] > 0.1


def test_what_a_shared_pass_cost_settles_nothing_of_rounds_alone() -> None:
    """A plain pass shared by four costs each less; behind it drafts fail in passes of its own."""
    policy = AutoPolicy(Auto(COSTS))
    policy.observe(Round(0, 0, 1, 0.0, GENTLE[3] / 4, 0.0, others=3, beside=3))
    for _ in range(3):
        policy.observe(Round(1, 0, 1, 0.2, GENTLE[1], 0.0))
    before = policy.balance.passes
    policy.observe(Round(0, 0, 1, 0.0, GENTLE[0], 0.0))
    assert policy.balance.passes - before == pytest.approx(RATE)


def test_corrections_are_taken_up_where_they_were_left() -> None:
    costs = RunningCosts(COSTS, 15)
    for drafted in (0, 3, 15, 7):
        costs.observe(Round(drafted, 0, 1, 0.3, 2 * GENTLE[drafted], 0.0), drafted, float(drafted))
    again = RunningCosts(COSTS, 15, costs.corrections)
    assert again.seconds == costs.seconds
    assert again.pass_seconds == costs.pass_seconds == costs.draft_seconds
    assert costs.corrections != Corrections(0.0, 0.0, (0.0,) * 16, 0.0)
