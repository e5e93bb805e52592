"""What is measured when models are loaded by name, and where it is kept.

Three things, each once for a model or a pair on a machine: the threads that compute fastest, how
much of the draft's output head pays, and what passes and drafts cost. All of it takes under a
second where a pass of the target takes some 50 ms, and is kept on the disk (`planner.kept`), so
that the next load measures nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from draftproof.catalog import identity, profiles_dir
from draftproof.drafters import DraftModel
from draftproof.errors import DraftproofError
from draftproof.planner import (
    CostCurve,
    Costs,
    KeptFile,
    PairKey,
    Profile,
    ProfileFile,
    best_head,
    best_threads,
    early_costs,
    early_curve,
    measure_heads,
    measure_threads,
)
from draftproof.ports import Drafter, Model, Narrowing, Threaded, Tokenizer
from draftproof.text import sample_texts

HEADS = (2, 4, 8)  # parts of the draft's vocabulary that its head may be cut to


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Measures loaded models, unless that was done before.

    A measurement that fails is left out: it is no reason for loading to fail.

    Args:
        target: The target.
        tokenizer: Its tokenizer.
        draft: The draft model, where one was named.
        files: Where the target, and the draft model, were loaded from.
        quantize: As in `load`.
    """

    target: Model
    tokenizer: Tokenizer
    draft: Model | None
    files: tuple[Path, ...]
    quantize: int | None

    def choose_threads(self) -> None:
        """Give the target the threads that compute it fastest, and the draft model the same."""
        if not isinstance(self.target, Threaded):
            return
        choices = self.target.choices()
        listed = [asdict(choice) for choice in choices]
        file = self._file(self.files[:1], "threads", [self.target], {"choices": listed})
        kept = None if file is None else file.read()
        if kept is not None and kept.get("threads") in listed:
            chosen = choices[listed.index(kept["threads"])]
        else:
            chosen = choices[0]
            with suppress(DraftproofError):
                if len(choices) > 1:
                    chosen = best_threads(choices, measure_threads(self.target, self._prompt))
                if file is not None:
                    file.write({"threads": asdict(chosen)})
        for model in (self.target, self.draft):
            if isinstance(model, Threaded):
                model.use_threads(chosen)

    def head(self) -> int | None:
        """How much of the draft's output head pays (`planner.heads`); None for all of it."""
        draft = self.draft
        if draft is None or not isinstance(draft, Narrowing):
            return None
        file = self._file(self.files, "head", [self.target, draft], {})
        known = None if file is None else file.read()
        if known is not None and _is_head(known.get("ids", 0), draft.vocab_size):
            ids: int | None = known["ids"]
            return ids
        if self._curve is None:
            return None
        texts = [self.tokenizer.encode(text) for text in sample_texts()]
        with suppress(DraftproofError):
            costs = measure_heads(draft, texts, [draft.vocab_size // part for part in HEADS])
            ids = best_head(costs, self._curve(1)).ids
            if file is not None:
                file.write({"ids": ids})
            return ids
        return None

    def profile(self, costly: Drafter, drafter: str, given: Any) -> ProfileFile | None:
        """Where costs of the pair, and what it learns, are kept; None where nothing is.

        Args:
            costly: What drafts, or the part of it that is paid for.
            drafter: Its name.
            given: The file that a drafter without a model reads, or None.
        """
        folder = profiles_dir()
        if folder is None:
            return None
        files = self.files
        if self.draft is None and given is not None:
            files = (*files, Path(given))
        models = [model for model in (self.target, costly.model) if model is not None]
        head = costly.head if isinstance(costly, DraftModel) else None
        return ProfileFile(folder, self._key(files, drafter, models, {"head": head}))

    def costs(self, costly: Drafter, profile: ProfileFile | None) -> Costs | None:
        """What the pair costs, kept in the profile; None where it is there, or takes long to find.

        Args:
            costly: As in `profile`.
            profile: What `profile` returned; None keeps nothing.
        """
        if profile is not None and profile.read() is not None:
            return None
        if self._curve is None:
            return None
        with suppress(DraftproofError):
            costs = early_costs(self._curve, costly, self._prompt)
            if profile is not None:
                profile.write(Profile(costs))
            return costs
        return None

    @cached_property
    def _prompt(self) -> tuple[int, ...]:
        """The beginning of an ordinary text, for passes to be made of."""
        return self.tokenizer.encode(sample_texts()[0][:200])

    @cached_property
    def _curve(self) -> CostCurve | None:
        """What the target's passes cost, for the head and the costs alike; None if it is slow.

        Nor is there any where the target reads no token ids: sound cannot be made up.
        """
        with suppress(DraftproofError):
            return early_curve(self.target, self._prompt)
        return None

    def _file(
        self, files: tuple[Path, ...], what: str, models: list[Model], more: dict[str, Any]
    ) -> KeptFile | None:
        """Where what does not depend on the drafter is kept."""
        folder = profiles_dir()
        if folder is None:
            return None
        return KeptFile(folder, self._key(files, "", models, {"what": what, **more}))

    def _key(
        self, files: tuple[Path, ...], drafter: str, models: list[Model], more: dict[str, Any]
    ) -> PairKey:
        from importlib.metadata import version

        from draftproof.backends.info import cpu_name, model_info, runtime_info

        told = [model_info(model) for model in models]
        torch = any(model["backend"] == "torch" for model in told)
        machine = {
            "processor": cpu_name(),
            "models": told,
            "runtime": runtime_info() if torch else None,
            "quantize": self.quantize,
            "version": version("draftproof"),
            **more,
        }
        target, draft = (*map(identity, files), "")[:2]
        return PairKey(target, draft, drafter, machine)


def _is_head(found: Any, vocab: int) -> bool:
    return found is None or (type(found) is int and 0 < found < vocab)
