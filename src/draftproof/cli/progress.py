"""Loading with a progress bar on standard error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.bench.provenance import check_output, provenance
from draftproof.catalog import Catalog
from draftproof.cli.models import fetching
from draftproof.cli.options import split
from draftproof.engine import Options, Request, Speculator
from draftproof.engine.speculator import UserPrompt
from draftproof.load import load


def load_with_progress(**loading: Any) -> Speculator:
    """`load`, with downloads shown; without --draft and --drafter, suffix matches draft."""
    if loading.get("drafter") is None and loading.get("draft") is None:
        loading["drafter"] = "suffix"
    names = [str(loading[role]) for role in ("target", "draft") if loading.get(role) is not None]
    with fetching(Catalog(), *names) as bar:
        return load(**loading, progress=bar)


@dataclass(frozen=True, slots=True)
class Subject:
    """A loaded pair that a command looks into, and the user's options of `generate`.

    Args:
        speculator: The pair.
        options: By name.
        names: What the user called target and draft.
    """

    speculator: Speculator
    options: dict[str, Any]
    names: dict[str, str | None]

    def request(self, prompt: UserPrompt) -> Request:
        """The request for a prompt."""
        return self.speculator.request(prompt, Options.of(self.options))

    def provenance(self) -> dict[str, Any]:
        """Where figures about the pair come from."""
        drafter = self.speculator.drafter
        draft = drafter.model if drafter is not None else None
        names = {**self.names, "draft": self.names["draft"] if draft is not None else None}
        return provenance(names, {"target": self.speculator.target, "draft": draft})


def load_subject(output: Path | None, given: dict[str, Any], draft_length: int) -> Subject:
    """Load the pair that a command's options name, once all of them are known to be fine.

    Args:
        output: Where the result will go.
        given: The options; those of loading are taken out.
        draft_length: Tokens per round.

    Raises:
        DraftproofError: An option, the output or a model is wrong.
    """
    check_output(output)
    loading, options = split(given)
    names = {role: loading[role] for role in ("target", "draft")}
    speculator = load_with_progress(**{**loading, "draft_length": draft_length})
    return Subject(speculator, options, names)
