"""Is speculation exact on this pair, with these settings? Three tests on the user's own models.

`greedy`
    Speculative ids equal plain ids at several draft lengths, and with trees (`bold`) where the
    target can score them. A runtime may round differently in passes over different numbers of
    tokens, and where plain's two best tokens are that close, the choice may flip. How close is
    measured (`rounding`), not assumed.
`self_draft`
    The target as its own draft: p is q up to that rounding, so everything is accepted.
`output_law`
    The law of what the engine emits, token by token, against the target's (`output_law`): for each
    rule, and for the one that judges trees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from draftproof.bench.bold import Bold
from draftproof.bench.finding import Finding, Status
from draftproof.bench.law_test import ALPHA
from draftproof.bench.memo import MemoModel
from draftproof.bench.output_law import TEST, output_law
from draftproof.bench.rounding import Margins, Rounding, measure_rounding
from draftproof.core import Round, Rule, shared_length
from draftproof.drafters import DraftModel
from draftproof.engine import Generation, Request, Running, decode
from draftproof.planner import Fixed
from draftproof.ports import Branching, Drafter, Model
from draftproof.sampling import Sampling

LENGTHS = (1, 3, 7)  # draft lengths of the greedy test
GREEDY_TOKENS = 24
SELF_TOKENS = 16
SELF_PROMPTS = 2
LAW_LENGTH = 3  # long enough for every rule to look behind a rejection
TREE = "tree"
SELF_ALPHA = 1e-3  # probability that rounding alone rejects more self-drafts than are allowed


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an output leaves plain decoding's, at a draft length or with a "tree".

    `margin` is how far plain's token is ahead of the one that was chosen, in log-probability.
    """

    prompt: int
    draft_length: int | str
    position: int
    margin: float


