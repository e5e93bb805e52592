"""How many tokens to draft: a fixed number, or the one that pays best by what was measured.

`Auto` maximises Theorem 3.8 (section 3.5), zero included, over the measured cost curve and the
running acceptance rate. Three things are learned from the rounds of the request, the first two
starting from what earlier requests of the pair taught where there were any (`running.Experience`):

acceptance
    Each drafted round adds its accepted tokens as successes and, where one was rejected, one
    failure; the rate is their share (the maximum-likelihood estimate of a geometric length that is
    cut off at the draft length). Older counts are discounted, the assumed ones that it starts from
    too. Rounds without a draft teach nothing.
costs
    The measured curve and draft cost are starting points, corrected on a log scale. A machine that
    is slow for a while slows all passes, and is told apart from drafts that are dear (`drift`).
    After `REFRESH` rounds with drafts one is plain, so that what plain decoding costs is known;
    and before speculation is switched off there is a plain round, too.
balance
    What speculation may still lose. A length whose worst case (nothing accepted) is more than half
    of that is not chosen, nor one of more than that where no shorter one would pay (`balance`).

Switched off, it drafts once more (probes) after enough plain rounds that a failed probe costs at
most `PROBE_RATE` of them; the wait doubles with each failure, up to `MOST_PATIENCE` times. The
very first draft, of all requests that teach each other, waits for the balance alone. Where not even
an acceptance rate of `HOPE` would pay, it does not probe.

A draft model has to read the prompt before its first token, which may cost more than a short answer
gains. It reads where the tokens that are still to come (`answers`) are expected to gain more than
that, and more than if it read later: at first at an acceptance rate of `HOPE`, so that there is
something to learn from. A probe that would have to read waits until that, too, costs at most
`READ_RATE` of the plain rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftproof import theory
from draftproof.core import Prompt, Round
from draftproof.errors import InvalidSetting
from draftproof.planner.answers import Answers
from draftproof.planner.balance import Balance
from draftproof.planner.beliefs import Beliefs
from draftproof.planner.costs import Costs
from draftproof.planner.forks import Forks
from draftproof.planner.guide import Prices, RoundGuide
from draftproof.planner.outlook import Outlook
from draftproof.planner.reading import ReadingTime
from draftproof.planner.running import Experience, RunningCosts
from draftproof.ports import Guide, LengthPolicy

PROBE_RATE = 0.01
READ_RATE = 0.02
MOST_PATIENCE = 4
HOPE = 0.9
REFRESH = 48
FAR = 1 << 20  # tokens: more than any answer has

_UNREAD = "the draft's reading of the prompt would not pay yet"
_WORTH = 1.02  # a speed-up that counts as one, against switching to and fro
_KEEP = 0.95  # what a round leaves of the older counts
_TAUGHT = 1.5  # how many times an assumption's weight the rate of earlier requests has
_PROBED = 3.0  # what a probe leaves of them, in tokens: old news, when a probe is due


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same length in every round.

    Args:
        tokens: The draft length; 0 is plain decoding.
        note: Why, for the account.

    Raises:
        InvalidSetting: It is negative.
    """

    tokens: int
    note: str = ""

    def __post_init__(self) -> None:
        _check("draft length", self.tokens, self.tokens >= 0, "0 or more")

    def begin(self, prompt: Prompt, reproducible: bool = False) -> LengthPolicy:
        """Itself: it learns nothing."""
        return self

    def length(self) -> int:
        """The number."""
        return self.tokens

    def observe(self, round: Round) -> None:
        """Nothing to learn."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the length is what it is, where somebody said."""
        return (self.note,) if self.note else ()


