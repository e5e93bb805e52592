"""What is learned while requests run: what rounds really cost, and what earlier requests taught."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from draftproof.core import Round
from draftproof.planner.answers import Answers, Spans
from draftproof.planner.beliefs import Beliefs, Counts
from draftproof.planner.costs import Costs
from draftproof.planner.drift import Drift

_STEP = 0.1  # how much of a surprise in cost is its size's own
_PLAIN_STEP = 0.25  # how much of one in a plain round the guard believes
_READ_STEP = 0.5  # the same of reading, which is seen once in a request
_SURPRISE = 0.5  # the largest surprise, in natural logarithms
MOST_GAINED = 10.0  # plain passes: old gains cannot pay for long losses
_LEVEL = 8.0  # drafted tokens that count as met before any, with nothing to catch up on
_CLOSER = 0.97  # what a round leaves of what was caught up on before
_KEEP = 0.98  # what a drafted round leaves of the counts of older ones, over all requests


@dataclass(frozen=True, slots=True)
class Corrections:
    """How far costs were off, as logarithms.

    Args:
        all: Of all sizes.
        more: What a pass with drafts costs above a plain one.
        own: Of each size besides.
        draft: A drafted token.
        read: The draft's reading of a text, against the target's.
    """

    all: float
    more: float
    own: tuple[float, ...]
    draft: float
    read: float = 0.0


@dataclass(frozen=True, slots=True)
class Taught:
    """What the requests of a pair have taught, as it is kept.

    Args:
        accepted: The discounted count of accepted tokens that were paid for, above 0.
        rejected: The same of rejected ones.
        corrections: How far costs were off.
        tried: Whether anything was drafted yet.
        plain: Rounds since the last draft.
        patience: With failing probes.
        beliefs: What confidences meant, by source.
        answers: How long answers were.
        gained: By speculation over plain decoding, in plain passes, up to a bound.
        aided: What rounds that a model could draft in took, in plain passes, and their tokens.
    """

    accepted: float
    rejected: float
    corrections: Corrections
    tried: bool
    plain: int
    patience: int
    beliefs: Mapping[str, Counts]
    answers: Spans
    gained: float
    aided: tuple[float, float]


class RunningCosts:
    """Costs that follow what rounds really take.

    `seconds[n]` are those of a round's pass over n drafted tokens and the one before them, with the
    decision after it; `worst[n]` is what such a round loses where nothing is accepted, in plain
    passes; n counts to the longest draft. `plain_seconds` are those of a plain round by plain
    rounds alone: what the guard compares with. `reads[n - 1]` is what a draft's pass that reads n
    tokens costs, in such passes that read one: as much more as the target's. `pass_seconds` are
    those of one that reads one, and `draft_seconds` of a drafted token: where others' tokens leave
    a draft model behind, what it has to read is spread over its own tokens, in this request alone.

    Where requests share a pass, a plain round costs this one its share of a pass over one token of
    each, and a draft costs what it adds to the pass, by the same curve.

    Args:
        costs: As measured.
        limit: The longest draft.
        known: What earlier requests taught.
    """

    def __init__(self, costs: Costs, limit: int, known: Corrections | None = None) -> None:
        taught = known is not None
        self._curve = costs.curve
        self._measured = [costs.curve(n) for n in range(1, limit + 2)]
        self._limit = limit
        self._measured_draft = costs.draft_seconds
        self.reads = [seconds / self._measured[0] for seconds in self._measured]
        known = known or Corrections(0.0, 0.0, (0.0,) * (limit + 1), 0.0)
        self._drift = Drift((known.all, known.more, known.draft), taught)
        self._plain = known.all  # of plain passes alone
        self._own, self._read = list(known.own), known.read
        self._others = self._beside = 0
        self._caught_up = 0.0, 0.0  # tokens that were paid for, and their units as in `observe`
        self._refresh()

    @property
    def corrections(self) -> Corrections:
        """What was learned so far."""
        everything, more, draft = self._drift.means
        return Corrections(everything, more, tuple(self._own), draft, self._read)

    def observe(self, round: Round, paid: int, units: float) -> None:
        """Correct the curve, and the draft's cost where tokens were paid for.

        Args:
            round: What happened.
            paid: Drafted tokens that a draft's cost was due for; others come for nothing.
            units: What these cost, in passes of the draft that read one token.
        """
        self._others, self._beside = round.others, round.beside
        self._drift.wander()
        if paid:
            seconds = round.draft_seconds / units
            self._drift.learn(_surprise(seconds, self._draft_pass()), draft=1.0)
        if round.others:
            tokens = round.scored + round.beside
            seconds = round.score_seconds * tokens / round.scored  # of the whole pass
            expected = self._curve(tokens) * math.exp(self._drift.means[0])
            self._drift.learn(_surprise(seconds, expected))
            self._plain = self._drift.means[0]
        else:
            self._learn(round.drafted, round.score_seconds + round.verify_seconds)
        before, took = self._caught_up
        self._caught_up = _CLOSER * before + paid, _CLOSER * took + units
        self._refresh()

    def _learn(self, drafted: int, seconds: float) -> None:
        """Some of a surprise is this size's own; the rest is the machine's, or all drafts'.

        What is shared is what passes cost above a plain one, as far as this one does: a long draft
        that was dear says little of a short one, and a short one nothing of a long one.
        """
        alone = self._alone()
        expected = alone[drafted]
        surprise = _surprise(seconds, expected)
        if drafted == 0:
            self._plain += _PLAIN_STEP * _surprise(seconds, self.plain_seconds)
            self._drift.learn(surprise)
            return
        self._drift.learn(surprise, more=max(1 - alone[0] / expected, 0.0))
        self._own[drafted] += _STEP * surprise

    def reading(self, unread: float) -> float:
        """Seconds that the draft takes to read what the target takes `unread` seconds for.

        Until it was seen to read, as much less as its passes take. But those are a matter of
        memory, and reading is one of arithmetic.
        """
        return unread * self.pass_seconds / self.seconds[0] * math.exp(self._read)

    def observe_reading(self, seconds: float, unread: float) -> None:
        """Learn from a reading that took so long."""
        self._read += _READ_STEP * _surprise(seconds, self.reading(unread))

    def of(self, drafted: int, units: float) -> float:
        """Seconds that a round with so many drafted tokens should take.

        Args:
            drafted: Their number.
            units: As for `observe`.
        """
        return units * self.pass_seconds + self.seconds[drafted]

    def _draft_pass(self) -> float:
        everything, _, draft = self._drift.means
        return self._measured_draft * math.exp(everything + draft)

    def _alone(self) -> list[float]:
        everything, more = map(math.exp, self._drift.means[:2])
        plain = self._measured[0]
        return [
            (plain + (seconds - plain) * more) * everything * math.exp(own)
            for seconds, own in zip(self._measured, self._own, strict=True)
        ]

    def _shared(self) -> list[float]:
        requests, tokens = self._others + 1, self._beside + 1
        plain, beside = self._curve(requests) / requests, self._curve(tokens)
        everything = math.exp(self._drift.means[0])
        return [
            (plain + self._curve(tokens + drafted) - beside) * everything
            for drafted in range(self._limit + 1)
        ]

    def _refresh(self) -> None:
        self.pass_seconds = self._draft_pass()
        tokens, passes = self._caught_up
        self.draft_seconds = self.pass_seconds * (_LEVEL + passes) / (_LEVEL + tokens)
        self.seconds = self._shared() if self._others else self._alone()
        alone = self._measured[0] * math.exp(self._plain)
        self.plain_seconds = self.seconds[0] if self._others else alone
        self.worst = [
            max((drafted * self.draft_seconds + seconds) / self.seconds[0] - 1, 0.0)
            for drafted, seconds in enumerate(self.seconds)
        ]


class Experience:
    """What the requests of a pair have taught, for the next one to start from.

    Requests may run at the same time, in threads of their own.

    Args:
        acceptance: The acceptance rate assumed before the first draft.
        weight: How many tokens that assumption counts for.
        known: What was taught before, in place of the assumption.
    """

    def __init__(self, acceptance: float, weight: float, known: Taught | None = None) -> None:
        self._accepted = acceptance * weight if known is None else known.accepted
        self._rejected = (1 - acceptance) * weight if known is None else known.rejected
        self._corrections = None if known is None else known.corrections
        self._gained = 0.0 if known is None else known.gained
        self._aided = (0.0, 0.0) if known is None else known.aided
        self._lock = Lock()
        self.beliefs = Beliefs(known=None if known is None else known.beliefs)
        self.answers = Answers(None if known is None else known.answers)
        # Whether anything was drafted yet, rounds since the last draft, and the patience of the
        # latest request.
        self.tried = known is not None and known.tried
        self.plain = 0 if known is None else known.plain
        self.patience = 1 if known is None else known.patience

    @property
    def acceptance(self) -> float:
        """The acceptance rate by the discounted counts of all requests."""
        with self._lock:
            return self._accepted / (self._accepted + self._rejected)

    @property
    def gained(self) -> float:
        """By speculation over plain decoding, in plain passes; at most `MOST_GAINED`."""
        with self._lock:
            return self._gained

    @property
    def aided(self) -> tuple[float, float]:
        """What rounds took that a model could draft in, in plain passes, and their tokens.

        Older ones count less.
        """
        with self._lock:
            return self._aided

    @property
    def corrections(self) -> Corrections | None:
        """The costs that the latest round of any request left."""
        with self._lock:
            return self._corrections

    @property
    def taught(self) -> Taught | None:
        """What is to be kept; None before the first round."""
        beliefs, answers = self.beliefs.counts, self.answers.counts
        with self._lock:
            if self._corrections is None:
                return None
            return Taught(
                self._accepted,
                self._rejected,
                self._corrections,
                self.tried,
                self.plain,
                self.patience,
                beliefs,
                answers,
                self._gained,
                self._aided,
            )

    def observe(
        self,
        judged: tuple[float, float] | None,
        corrections: Corrections,
        patience: int,
        gained: float = 0.0,
        aided: tuple[float, float] | None = None,
    ) -> None:
        """Learn from a round of any request.

        Args:
            judged: Of the tokens that were paid for, how many were accepted and how many rejected;
                None where there were none.
            corrections: What is known of costs now.
            patience: The request's with failing probes.
            gained: Plain passes.
            aided: What the round took, in plain passes, and its tokens, where a model could draft.
        """
        with self._lock:
            self._gained = min(self._gained + gained, MOST_GAINED)
            if aided is not None:
                passes, tokens = self._aided
                self._aided = _KEEP * passes + aided[0], _KEEP * tokens + aided[1]
            self._corrections, self.patience = corrections, patience
            self.plain = self.plain + 1 if judged is None else 0
            if judged is not None:
                self.tried = True
                accepted, rejected = judged
                self._accepted = _KEEP * self._accepted + accepted
                self._rejected = _KEEP * self._rejected + rejected


def _surprise(seconds: float, expected: float) -> float:
    """The logarithm of how far off a cost was, clipped; 0 where there is no such number."""
    if seconds <= 0 or expected <= 0:
        return 0.0
    return min(max(math.log(seconds / expected), -_SURPRISE), _SURPRISE)
