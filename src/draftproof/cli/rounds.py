"""An output's rounds as `--explain` tells them: each drafted token, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftproof.core import Guess, Round, Token
from draftproof.engine import Generation
from draftproof.ports import Tokenizer
from draftproof.text.detokenize import BROKEN


@dataclass(frozen=True, slots=True)
class Line:
    """A token of a round: one that was drafted, or the one that the target chose.

    `stem` draws the tree above it, empty in a chain. `outcome` is accepted, rejected or not
    reached, or the origin of the target's own token.
    """

    stem: str
    token: str
    source: str
    p: float | None
    q: float | None
    outcome: str


@dataclass(frozen=True, slots=True)
class Told:
    """A round, its number from 1, and its tokens line by line."""

    number: int
    account: Round
    lines: tuple[Line, ...]

    @property
    def accepted(self) -> str:
        """How many of the drafted tokens were kept."""
        drafted = self.account.drafted
        return f"{self.account.accepted} of {drafted}" if drafted else "-"

    @property
    def milliseconds(self) -> str:
        """Of the whole round."""
        return f"{1000 * self.account.seconds:.1f}"

    @property
    def stopped(self) -> str:
        """Why the draft was not longer; and first, whether the draft read the prompt."""
        read = self.account.read_seconds
        if not read:
            return self.account.stopped
        return f"{self.account.stopped} (first the draft read the text, {1000 * read:.0f} ms)"


class Names:
    """What token ids are called in tables and titles: their text, quoted, or their number.

    Args:
        tokenizer: Gives the text; None leaves the numbers.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        """Characters that do not print are escaped; part of a character has its number beside."""
        if token not in self._known:
            self._known[token] = self._name(token)
        return self._known[token]

    def _name(self, token: int) -> str:
        text = ""
        if self._tokenizer is not None:
            # Behind itself: some decoders strip the space that begins a text.
            once = self._tokenizer.decode((token,))
            text = self._tokenizer.decode((token, token))[len(once) :]
        if not text:
            return f"#{token}"
        return f"{text!r} #{token}" if BROKEN in text else repr(text)


def told(generation: Generation, names: Names) -> list[Told]:
    """The rounds with their tokens."""
    return [
        Told(number, account, tuple(lines(account, tokens, names)))
        for number, (account, tokens) in enumerate(generation.by_round(), 1)
    ]


def reasons_before(generation: Generation) -> tuple[str, ...]:
    """The reasons that were given before the first round."""
    reasons = generation.stats.reasons
    return reasons[: len(reasons) - sum(len(account.reasons) for account in generation.rounds)]


def lines(account: Round, tokens: Sequence[Token], names: Names) -> Iterator[Line]:
    """The drafted tokens, a tree's branch by branch, and then the one that the target chose."""
    for stem, node in laid_out(account.guesses):
        guess = account.guesses[node]
        refused = "not reached" if guess.p is None else "rejected"
        outcome = "accepted" if guess.kept else refused
        yield Line(stem, names(guess.id), guess.source, guess.p, guess.q, outcome)
    for token in tokens:
        if token.origin != "accepted":
            yield Line("", names(token.id), "", token.p, token.q, token.origin)


def laid_out(guesses: Sequence[Guess]) -> Iterator[tuple[str, int]]:
    """Each node behind its parent, with what draws the branches before it.

    A chain is drawn by nothing; where a token has several behind it, each of these begins a branch.
    """
    below: dict[int, list[int]] = {}
    for node, guess in enumerate(guesses):
        below.setdefault(guess.parent, []).append(node)
    due = [(-1, "", "")]  # node, what is drawn before it, and before what follows it
    while due:
        node, stem, under = due.pop()
        if node >= 0:
            yield stem, node
        children = below.get(node, [])
        if len(children) == 1:
            due.append((children[0], under, under))
        else:
            for child in reversed(children):
                last = child == children[-1]
                due.append(
                    (child, under + ("└ " if last else "├ "), under + ("  " if last else "│ "))
                )


def chance(value: float | None) -> str:
    """A probability in a few characters; "-" where there is none."""
    if value is None:
        return "-"
    return f"{value:.0e}" if 0 < value < 0.0005 else f"{value:.3f}"
