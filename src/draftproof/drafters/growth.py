"""A draft while it grows: a trunk, and leaves beside it where the target can score a tree."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Law, PointMass


class Growth:
    """Tokens in the order in which a guide is told of them.

    The trunk is a chain. A leaf follows a token of the trunk, or the committed text, in the place
    of the trunk's own next token; nothing follows a leaf.

    Args:
        output: The committed text.
    """

    def __init__(self, output: Sequence[int]) -> None:
        self.context = list(output)  # with the trunk
        self.depth = 0  # of the trunk
        self.end = -1  # the trunk's last token, by its number
        self._tokens: list[int] = []
        self._laws: list[Law] = []
        self._parents: list[int] = []
        self._sources: list[str] = []

    @property
    def trunk(self) -> list[int]:
        """The trunk's tokens."""
        return self.context[len(self.context) - self.depth :]

    def extend(self, token: int, law: Law, source: str) -> None:
        """The trunk's next token."""
        self._add(token, law, self.end, source)
        self.end = len(self._tokens) - 1
        self.context.append(token)
        self.depth += 1

    def respell(self, tokens: Sequence[int]) -> None:
        """Other certain choices in the place of the trunk's last ones, which have no leaves."""
        first = len(self._tokens) - len(tokens)
        self._tokens[first:] = tokens
        self._laws[first:] = map(PointMass, tokens)
        self.context[len(self.context) - len(tokens) :] = tokens

    def leaf(self, token: int, after: int, source: str) -> None:
        """A certain choice beside the trunk."""
        self._add(token, PointMass(token), after, source)

    def draft(self) -> Draft:
        """What has grown."""
        chain = self.depth == len(self._tokens)
        parents = () if chain else tuple(self._parents)
        return Draft(tuple(self._tokens), tuple(self._laws), parents, tuple(self._sources))

    def _add(self, token: int, law: Law, after: int, source: str) -> None:
        self._tokens.append(token)
        self._laws.append(law)
        self._parents.append(after)
        self._sources.append(source)
