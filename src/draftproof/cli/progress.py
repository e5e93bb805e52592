"""Loading with a progress bar on standard error."""

from __future__ import annotations

from typing import Any

from draftproof.catalog import Catalog
from draftproof.cli.models import fetching
from draftproof.engine import Speculator
from draftproof.load import load


def load_with_progress(**loading: Any) -> Speculator:
    """`load`, with downloads shown; without --draft and --drafter, prompt lookup drafts."""
    if loading.get("drafter") is None and loading.get("draft") is None:
        loading["drafter"] = "lookup"
    names = [str(loading[role]) for role in ("target", "draft") if loading.get(role) is not None]
    with fetching(Catalog(), *names) as bar:
        return load(**loading, progress=bar)
