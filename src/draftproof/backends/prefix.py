"""The decoder's first tokens of an encoder-decoder model, by its own generation settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftproof.errors import InvalidSetting

REMEDY = "pass `decoder_prefix`, the ids of the decoder's first tokens"


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first tokens.

    Args:
        tokens: All of them, or all but the language.
        languages: Where the settings leave the language open, its possible tokens: the one that
            the model finds most likely in the sound goes in second place.
    """

    tokens: tuple[int, ...]
    languages: tuple[int, ...] = ()


def default_prefix(model: Any, name: str) -> Prefix:
    """What transformers' own generation would start from.

    The start token, then what the settings force after it. For a multilingual Whisper: language,
    task (transcribing by default) and no timestamps.

    Args:
        model: The transformers model.
        name: What messages call it.

    Raises:
        InvalidSetting: The settings do not say, or name an unknown language or task.
    """
    settings, config = model.generation_config, model.config
    starts = (settings.decoder_start_token_id, config.decoder_start_token_id, settings.bos_token_id)
    start = [token for token in starts if token is not None][:1]
    forced = getattr(settings, "forced_decoder_ids", None)
    if forced is None:
        forced = getattr(config, "forced_decoder_ids", None)
    tokens = [token for _, token in sorted(forced or (), key=lambda pair: pair[0])]
    languages = dict(getattr(settings, "lang_to_id", None) or {})
    if languages:
        tokens = _spoken(settings, name, tokens, languages)
    elif not tokens and getattr(settings, "is_multilingual", False):
        tokens = [None]
    silent = getattr(settings, "no_timestamps_token_id", None)
    if silent is not None and silent not in tokens:
        tokens.append(silent)
    first = [] if settings.forced_bos_token_id is None else [settings.forced_bos_token_id]
    unknown = [place for place, token in enumerate(tokens) if token is None]
    if unknown and (unknown != [0] or not languages):
        raise InvalidSetting(
            f"{name} must be told what to transcribe",
            why="it knows several languages and tasks and starts from their tokens, and its "
            "generation settings do not name them",
            remedy=REMEDY,
        )
    known = (int(token) for token in [*start, *first, *tokens] if token is not None)
    return Prefix(tuple(known), tuple(languages.values()) if unknown else ())


def _spoken(
    settings: Any, name: str, forced: list[int | None], languages: dict[str, int]
) -> list[int | None]:
    """Language and task; None stands for a language that the model is to find out."""
    language, task = getattr(settings, "language", None), getattr(settings, "task", None)
    if language is None and task is None and forced:
        return forced
    tasks = dict(getattr(settings, "task_to_id", None) or {})
    tokens: list[int | None] = [None]
    if language is not None:
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        said = str(language).lower()
        key = said if said in languages else f"<|{TO_LANGUAGE_CODE.get(said, said)}|>"
        tokens = [_id_of(key, languages, f"the language {language!r}", name)]
    if tasks:
        tokens.append(_id_of(task or "transcribe", tasks, f"the task {task!r}", name))
    return tokens


def _id_of(key: str, ids: dict[str, int], what: str, name: str) -> int:
    if key not in ids:
        raise InvalidSetting(
            f"{name} does not know {what} of its generation settings",
            why="it starts from the tokens of a language and a task",
            remedy=f"use one of {', '.join(sorted(ids))}",
        )
    return ids[key]
