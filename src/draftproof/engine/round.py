"""The one loop body: draft, score, verify and rewind, over every request that is still running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from draftproof.core import Draft, Guess, Law, LogitRow, Logits, Round, Token, Verdict
from draftproof.engine.request import Running
from draftproof.errors import BadLogits, InvalidInput
from draftproof.ports import Batching, Guide, Model, Pass, Proposer
from draftproof.rng import Chooser, Independent
from draftproof.sampling import log_softmax
from draftproof.verify import block, coupled, token, tree


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One request's part of a round, as far as it is drafted."""

    running: Running
    proposer: Proposer | None
    stream: Chooser
    draft: Draft
    seconds: float
    stopped: str = ""
    read_seconds: float = 0.0


def play_round(live: Sequence[Running]) -> None:
    """Advance each request by one round: 1 to draft length + 1 tokens.

    Raises:
        BadLogits: The target's logits hold NaN or infinity.
        InvalidInput: A drafter broke its contract.
    """
    read(live)
    turns = [propose(running) for running in live]
    for turn, scored in zip(turns, score(turns), strict=True):
        started = perf_counter()
        logits = scored.logits
        laws = TargetLaws(turn, logits)
        verdict = judge(turn, laws)
        if turn.proposer is not None:
            turn.proposer.observe(verdict)
        tokens = emit(turn, laws, verdict, logits)
        account = Round(
            drafted=len(turn.draft),
            accepted=verdict.accepted,
            emitted=len(tokens),
            draft_seconds=turn.seconds,
            score_seconds=scored.seconds,
            verify_seconds=perf_counter() - started,
            others=scored.others,
            beside=scored.beside,
            guesses=guesses(turn, laws, verdict),
            stopped=turn.stopped,
            read_seconds=turn.read_seconds,
        )
        rows = () if turn.draft.chain else (0, *(node + 1 for node in verdict.path))
        turn.running.commit(tokens, account, rows)


def propose(running: Running) -> Turn:
    """The drafter's guess, held to its contract.

    Raises:
        InvalidInput: Too many tokens, or one that its own law excludes.
    """
    stream = running.stream()
    guide = running.guide()
    limit = running.draft_limit(guide)
    proposer = running.proposer(limit)
    guided = running.guided
    if guided is None:  # then the policy's word counts
        guide, limit = None, running.draft_limit(None)
    if proposer is None or limit < 1:
        return Turn(running, None, stream, Draft(), 0.0)
    started, read = perf_counter(), running.draft_read_seconds
    if guide is not None and guided is not None:
        draft = guided.follow(running.output, limit, stream, guide)
    else:
        draft = proposer.draft(running.output, limit, stream)
    seconds, read = perf_counter() - started, running.draft_read_seconds - read
    running.prefill_seconds += read
    check_draft(draft, limit, guide)
    stopped = why_stopped(draft, limit, guide)
    return Turn(running, proposer, stream, draft, seconds - read, stopped, read)


def why_stopped(draft: Draft, limit: int, guide: Guide | None) -> str:
    """Why the draft is not longer."""
    if guide is not None and guide.stopped:
        return guide.stopped
    return "the draft length" if draft.depth >= limit else "nothing more to draft"


def check_draft(draft: Draft, limit: int, guide: Guide | None) -> None:
    """Hold a draft to the drafters' contract.

    Raises:
        InvalidInput: Too many tokens, one that its own law excludes, or a tree that was not asked
            for.
    """
    possible = all(law.prob(x) > 0 for x, law in zip(draft.tokens, draft.laws, strict=True))
    if draft.depth > limit or not possible:
        raise InvalidInput(
            f"a drafter returned the tokens {draft.tokens}, where at most {limit} were due, "
            "each of positive probability under its own law",
            why="the output's law is the target's only if every token was drawn from its law",
            remedy="correct the drafter; its contract is in docs/adding-a-drafter.md",
        )
    tree = guide is not None and guide.branching and len(draft) <= guide.nodes
    if not (draft.chain or tree):
        raise InvalidInput(
            "a drafter returned a tree where a chain, or a smaller tree, was due",
            why="the target could not score it, or its pass would cost more than was planned",
            remedy="ask the guide's `branching` and `nodes` first; see docs/adding-a-drafter.md",
        )


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """One request's part of the target's pass.

    `seconds` is its share, in proportion to tokens; `others` and `beside` as in `core.Round`.
    """

    logits: Logits
    seconds: float
    others: int = 0
    beside: int = 0


def read(live: Sequence[Running]) -> None:
    """Score what is unread of the prompts, all of them but their last tokens, in common passes."""
    new = [running for running in live if running.unread]
    parts = [(r.target, Pass(r.session, r.unread, keep=0)) for r in new]
    for running, scored in zip(new, passes(parts), strict=True):
        running.prefill_seconds += scored.seconds
        running.read_seconds += scored.seconds


def score(turns: Sequence[Turn]) -> list[Scored]:
    """The target's one pass over every request's last token and draft."""
    return passes(
        [
            (
                turn.running.target,
                Pass(
                    turn.running.session,
                    (turn.running.last, *turn.draft.tokens),
                    keep=len(turn.draft) + 1,
                    parents=rows_above(turn.draft),
                ),
            )
            for turn in turns
        ]
    )


def rows_above(draft: Draft) -> tuple[int, ...]:
    """The rows that a tree's rows follow in the pass, the first being the last committed token."""
    if draft.chain:
        return ()
    return (-1, *(parent + 1 for parent in draft.parents))


