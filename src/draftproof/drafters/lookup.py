"""Prompt lookup: what followed the last time that the text ended like this?

The text is the prompt and the output. Worked example, with `max_match=3`:

    text      5 6 7 8 9 6 7          the last three tokens, 9 6 7, have not been met before;
                ^^^                  the last two, 6 7, have: 8 followed,
    draft     8 9 6 7 8              and the copy may run into its own beginning

Where a copy reaches the end of the text it goes on with what it has copied, so that periodic text
continues with its period: after 1 2 3 1 2 3 the draft is 1 2 3 1 2 3 1 2 ... to the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Prompt, Verdict
from draftproof.errors import InvalidSetting
from draftproof.ports import Standardise
from draftproof.rng import Chooser


class PromptLookup:
    """Drafts by copying from the prompt and the output.

    The longest match decides, and among equally long ones the most recent. Every choice is certain,
    so the laws are point masses.

    Args:
        max_match: Most tokens at the end of the text to look for.
        min_match: Fewest.

    Raises:
        InvalidSetting: Not 1 <= min_match <= max_match.
    """

    name = "lookup"
    model = None

    def __init__(self, max_match: int = 3, min_match: int = 1) -> None:
        if not 1 <= min_match <= max_match:
            raise InvalidSetting(
                f"min_match is {min_match} and max_match is {max_match}",
                why="matches of min_match to max_match tokens are looked for",
                remedy="set 1 <= min_match <= max_match",
            )
        self.max_match = max_match
        self.min_match = min_match

    def begin(self, prompt: Prompt, standardise: Standardise) -> LookupProposer:
        """Index the prompt. Speech features hold no tokens: then the output alone is the text."""
        lengths = range(self.max_match, self.min_match - 1, -1)
        return LookupProposer(prompt if isinstance(prompt, tuple) else (), lengths)


class LookupProposer:
    """One request's text and its index, which grows with the output.

    Args:
        prompt: The text before the output.
        lengths: Match lengths, in the order in which they are tried.
    """

    def __init__(self, prompt: tuple[int, ...], lengths: Sequence[int]) -> None:
        self._text = list(prompt)
        self._start = len(prompt)
        self._lengths = lengths
        self._followers: dict[tuple[int, ...], int] = {}
        self._indexed = 1  # n-grams that end before this position are in the index
        self._index()

    def draft(self, output: Sequence[int], limit: int, stream: Chooser) -> Draft:
        """Up to `limit` tokens; none without a match. Each `output` extends the one before."""
        self._text.extend(output[len(self._text) - self._start :])
        self._index()
        at = self._match()
        if at is None:
            return Draft()
        copied = self._text[at : at + limit]
        period = len(copied)
        return Draft.of_certain(tuple(copied[i % period] for i in range(limit)))

    def observe(self, verdict: Verdict) -> None:
        """Nothing to learn: the next output holds it all."""

    def close(self) -> None:
        """Free the index."""
        self._followers.clear()

    def _index(self) -> None:
        """Note where each n-gram was last followed by a token.

        The text's last n-gram has no follower yet, so the end of the text never matches itself.
        """
        for end in range(self._indexed, len(self._text)):
            for n in self._lengths:
                if n <= end:
                    self._followers[tuple(self._text[end - n : end])] = end
        self._indexed = max(self._indexed, len(self._text))

    def _match(self) -> int | None:
        """Where the follower of the longest and most recent match stands."""
        for n in self._lengths:
            if n <= len(self._text):
                at = self._followers.get(tuple(self._text[len(self._text) - n :]))
                if at is not None:
                    return at
        return None
