"""The modes of `bench speed`, all on the same loaded models.

`plain`     no speculation
`draft`     the draft model with a fixed draft length
`lookup`    prompt lookup with the adaptive draft length
`suffix`    suffix matches as far as they pay
`auto`      what is used where nothing else is asked for: the draft model and suffix matches, each
            token from the one that pays better; suffix matches alone where there is no model
"""

from __future__ import annotations

from collections.abc import Iterable

from draftproof.bench.speed import PLAIN
from draftproof.drafters import CrossVocab
from draftproof.engine import Speculator
from draftproof.errors import InvalidSetting
from draftproof.load import compose, costly_of, modelless, with_matches
from draftproof.ports import Drafter, Joining, Model, Tokenizer

MODES = (PLAIN, "draft", "lookup", "suffix", "auto")
FREE = ("suffix", "lookup", "ngram")  # drafters that need no model


def parse_modes(text: str | None, draft: bool) -> tuple[str, ...]:
    """The modes in a list with commas; plain is always among them, as what others compare with.

    Args:
        text: Such as "plain,draft,auto"; None takes all, but for `draft` where there is none.
        draft: Whether a draft model was named.

    Raises:
        InvalidSetting: A mode is unknown or named twice, or needs a draft model.
    """
    if text is None:
        return MODES if draft else tuple(name for name in MODES if name != "draft")
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in MODES:
            raise InvalidSetting(
                f"no mode is called {name!r}",
                why="each mode is a way to decode",
                remedy=f"use {', '.join(MODES)}, separated by commas",
            )
        if names.count(name) > 1:
            raise InvalidSetting(
                f"the mode {name} is named twice",
                why="its figures are reported under its name",
                remedy="name each mode once",
            )
        if name == "draft" and not draft:
            raise InvalidSetting(
                "the mode draft needs a draft model",
                why="it drafts with one",
                remedy="name one with --draft, or leave the mode out of --modes",
            )
    return (PLAIN, *(name for name in names if name != PLAIN))


def contenders(speculator: Speculator, chosen: str | None) -> dict[str, Drafter]:
    """The drafters that `plan` compares, by name: all that apply where none was chosen.

    Args:
        speculator: As it was loaded.
        chosen: The drafter that the user asked for.
    """
    drafter = speculator.drafter
    assert drafter is not None
    if chosen is not None:
        return {chosen: drafter}
    made: dict[str, Drafter] = {}
    if isinstance(drafter, Joining):
        made["mix"] = drafter
    if drafter.model is not None:
        costly = costly_of(drafter)
        made["crossvocab" if isinstance(costly, CrossVocab) else "model"] = costly
    for name in FREE:
        free = modelless(name, None, speculator.target, speculator.tokenizer)
        assert free is not None
        made[name] = free
    return made


def speculators(
    target: Model,
    tokenizer: Tokenizer | None,
    draft: Drafter | None,
    names: Iterable[str],
    draft_length: int,
) -> dict[str, Speculator]:
    """A speculator per mode, sharing the models. Costs are measured at most once per drafter.

    Args:
        target: The model whose text it is.
        tokenizer: Its tokenizer; None where prompts are token ids.
        draft: The draft model, alone.
        names: From `parse_modes`.
        draft_length: Of the mode `draft`.
    """
    made: dict[str, Speculator] = {}
    free: dict[str, Speculator] = {}
    for name in names:
        if name == PLAIN:
            made[name] = compose(target, tokenizer, None, 0)
        elif name == "draft":
            made[name] = compose(target, tokenizer, draft, draft_length)
        elif name == "auto" and draft is not None:
            made[name] = compose(target, tokenizer, with_matches(draft), "auto")
        else:
            kind = "suffix" if name == "auto" else name
            if kind not in free:
                drafter = modelless(kind, None, target, tokenizer)
                free[kind] = compose(target, tokenizer, drafter, "auto")
            made[name] = free[kind]
    return made
