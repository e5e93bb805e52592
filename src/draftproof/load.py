"""The composition root: the only file that knows every name and puts the parts together."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from draftproof.backends import CpuSettings, Placement, choose, load_on
from draftproof.catalog import Progress, resolve, silent
from draftproof.drafters import (
    CrossVocab,
    DraftModel,
    Mix,
    NGram,
    PastOutputs,
    PromptLookup,
    SelfSpec,
    SuffixDrafter,
)
from draftproof.engine import Speculator
from draftproof.errors import InvalidSetting, TokenizerMismatch
from draftproof.planner import Costs, Fixed, Measured, ProfileFile
from draftproof.ports import Drafter, Joining, Lengths, Model, Shallowing, Tokenizer
from draftproof.text import shared_ids
from draftproof.tuning import Tuning

DrafterName: TypeAlias = Literal[
    "mix", "model", "crossvocab", "suffix", "lookup", "ngram", "selfspec", "none"
]
# Those that draft with a model that has to be named.
WITH_MODEL = ("mix", "model", "crossvocab")


def load(  # noqa: PLR0913  # a keyword for each thing that can be chosen
    target: str | Path = "smollm2-135m",
    *,
    draft: str | Path | Drafter | None = None,
    drafter: DrafterName | None = None,
    draft_length: int | Literal["auto"] = "auto",
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    cache_memory: int | None = None,
    quantize: int | None = None,
    draft_backend: str | None = None,
    draft_device: str | None = None,
    draft_dtype: str | None = None,
    draft_bits: int | None = 4,
    progress: Progress = silent,
) -> Speculator:
    """Load a target and what drafts for it.

    Args:
        target: A catalogue name, `org/name`, `org/name:file.gguf`, or a path.
        draft: A draft model named like the target, the name of a drafter without one, or any
            object that implements `ports.Drafter`.
        drafter: What drafts; follows from `draft` where left out: "mix", a draft model (whatever
            its tokenizer) and the matches in the text, if a model is named, else plain decoding.
            With "ngram", `draft` may be a file of counts, and with "suffix" one of past outputs.
        draft_length: Tokens per round, or "auto": chosen from the measured costs of this pair on
            this machine and the running acceptance.
        backend: What computes the target: "cpu", the engine of this package, or "torch". By
            default "cpu" for a GGUF file that it runs, else "torch".
        device: Where PyTorch runs the target, such as "cpu" or "cuda:0".
        dtype: PyTorch's number format for the target, such as "float32".
        threads: Of the CPU engine; by default those that are measured to be the fastest.
        cache_memory: Most bytes that the keys and values of a model on the CPU engine may take; by
            default half of what is free once it is loaded.
        quantize: Bits per weight, 8 or 4, that a folder's weights get while the CPU engine loads
            them; left out, they stay as they are.
        draft_backend: What computes the draft; the target's backend by default.
        draft_device: Where PyTorch runs the draft; the target's device by default.
        draft_dtype: PyTorch's number format for the draft.
        draft_bits: Bits per weight that a GGUF draft on the CPU engine is cut to while it loads: 4,
            or None to keep the file's own. What it drafts may differ, what the target writes not.
        progress: Told of downloads, that the draft has another tokenizer, and why the CPU engine
            does not run a GGUF file; a warning tells the last where there is no `progress`.

    Raises:
        DraftproofError: Everything that can be wrong with a model, by name; see `errors`.
    """
    draft, drafter = _asked(draft, drafter)
    check_drafter(drafter, draft)
    if draft_length != "auto":
        Fixed(draft_length)  # refuses what it cannot be, before anything is loaded
    named = draft if drafter in WITH_MODEL and isinstance(draft, (str, Path)) else None
    parts = load_parts(
        target, named, drafter, backend=backend, device=device, dtype=dtype,
        threads=threads, cache_memory=cache_memory, quantize=quantize,
        draft_backend=draft_backend, draft_device=draft_device, draft_dtype=draft_dtype,
        draft_bits=draft_bits, progress=progress,
    )  # fmt: skip
    drafts = parts.draft or modelless(drafter, draft, parts.target, parts.tokenizer)
    profile = costs = None
    if drafts is not None and draft_length == "auto" and parts.tuning is not None:
        costly = costly_of(drafts)
        if not isinstance(draft, Drafter):
            profile = parts.tuning.profile(costly, drafter, draft)
        costs = parts.tuning.costs(costly, profile)
    return compose(parts.target, parts.tokenizer, drafts, draft_length, profile, costs)


@dataclass(frozen=True, slots=True)
class Parts:
    """Loaded models, which several speculators may share; `draft` where one was named.

    `tuning` measures them where they were loaded from files.
    """

    target: Model
    tokenizer: Tokenizer
    draft: Drafter | None
    tuning: Tuning | None = None


def load_parts(  # noqa: PLR0913  # those of `load`
    target: str | Path,
    draft: str | Path | None = None,
    drafter: DrafterName = "model",
    *,
    backend: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    cache_memory: int | None = None,
    quantize: int | None = None,
    draft_backend: str | None = None,
    draft_device: str | None = None,
    draft_dtype: str | None = None,
    draft_bits: int | None = 4,
    progress: Progress = silent,
) -> Parts:
    """Load a target and, where one is named, its draft model; the arguments are those of `load`.

    Threads that are left out are chosen by timing passes, unless that was done before; the head of
    the draft likewise.
    `drafter` is one of `WITH_MODEL`, where a draft model is named.
    """
    settings = CpuSettings(threads=threads, cache_memory=cache_memory, quantize=quantize)
    placement = Placement(backend=backend, device=device, dtype=dtype)
    draft_placement = Placement(
        backend=draft_backend or (backend if draft_device is draft_dtype is None else None),
        device=draft_device or (None if draft_backend == "cpu" else device),
        dtype=draft_dtype,
    )

    def tell(notice: str) -> None:
        if progress is silent:
            warnings.warn(notice, stacklevel=4)
        progress(notice, 0, 0)

    path = Path(resolve(str(target), progress))
    chosen = [(path, choose(path, placement, None, tell))]
    if draft is not None:
        draft_path = Path(resolve(str(draft), progress))
        chosen.append((draft_path, choose(draft_path, draft_placement, chosen[0][1], tell)))
    settings.check(chosen)
    if draft_bits not in (4, None):
        raise InvalidSetting(
            f"draft_bits is {draft_bits}",
            why="a draft's weights are cut to 4 bits, or stay as they are",
            remedy="set it to 4, or to None (--draft-bits stored)",
        )
    model, tokenizer = load_on(chosen[0][1], path, placement, settings)
    files = tuple(file for file, _ in chosen)
    draft_model = draft_tokenizer = drafts = None
    if draft is not None:
        draft_model, draft_tokenizer = load_on(
            chosen[1][1], draft_path, draft_placement, settings, coarse=draft_bits is not None
        )
    tuning = Tuning(
        target=model, tokenizer=tokenizer, draft=draft_model, files=files, quantize=quantize
    )
    if threads is None:
        tuning.choose_threads()
    if draft_model is not None:
        drafts = pair(model, tokenizer, draft_model, draft_tokenizer, drafter, tuning)
        if drafter == "mix" and isinstance(costly_of(drafts), CrossVocab):
            progress(f"{draft} has another tokenizer than {target}, and drafts by crossvocab", 0, 0)
    return Parts(model, tokenizer, drafts, tuning)


def from_transformers(
    target: Any,
    draft: Any = None,
    tokenizer: Any = None,
    *,
    draft_tokenizer: Any = None,
    drafter: DrafterName | None = None,
    draft_length: int | Literal["auto"] = "auto",
    decoder_prefix: Sequence[int] | None = None,
) -> Speculator:
    """Use models that are already loaded with transformers; they are not changed.

    Args:
        target: A decoder-only or encoder-decoder model.
        draft: A smaller one, or any `ports.Drafter`, or the name of one without a model ("suffix",
            "lookup", "ngram"), or None.
        tokenizer: The target's tokenizer or processor; None where prompts are token ids.
        draft_tokenizer: The draft's, where it is not the same object. Where it is left out and the
            draft was loaded from a folder or hub repository, the one found there is compared.
        drafter: As in `load`.
        draft_length: As in `load`.
        decoder_prefix: The first tokens of an encoder-decoder model's decoder, such as Whisper's
            start, language and task. By default those of its generation settings; a Whisper that
            these leave without a language finds it in the sound.

    Raises:
        InvalidSetting: No drafter has that name, or it has no use for `draft`, or `decoder_prefix`
            does not fit the model.
        UnsupportedModel: A model's cache cannot be rewound exactly.
        TokenizerMismatch: The tokenizers give different strings to the same ids, and the draft is
            to draft by them ("model"); or they have no token in common.
    """
    from draftproof.backends import tokenizer_beside, wrap_model, wrap_tokenizer

    draft, drafter = _asked(draft, drafter)
    check_drafter(drafter, draft)
    named = isinstance(draft, (str, Path))
    if named and drafter in WITH_MODEL:
        raise InvalidSetting(
            f"no drafter is called {str(draft)!r} without a draft model",
            why="models of transformers are passed in, and `load` loads those that are named",
            remedy=f"use {_without_model()}, or pass a model or a Drafter",
        )
    model = wrap_model(target, prefix=decoder_prefix)
    text = None if tokenizer is None else wrap_tokenizer(tokenizer)
    if draft is None or named or isinstance(draft, Drafter):
        return compose(model, text, modelless(drafter, draft, model, text), draft_length)
    if draft_tokenizer is None:
        draft_text = None if text is None else tokenizer_beside(draft)
    else:
        draft_text = wrap_tokenizer(draft_tokenizer)
    small = wrap_model(draft, prefix=decoder_prefix)
    return compose(model, text, pair(model, text, small, draft_text, drafter), draft_length)


def pair(
    target: Model,
    tokenizer: Tokenizer | None,
    draft: Model,
    draft_tokenizer: Tokenizer | None,
    drafter: DrafterName = "model",
    tuning: Tuning | None = None,
) -> Drafter:
    """A draft model for a target, as its tokenizer allows.

    Args:
        target: The target.
        tokenizer: Its tokenizer; None where prompts are token ids.
        draft: The draft model.
        draft_tokenizer: Its tokenizer; the target's where it is None.
        drafter: One of `WITH_MODEL`. "mix" drafts by the ids that both tokenizers know, and across
            the tokenizers, as "crossvocab", where the ids mean different strings.
        tuning: Chooses how much of the draft's output head to compute; None leaves it whole.

    Raises:
        TokenizerMismatch: They do, and `drafter` is "model"; or there is no token in common.
        InvalidSetting: "crossvocab" was asked for without tokenizers.
    """
    if drafter == "crossvocab":
        return _across(target, tokenizer, draft, draft_tokenizer)
    shared = None
    if tokenizer is not None:
        try:
            shared = shared_ids(tokenizer, draft_tokenizer or tokenizer)
        except TokenizerMismatch:
            if drafter != "mix":
                raise
            return with_matches(_across(target, tokenizer, draft, draft_tokenizer))
    head = None if tuning is None else tuning.head()
    model = DraftModel(draft, target.vocab_size, shared, head)
    return with_matches(model) if drafter == "mix" else model


def _across(
    target: Model, tokenizer: Tokenizer | None, draft: Model, draft_tokenizer: Tokenizer | None
) -> CrossVocab:
    """A draft model with a tokenizer of its own; see `pair`."""
    if tokenizer is None or draft_tokenizer is None:
        raise InvalidSetting(
            "the drafter crossvocab was asked for without tokenizers",
            why="it finds the tokens that both know by their text",
            remedy="pass the tokenizers of target and draft",
        )
    return CrossVocab(draft, draft_tokenizer, tokenizer, target.vocab_size)


def with_matches(model: Drafter) -> Drafter:
    """What "mix" makes of a draft model: the matches in the text beside it."""
    if isinstance(model, (DraftModel, CrossVocab)):
        return Mix(model, SuffixDrafter())
    return model


def check_drafter(name: str, given: Any) -> None:
    """Refuse, before anything is loaded, what cannot draft.

    Args:
        name: The drafter's.
        given: The draft model, file of counts or `Drafter` that was passed in.

    Raises:
        InvalidSetting: No drafter has that name, or it has no use for `given`, or needs it.
    """
    if isinstance(given, Drafter):
        return
    if name not in _names() or (name in WITH_MODEL and given is None):
        raise InvalidSetting(
            f"no drafter is called {name!r}"
            + (" without a draft model" if name in WITH_MODEL else ""),
            why="something has to make the drafts",
            remedy=f"use {_without_model()}, name a draft model, or pass a Drafter",
        )
    reads = name in ("suffix", "ngram") and isinstance(given, (str, Path))
    if name not in WITH_MODEL and given is not None and not reads:
        told = given if isinstance(given, (str, Path)) else type(given).__name__
        raise InvalidSetting(
            f"the drafter {name!r} was given the draft {told}",
            why="it drafts without a model, so that the draft would be ignored",
            remedy="leave out the draft, or use the drafter mix or model",
        )


def _asked(draft: Any, drafter: DrafterName | None) -> tuple[Any, DrafterName]:
    """What was passed in to draft, and the drafter's name, as `load` says it follows from that."""
    alone = isinstance(draft, str) and draft in _names() and draft not in WITH_MODEL
    if drafter is None and alone:
        return None, cast(DrafterName, draft)
    return draft, drafter or ("none" if draft is None else "mix")