@dataclass(frozen=True, slots=True)
class Auto:
    """The length that pays best, zero included; see the module's text.

    Args:
        costs: What target and drafter cost, as measured.
        limit: The longest draft.
        acceptance: The acceptance rate assumed before the first draft, in (0, 1).
        weight: How many tokens that assumption counts for, above 0.

    Raises:
        InvalidSetting: A value is out of range.
    """

    costs: Costs
    limit: int = 15  # with the token before the draft a pass of 16: a tile of the CPU engine
    acceptance: float = 0.7
    weight: float = 8.0

    def __post_init__(self) -> None:
        _check("limit", self.limit, self.limit >= 1, "1 or more")
        _check("acceptance", self.acceptance, 0 < self.acceptance < 1, "between 0 and 1")
        _check("weight", self.weight, self.weight > 0, "above 0")

    def begin(self, prompt: Prompt, reproducible: bool = False) -> LengthPolicy:
        """A policy that knows nothing of other requests."""
        return STEADY if reproducible else AutoPolicy(self)


class AutoPolicy:
    """One request's running choice.

    `acceptance` is the rate that it goes by, and `balance` what it may still lose.

    Args:
        auto: The settings.
        experience: What earlier requests taught; this one's rounds are added to it.
    """

    def __init__(self, auto: Auto, experience: Experience | None = None) -> None:
        self._limit = auto.limit
        self._experience = experience
        known = None if experience is None else experience.corrections
        self._costs = RunningCosts(auto.costs, auto.limit, known)
        acceptance = auto.acceptance if experience is None else experience.acceptance
        weight = auto.weight
        if experience is not None and experience.tried:
            weight *= _TAUGHT
        self._accepted = acceptance * weight
        self._rejected = (1 - acceptance) * weight
        self.balance = Balance(0.0 if experience is None else experience.gained)
        self._unread = 0.0  # what `guide` was told last
        self._rounds = 0
        self._plain = 0  # rounds since the last draft, while switched off
        self._drafting = 0  # rounds since the last one without a draft
        self._patience = 1
        self._tried = False  # whether anything was drafted yet
        self._reasons: list[str] = []
        self._known_rates: dict[float, list[float]] = {}  # by acceptance
        self._on = True
        self._length = 0
        self._beliefs = Beliefs(None if experience is None else experience.beliefs)
        self._answers = Answers() if experience is None else experience.answers
        self._reading = ReadingTime(self._answers, experience.aided if experience else (0.0, 0.0))
        self._guide: RoundGuide | None = None
        self._forks = Forks(self._beliefs)
        self._choose()
        if experience is not None and experience.tried and not self._on:
            self._tried = True  # by others: the wait for a probe goes on from theirs
            self._plain, self._patience = experience.plain, experience.patience
            self._choose(drafted=False)

    @property
    def acceptance(self) -> float:
        """The acceptance rate by the discounted counts."""
        return self._accepted / (self._accepted + self._rejected)

    @property
    def reasons(self) -> tuple[str, ...]:
        """When and why speculation was switched off and on."""
        return tuple(self._reasons)

    def length(self) -> int:
        """The best affordable length; while switched off 0, or a probe's."""
        return 0 if self._due else self._length

    @property
    def _due(self) -> bool:
        """Whether the next round is plain, to see what that costs now."""
        return self._drafting >= REFRESH or (self._on and self._length == 0)

    def guide(self, branching: bool, room: int = FAR, unread: float = 0.0) -> Guide:
        """Token by token, what is worth drafting in the next round; see `guide`.

        The switch and the probes are for tokens that are paid for before their confidence is known.
        """
        costs = self._costs
        if not self._rounds and self._answers.known:
            self.balance.limit(self._answers.ahead(0, room), costs.worst[1])
        most = self._limit if self._on else self._length
        closed = "" if most else "speculation is switched off"
        self._unread = unread
        if most and not self._reads(room, unread):
            most, closed = 0, _UNREAD
        self._reading.read = unread == 0 or most > 0
        probing = not self._on and most > 0
        seconds = costs.seconds[:1] if self._due else costs.seconds
        free = branching and self._on and most > 0 and not self._due
        ahead = Outlook()
        if free:
            ahead = self._forks.ahead(self.acceptance, costs, self._limit, self._rounds)
        # Without the draft model time earns what plain decoding does, as far as that is known.
        rate = max(self._rate, ahead.rate) if most else 1 / costs.seconds[0]
        risk = self._risk(HOPE if probing else self.acceptance)
        prices = Prices(seconds, costs.draft_seconds, rate, risk, costs.reads)
        self._guide = RoundGuide(
            prices,
            self._beliefs,
            self.acceptance,
            most_paid=most,
            probe=most if probing else 0,
            branching=branching,
            closed=closed,
            outlook=ahead,
            several=free and self._forks.several(),
        )
        return self._guide

    def observe(self, round: Round) -> None:
        """Learn costs, balance and acceptance, and choose the next length."""
        self._rounds += 1
        self._known_rates.clear()
        self._drafting = self._drafting + 1 if round.drafted else 0
        if round.read_seconds and self._unread:
            self._costs.observe_reading(round.read_seconds, self._unread)
        plain = self._costs.plain_seconds
        guide, self._guide = self._guide, None
        paid, units = round.drafted, float(round.drafted)
        if guide is not None and guide.taken:
            paid, units = guide.paid, guide.units
        judged = self._judge(round, guide)
        if round.others:
            self._costs.observe(round, paid, units)
            # What a draft added to a pass that requests share is not measured but priced.
            priced = self._costs.seconds[round.drafted]
            spent = round.draft_seconds + round.verify_seconds + priced
        else:
            spent = self.balance.spent(round, self._costs.of(round.drafted, units))
            self._costs.observe(round, paid, units)
        # Plain decoding loses nothing, whatever it took, but the search for a draft.
        lost = spent if round.drafted else round.draft_seconds
        lost /= self._costs.plain_seconds
        gained = self.balance.observe(round, lost, self._costs.plain_seconds / plain)
        aided = self._reading.observe(lost if round.drafted else 1 + lost, round.emitted)
        if judged is None:
            self._plain += 1
        else:
            self._tried = True
            self._learn(*judged)
        self._choose(drafted=judged is not None)
        if self._experience is not None:
            self._experience.observe(judged, self._costs.corrections, self._patience, gained, aided)

    def _judge(self, round: Round, guide: RoundGuide | None) -> tuple[float, float] | None:
        """(accepted, rejected) of the tokens that were paid for; None where none was.

        Of tokens that a guide was told of, it notes what their confidences meant. Where one of
        several candidates went on, it counts what a single token would have done there.
        """
        if guide is None or not guide.taken:
            rejected = int(round.accepted < round.drafted)
            return (round.accepted, rejected) if round.drafted else None
        counts = [0.0, 0.0]
        judged = zip(guide.taken, round.guesses, strict=True)
        for node, ((source, confidence, blind), guess) in enumerate(judged):
            if guess.p is None:
                continue
            self._beliefs.learn(source, confidence, guess.kept)
            if blind:
                alone = guide.sets[node].alone if node in guide.sets else float(guess.kept)
                counts[0] += alone
                counts[1] += 1 - alone
        if not guide.paid:
            return None
        self._forks.observe(round, guide)
        return counts[0], counts[1]

    def _reads(self, room: int, unread: float) -> bool:
        """Whether the draft is to read the prompt, where it has to.

        Args:
            room: Most tokens that may follow.
            unread: As in `guide`.
        """
        plain = self._costs.seconds[0]
        if not unread:
            return True
        price = self._costs.reading(unread) / plain
        known = self._experience is not None and self._experience.tried
        if not self._on and (known or self._tried):
            return self._plain * READ_RATE >= price * self._patience
        if known or self._tried:
            return self._reading.pays(room, price, 1 / (self._rate * plain))
        return self._reading.gains(room, price, 1 / (self._earns(HOPE) * plain))

    def close(self, ended: bool) -> None:
        """The request is over: its answer's length is known, where it was not cut off."""
        self._reading.close(ended)

    def _learn(self, accepted: float, rejected: float) -> None:
        keep = _KEEP
        if not self._on:
            keep = min(keep, _PROBED / (self._accepted + self._rejected))
        self._accepted = keep * self._accepted + accepted
        self._rejected = keep * self._rejected + rejected

    def _choose(self, drafted: bool = True) -> None:
        """Set the next length, switching off and on where that follows."""
        self._rate = self._earns(self.acceptance)
        if self._on:
            self._length = self._best(self.acceptance, self._affordable(self.acceptance))
            if self._length == 0 and not self._drafting:
                self._switch_off()
        elif drafted:  # a probe came back
            self._length = self._best(self.acceptance, self._affordable(self.acceptance))
            if self._length > 0:
                self._switch_on()
            else:
                self._patience = min(2 * self._patience, MOST_PATIENCE)
                self._plain = 0
        else:
            self._length = self._probe()

    def _rates(self, acceptance: float) -> list[float]:
        """Tokens per second at each length, worked out once for what is known now."""
        rates = self._known_rates.get(acceptance)
        if rates is None:
            seconds, draft_seconds = self._costs.seconds, self._costs.draft_seconds
            rates = theory.rates(acceptance, self._limit, lambda n: seconds[n - 1], draft_seconds)
            self._known_rates[acceptance] = rates
        return rates

    def _best(self, acceptance: float, limit: int) -> int:
        """The best length up to `limit`; 0 where none is worth it."""
        rates = self._rates(acceptance)
        best = max(rates[: limit + 1])
        return rates.index(best) if best >= _WORTH * rates[0] else 0

    def _earns(self, acceptance: float) -> float:
        """Tokens per second at the best length that there is, affordable now or not."""
        return self._rates(acceptance)[self._best(acceptance, self._limit)]

    def _affordable(self, acceptance: float) -> int:
        """The longest length whose worst case may be risked."""
        worst, risk = self._costs.worst, self._risk(acceptance)
        return next((n for n in range(self._limit, 0, -1) if worst[n] <= risk), 0)

    def _risk(self, acceptance: float) -> float:
        """Most plain passes that the next draft may lose."""
        plain, *drafting = self._rates(acceptance)
        pays = next((n for n, rate in enumerate(drafting, 1) if rate >= _WORTH * plain), 1)
        return self.balance.risk(self._costs.worst[pays])

    def _probe(self) -> int:
        """The length of a probe if one is due and affordable, else 0."""
        length = self._best(HOPE, self._affordable(HOPE))
        wait = self._costs.worst[length] / PROBE_RATE * self._patience
        return length if self._plain >= wait or not self._tried else 0

    def _switch_off(self) -> None:
        self._on = False
        self._plain = 0
        self._patience = 1
        costs = self._costs
        draft = costs.draft_seconds / costs.seconds[0]
        more = costs.seconds[1] / costs.seconds[0] - 1
        price = f"a token costs {draft:.2f} plain passes to draft and {more:.2f} to score"
        if self._best(HOPE, self._limit) == 0:
            why = f"even good drafts do not pay where {price}"
        elif self._best(self.acceptance, self._limit) > 0:
            lost, left = self.balance.lost, max(self.balance.passes, 0.0)
            why = f"it is {lost:.1f} plain passes behind plain decoding, may lose {left:.1f} more"
        else:
            why = f"acceptance {self.acceptance:.2f} does not pay where {price}"
        self._reasons.append(f"speculation switched off {self._when()}: {why}")

    def _switch_on(self) -> None:
        self._on = True
        self._reasons.append(
            f"speculation switched on {self._when()}: acceptance {self.acceptance:.2f} in a probe"
        )

    def _when(self) -> str:
        return f"after round {self._rounds}" if self._rounds else "before the first round"


def _check(name: str, value: int | float, holds: bool, allowed: str) -> None:
    if not holds:
        raise InvalidSetting(
            f"{name} is {value}",
            why="the draft length is chosen from it",
            remedy=f"set {name} to {allowed}",
        )


STEADY = Fixed(
    4,
    "draft length 4 throughout: under this rule a seeded text depends on the draft lengths, and "
    "lengths chosen by the clock would not be reproducible",
)
