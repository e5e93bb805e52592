"""A drafter that keeps what it drafted, for whoever asks by which law a token was proposed."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Draft, Law, Prompt, Token, Verdict
from draftproof.ports import Drafter, Model, Proposer, Standardise
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
        return RecordingProposer(self, self._drafter.begin(prompt, standardise))

    def law(self, tokens: Sequence[Token], position: int) -> Law | None:
        """The law of the draft that was judged at an output position; None where none was."""
        round_number = tokens[position].round
        start = next(t.position for t in tokens if t.round == round_number)
        draft = self.drafts.get(start, Draft())
        return draft.laws[position - start] if position - start < len(draft) else None


class RecordingProposer:
    """One request's drafts, kept."""

    def __init__(self, recorder: Recorder, proposer: Proposer) -> None:
        self._recorder = recorder
        self._proposer = proposer

    def draft(self, output: Sequence[int], limit: int, stream: Chooser) -> Draft:
        """The proposer's draft."""
        draft = self._proposer.draft(output, limit, stream)
        self._recorder.drafts[len(output)] = draft
        return draft

    def observe(self, verdict: Verdict) -> None:
        """The proposer's to learn from."""
        self._proposer.observe(verdict)

    def close(self) -> None:
        """Free what the proposer holds."""
        self._proposer.close()
