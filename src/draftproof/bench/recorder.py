"""A drafter that keeps what it drafted, for whoever asks by which law a token was proposed."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Law, PointMass, Prompt, Token, Verdict
from draftproof.ports import Drafter, Guide, Guided, Model, Proposer, Standardise
from draftproof.rng import Chooser


class Recorder:
    """Another drafter, its drafts kept for the last request.

    Args:
        drafter: What drafts.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.model: Model | None = drafter.model
        self.drafts: dict[int, Draft] = {}  # by the output position where the round began
        self._drafter = drafter

    def begin(self, prompt: Prompt, standardise: Standardise) -> RecordingProposer:
        """Begin a request, and forget the one before."""
        self.drafts = {}
        proposer = self._drafter.begin(prompt, standardise)
        if isinstance(proposer, Guided):
            return RecordingGuided(self, proposer)
        return RecordingProposer(self, proposer)

    def law(self, tokens: Sequence[Token], position: int) -> Law | None:
        """The law of the draft that was judged at an output position; None where none was.

        Of several candidates there, that of the one that was drawn.
        """
        round_number = tokens[position].round
        start = next(t.position for t in tokens if t.round == round_number)
        draft, node = self.drafts.get(start, Draft()), -1
        for token in tokens[start:position]:
            child = draft.child(node, token.id)
            if child is None:
                return None
            node = child
        laws = [draft.laws[child] for child in draft.children(node)]
        drawn = [law for law in laws if not isinstance(law, PointMass)]
        return next(iter(drawn or laws), None)


class RecordingProposer:
    """One request's drafts, kept."""

    def __init__(self, recorder: Recorder, proposer: Proposer) -> None:
        self._recorder = recorder
        self._proposer = proposer

    def draft(self, output: Sequence[int], limit: int, stream: Chooser) -> Draft:
        """The proposer's draft."""
        return self._kept(output, self._proposer.draft(output, limit, stream))

    def observe(self, verdict: Verdict) -> None:
        """The proposer's to learn from."""
        self._proposer.observe(verdict)

    def close(self) -> None:
        """Free what the proposer holds."""
        self._proposer.close()

    def _kept(self, output: Sequence[int], draft: Draft) -> Draft:
        self._recorder.drafts[len(output)] = draft
        return draft


class RecordingGuided(RecordingProposer):
    """The same of a proposer that can be guided."""

    def __init__(self, recorder: Recorder, proposer: Guided) -> None:
        super().__init__(recorder, proposer)
        self._guided = proposer

    def follow(self, output: Sequence[int], limit: int, stream: Chooser, guide: Guide) -> Draft:
        """The proposer's draft."""
        return self._kept(output, self._guided.follow(output, limit, stream, guide))