def _names() -> tuple[str, ...]:
    return get_args(DrafterName)


def _without_model() -> str:
    return ", ".join(name for name in _names() if name not in WITH_MODEL)


def modelless(name: str, given: Any, target: Model, tokenizer: Tokenizer | None) -> Drafter | None:
    """A drafter without a model of its own, by name (see `check_drafter`).

    Args:
        name: The drafter's.
        given: A file of counts or past outputs; or a `Drafter`, which is returned.
        target: The target.
        tokenizer: Its tokenizer, where there is one.

    Raises:
        InvalidSetting: The file cannot be used.
        UnsupportedModel: The target cannot run its first layers alone.
    """
    if isinstance(given, Drafter):
        return given
    if name == "none":
        return None
    if name == "lookup":
        return PromptLookup()
    if name == "selfspec":
        shared = None if tokenizer is None else shared_ids(tokenizer, tokenizer)
        return SelfSpec(target, early_layers(target), shared)
    file = None if given in (None, name) else Path(given)
    if name == "suffix":
        past = None if file is None else PastOutputs.load(file, target.vocab_size)
        return SuffixDrafter(past)
    return NGram(target.vocab_size) if file is None else NGram.load(file, target.vocab_size)


def early_layers(target: Model) -> int:
    """How many of its layers draft for it: a quarter, where nobody has measured more."""
    return max(1, target.layers // 4) if isinstance(target, Shallowing) else 1


def compose(
    target: Model,
    tokenizer: Tokenizer | None,
    drafter: Drafter | None,
    draft_length: int | Literal["auto"],
    profile: ProfileFile | None = None,
    costs: Costs | None = None,
) -> Speculator:
    """Target, drafter and draft length policy together.

    Args:
        target: The target.
        tokenizer: Its tokenizer; None where prompts are token ids.
        drafter: What drafts; None for plain decoding.
        draft_length: As in `load`.
        profile: Where "auto" keeps costs; None keeps none.
        costs: What was measured at load; without them, and without any in the profile, "auto"
            measures when its first request begins.
    """
    lengths: Lengths
    if drafter is None:
        lengths = Fixed(0)
    elif draft_length == "auto":
        lengths = Measured(target, costly_of(drafter), costs=costs, profile=profile)
    else:
        lengths = Fixed(draft_length)
    return Speculator(target, tokenizer, drafter, lengths)


def costly_of(drafter: Drafter) -> Drafter:
    """The drafter whose tokens are paid for: itself, or one that it joins with others."""
    return drafter.costly if isinstance(drafter, Joining) else drafter