def passes(parts: Sequence[tuple[Model, Pass]]) -> list[Scored]:
    """Score each part: those of a model that can batch in one pass, others one after another."""
    by_model: dict[int, list[int]] = {}
    for index, (model, _) in enumerate(parts):
        by_model.setdefault(id(model), []).append(index)
    scored: dict[int, Scored] = {}
    for indices in by_model.values():
        model = parts[indices[0]][0]
        members = [parts[index][1] for index in indices]
        if len(members) > 1 and isinstance(model, Batching):
            made = together(model, members)
        else:
            made = [alone(part) for part in members]
        scored.update(zip(indices, made, strict=True))
    return [scored[index] for index in range(len(parts))]


def alone(part: Pass) -> Scored:
    """A pass of one session's own."""
    started = perf_counter()
    if part.parents:
        logits = part.session.score_tree(part.tokens, part.parents)  # type: ignore[attr-defined]
    else:
        logits = part.session.score(part.tokens, part.keep)
    return Scored(logits, perf_counter() - started)


def together(model: Batching, parts: Sequence[Pass]) -> list[Scored]:
    """One pass over several sessions."""
    started = perf_counter()
    rows = model.score_together(parts)
    seconds = perf_counter() - started
    total = sum(len(part.tokens) for part in parts)
    return [
        Scored(
            logits,
            seconds * len(part.tokens) / total,
            others=len(parts) - 1,
            beside=total - len(part.tokens),
        )
        for part, logits in zip(parts, rows, strict=True)
    ]


class TargetLaws(Sequence[Law]):
    """The target's law at every drafted position and behind the last, made when a rule asks.

    Behind a rejected token no law is needed, nor might there be one: a ban may leave nothing there.

    Args:
        turn: What was drafted.
        logits: The target's, row i + 1 after the i-th drafted token.

    Raises:
        BadLogits: They hold NaN or infinity.
    """

    def __init__(self, turn: Turn, logits: Logits) -> None:
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            position = len(turn.running.output) + int(np.argmin(finite))
            raise BadLogits(
                f"the target's logits at output position {position} hold NaN or infinity",
                why="no law over tokens follows from them",
                remedy="check the weights, or run the model in float32 (--dtype float32)",
            )
        self._standardiser = turn.running.standardiser
        self._output = turn.running.output
        self._draft = turn.draft
        self._logits = logits
        self._made: dict[int, Law] = {}

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, index: Any) -> Any:
        """The law after the drafted tokens up to number `index`, counting from 1."""
        if index not in self._made:
            path = self._draft.path(index - 1)
            before = [*self._output, *(self._draft.tokens[node] for node in path)]
            self._made[index] = self._standardiser.law(self._logits[index], before)
        return self._made[index]

    @property
    def made(self) -> Mapping[int, Law]:
        """Those that a rule has asked for."""
        return self._made


def judge(turn: Turn, laws: Sequence[Law]) -> Verdict:
    """Apply the request's rule; certain drafts are kept while equal, whatever the rule.

    A draft that might have become a tree is judged as one even where it is a chain: the choice of
    the rule must not depend on what was drawn.
    """
    if turn.draft.certain or not isinstance(turn.stream, Independent):
        return coupled(turn.draft, laws, turn.stream)
    if turn.draft.parents:
        return tree(turn.draft, laws, turn.stream)
    rule = token if turn.running.rule == "token" else block
    return rule(turn.draft, laws, turn.stream)


def emit(turn: Turn, laws: Sequence[Law], verdict: Verdict, logits: Logits) -> list[Token]:
    """The round's tokens with their account."""
    running, draft = turn.running, turn.draft
    chosen = [*((draft.tokens[node], node) for node in verdict.path), (verdict.token, None)]
    tokens, row = [], 0
    for i, (token_id, node) in enumerate(chosen):
        logprob, top = report_logprobs(logits[row], token_id, running.request.logprobs)
        tokens.append(
            Token(
                id=token_id,
                position=len(running.output) + i,
                round=len(running.rounds),
                origin=verdict.kind if node is None else "accepted",
                p=float(laws[row].prob(token_id)),
                q=chance(draft, row - 1, token_id),
                logprob=logprob,
                top_logprobs=top,
                source="" if node is None else source_of(turn, node),
            )
        )
        row = row if node is None else node + 1
    return tokens


def chance(draft: Draft, node: int, token: int) -> float | None:
    """The draft's probability of `token` behind `node`; None where it drafted nothing there."""
    laws = [draft.laws[child] for child in draft.children(node)]
    return float(max(law.prob(token) for law in laws)) if laws else None


def source_of(turn: Turn, node: int) -> str:
    """What drafted the token."""
    return turn.draft.sources[node] if turn.draft.sources else turn.running.drafter_name


def guesses(turn: Turn, laws: TargetLaws, verdict: Verdict) -> tuple[Guess, ...]:
    """The drafted tokens one by one."""
    draft = turn.draft
    made = laws.made
    kept = set(verdict.path)
    told = []
    for node, (token_id, law) in enumerate(zip(draft.tokens, draft.laws, strict=True)):
        parent = draft.parent(node)
        p = float(made[parent + 1].prob(token_id)) if parent + 1 in made else None
        told.append(
            Guess(
                id=token_id,
                parent=parent,
                source=source_of(turn, node),
                q=float(law.prob(token_id)),
                p=p,
                kept=node in kept,
            )
        )
    return tuple(told)


def report_logprobs(
    logits: LogitRow, chosen: int, count: int | None
) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    """The target's own log-probability of `chosen`, and its `count` most probable tokens."""
    if count is None:
        return None, ()
    logs = log_softmax(logits)
    if count == 0:
        return float(logs[chosen]), ()
    count = min(count, len(logs))
    likely = np.flatnonzero(logs >= np.partition(logs, -count)[-count])
    order = likely[np.argsort(-logs[likely], kind="stable")][:count]
    return float(logs[chosen]), tuple((int(i), float(logs[i])) for i in order)
