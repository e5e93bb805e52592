"""When a draft model is to read the prompt: once that is expected to pay, and no sooner.

Reading costs the draft about its share of a target's pass for each token of the prompt. What it
brings is the difference between rounds that it may draft in and those that go without it, in which
matches in the text may draft all the same; and how many tokens it brings that for is a matter of
how long answers are (`answers`).
"""

from __future__ import annotations

from draftproof.planner.answers import Answers

_ALONE = 32.0  # tokens of plain decoding that count as met before any without the draft
_ASSUMED = 64.0  # tokens at the best fixed length that count as met before any with it


class ReadingTime:
    """One request's.

    Args:
        answers: How long answers are.
        aided: What rounds took that the draft could draft in, in plain passes, and their tokens,
            in earlier requests.
    """

    def __init__(self, answers: Answers, aided: tuple[float, float]) -> None:
        self._answers = answers
        self._aided = aided
        self._alone = _ALONE, _ALONE
        self._written = 0
        self.read = False  # whether the draft may draft in the round that comes

    def pays(self, room: int, price: float, best: float) -> bool:
        """Whether the draft is to read now.

        Args:
            room: Most tokens that may follow.
            price: Of its reading, in plain passes.
            best: Passes per token that are due with it, by the best fixed length.
        """
        passes, tokens = self._aided
        aided = (passes + _ASSUMED * best) / (tokens + _ASSUMED)
        return self.gains(room, price, aided)

    def gains(self, room: int, price: float, aided: float) -> bool:
        """The same where rounds with it take so many plain passes for a token."""
        passes, tokens = self._alone
        return self._answers.pays(self._written, room, passes / tokens - aided, price)

    def observe(self, passes: float, tokens: int) -> tuple[float, float] | None:
        """Note a round: what it took, and what it emitted.

        Returns:
            The same where the draft could draft in it, for later requests to go by.
        """
        self._written += tokens
        if self.read:
            return passes, float(tokens)
        self._alone = self._alone[0] + passes, self._alone[1] + tokens
        return None

    def close(self, ended: bool) -> None:
        """The answer is whole, or was cut off."""
        self._answers.learn(self._written, ended)