@dataclass(slots=True)
class Check:
    """The tests of one pair with one set of sampling settings.

    Args:
        target: The target.
        drafter: What drafts for it.
        requests: One per prompt; their limits and seeds are replaced.
        rules: Rules whose output is tested where sampling is on.
        lengths: Draft lengths of the greedy test, for which the rounding is measured, too.
        law_length: Draft length of the law test.
        budget: Most seconds that the law test may take, over all rules.
    """

    target: Model
    drafter: Drafter
    requests: Sequence[Request]
    rules: Sequence[Rule]
    lengths: Sequence[int] = LENGTHS
    law_length: int = LAW_LENGTH
    budget: float = 600.0
    memo: MemoModel = field(init=False)
    rounding: Rounding = field(init=False)
    trees: int = field(init=False, default=0)  # that the greedy test met

    def __post_init__(self) -> None:
        self.memo = MemoModel(self.target)

    def run(self) -> Iterator[Finding]:
        """The findings, as they come."""
        try:
            yield self.greedy()
            yield self.self_draft_greedy()
            if self._sampling.temperature == 0:
                yield Finding(
                    TEST,
                    "skipped",
                    "at temperature 0 the target's law is one certain token, so that equality "
                    "with plain decoding is the whole of it",
                )
                return
            for rule in self.rules:
                yield self.self_draft_sampled(rule)
            for rule in self.rules:
                yield self.output_law(rule)
            if self.trees:
                yield self.output_law(self.rules[0], trees=True)
        finally:
            self.memo.close()

    @property
    def _sampling(self) -> Sampling:
        return self.requests[0].sampling

    def greedy(self) -> Finding:
        """Speculative ids against plain ids, and how differently passes round."""
        requests = self._greedy_requests(GREEDY_TOKENS)
        plain = [self._play(request, self.memo, None, 0).token_ids for request in requests]
        seen = [Margins(self.memo, request, self._sampling) for request in requests]
        self.rounding = Rounding()
        passes = sum(
            measure_rounding(self.rounding, self.target, margins, ids, length + 1)
            for margins, ids in zip(seen, plain, strict=True)
            for length in self.lengths
        )
        differences = []
        lengths: list[int | str] = [*self.lengths, TREE]
        for length in lengths:
            for prompt, (request, ids) in enumerate(zip(requests, plain, strict=True)):
                if length == TREE and not self._branches(request):
                    continue
                run = self._play(request, self.target, self.drafter, length)
                passes += run.stats.rounds
                self.trees += sum(map(is_tree, run.rounds))
                at = first_difference(ids, run.token_ids)
                if at is not None:
                    chosen = run.token_ids[at] if at < len(run.token_ids) else None
                    margin = seen[prompt].margin(ids[:at], chosen)
                    differences.append(Difference(prompt, length, at, margin))
        passes += self.memo.passes
        return self._greedy_finding(differences, sum(map(len, plain)), passes)

    def _branches(self, request: Request) -> bool:
        """Whether the target can score a tree."""
        session = self.target.open(request.prompt)
        try:
            return isinstance(session, Branching)
        finally:
            session.close()

    def _greedy_finding(
        self, differences: Sequence[Difference], tokens: int, passes: int
    ) -> Finding:
        rounding = self.rounding
        ties = [d for d in differences if d.margin <= rounding.tolerance]
        wrong = [d for d in differences if d.margin > rounding.tolerance]
        lengths = ", ".join(map(str, self.lengths))
        if self.trees:
            lengths += f", and with {_counted(self.trees, 'tree')}"
        line = f"{tokens} tokens of {_counted(len(self.requests), 'prompt')} at draft "
        line += f"lengths {lengths}: " if len(self.lengths) > 1 else f"length {lengths}: "
        if wrong:
            first = wrong[0]
            line += (
                f"{len(wrong)} outputs differ from plain decoding, the first at prompt "
                f"{first.prompt}, position {first.position} (margin {first.margin:.3g})"
            )
        else:
            line += "equal to plain decoding"
        if ties:
            margins = ", ".join(f"margin {tie.margin:.3g}" for tie in ties)
            line += f" but for near-ties ({margins})"
        details = {
            "tokens": tokens,
            "trees": self.trees,
            "different": [asdict(difference) for difference in wrong],
            "near_ties": [asdict(tie) for tie in ties],
            "target_passes": passes,
            "rounding": rounding.to_json(),
        }
        status: Status = "pass" if rounding.plausible and not wrong else "fail"
        line += f"; {rounding.describe()}; {passes} target passes"
        return Finding("greedy equality", status, line, details)

    def self_draft_greedy(self) -> Finding:
        """Greedy, the target drafts for itself: only near-ties may be rejected."""
        accepted = rejected = ties = 0
        for request in self._greedy_requests(SELF_TOKENS)[:SELF_PROMPTS]:
            run = self._play(request, self.target, self._self_drafter(), self.law_length)
            margins = Margins(self.memo, request, self._sampling)
            for i, token in enumerate(run.tokens):
                accepted += token.origin == "accepted"
                if token.origin == "residual":
                    near = margins.margin(run.token_ids[:i]) <= self.rounding.tolerance
                    ties += near
                    rejected += not near
        line = f"greedy: {accepted} of {accepted + rejected + ties} self-drafted tokens accepted"
        if ties:
            line += f", {ties} rejected at near-ties"
        if rejected:
            line += f", {rejected} rejected beyond what rounding explains"
        details = {"accepted": accepted, "rejected": rejected, "near_ties": ties}
        return Finding("self-draft", "fail" if rejected else "pass", line, details)

    def self_draft_sampled(self, rule: Rule) -> Finding:
        """Sampling, the target drafts for itself: as many rejections as rounding makes likely.

        A self-drafted token is rejected with probability TV(p, q) by the rejection rules, and at
        most 2 TV / (1 + TV) by `coupled`. TV comes from the rounding measured at a few places, so
        twice the larger rate is allowed for.
        """
        accepted = rejected = 0
        for request in self._sampled_requests(SELF_TOKENS)[:SELF_PROMPTS]:
            seeded = replace(request, seed=0, rule=rule)
            run = self._play(seeded, self.target, self._self_drafter(), self.law_length)
            accepted += sum(token.origin == "accepted" for token in run.tokens)
            rejected += sum(token.origin == "residual" for token in run.tokens)
        tried = accepted + rejected
        allowed = binomial_limit(tried, min(1.0, 4 * self.rounding.law_distance), SELF_ALPHA)
        line = (
            f"{rule}: {accepted} of {tried} self-drafted tokens accepted; rounding moves the law "
            f"by {self.rounding.law_distance:.2g} on average, which explains up to {allowed} "
            "rejections"
        )
        details = {"rule": rule, "accepted": accepted, "rejected": rejected, "allowed": allowed}
        return Finding("self-draft", "fail" if rejected > allowed else "pass", line, details)

    def output_law(self, rule: Rule, trees: bool = False) -> Finding:
        """The sequential test of one rule, with its share of the budget and of the false alarms.

        With trees, the rule for several candidates takes the place of `token` and `block`.
        """
        share = len(self.rules) + (self.trees > 0)
        length = self.law_length
        return output_law(
            self.memo,
            self.drafter,
            self._sampled_requests(length + 1),
            rule,
            lengths=Bold(length) if trees else Fixed(length),
            name=f"{rule}, with trees" if trees else rule,
            budget=self.budget / share,
            alpha=ALPHA / share,
        )

    def _play(
        self, request: Request, target: Model, drafter: Drafter | None, length: int | str
    ) -> Generation:
        lengths = Fixed(length) if isinstance(length, int) else Bold(self.law_length)
        running = Running(request, target, None, drafter, lengths)
        for _ in decode([running]):
            pass
        return Generation.of(running)

    def _self_drafter(self) -> Drafter:
        return DraftModel(self.target, self.target.vocab_size)

    def _greedy_requests(self, tokens: int) -> list[Request]:
        """The prompts at temperature 0, every other setting as it is."""
        cold = replace(self._sampling, temperature=0.0)
        return [replace(r, sampling=cold) for r in self._sampled_requests(tokens)]

    def _sampled_requests(self, tokens: int) -> list[Request]:
        return [
            replace(r, limits=replace(r.limits, max_tokens=tokens, min_tokens=0, stop=()))
            for r in self.requests
        ]


def is_tree(round: Round) -> bool:
    """Whether several of a round's drafted tokens followed the same one."""
    parents = [guess.parent for guess in round.guesses]
    return len(set(parents)) < len(parents)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first position where two outputs differ, ends included; None where they are equal."""
    shared = shared_length(a, b)
    return None if shared == len(a) == len(b) else shared


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def binomial_limit(trials: int, rate: float, tail: float) -> int:
    """The fewest successes that more than so many have a probability of at most `tail`."""
    mass, k = 0.0, -1
    while k < trials and mass < 1 - tail:
        k += 1
        mass += math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k)
    return max(k, 0)
