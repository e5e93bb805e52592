"""The cost curve of a model on this machine: milliseconds per pass by tokens scored."""

from __future__ import annotations

from typing import Any

from draftproof.bench.prompts import read_prompts
from draftproof.errors import InvalidSetting, PromptTooLong
from draftproof.planner import CostCurve, measure
from draftproof.planner.timing import SIZES
from draftproof.ports import Model, Tokenizer


def curve(model: Model, tokenizer: Tokenizer, *, context: int, repeats: int) -> CostCurve:
    """Measure t(n) for n = 1, 2, 3, 4, 6, 8, 12, 16 behind a text of some length.

    Args:
        model: The model.
        tokenizer: Makes the text's ids, from the prompts that come with the package.
        context: Tokens of the text.
        repeats: Timed passes per size.

    Raises:
        InvalidSetting: `context` is below 1, or `repeats` is.
        PromptTooLong: The model's context does not hold the text and one token more.
    """
    if context < 1:
        raise InvalidSetting(
            f"the context is {context} tokens",
            why="a pass needs a token before it",
            remedy="set --context to 1 or more",
        )
    limit = model.context_length
    if limit is not None and context > limit:
        raise PromptTooLong(
            f"a context of {context} tokens was asked for, and {model.name} holds {limit}",
            why="passes beyond the context cannot be timed",
            remedy=f"set --context to at most {limit - max(SIZES) + 1} to time every size",
        )
    text = tokenizer.encode("\n\n".join(prompt.text for prompt in read_prompts(None)))
    ids = (text * (context // len(text) + 1))[:context]
    return measure(model, ids, sizes=SIZES, repeats=repeats)


def report(name: str, model: Model, measured: CostCurve, context: int) -> dict[str, Any]:
    """What `bench curve` prints, but for where it comes from.

    Args:
        name: What the user calls the model.
        model: The model.
        measured: From `curve`.
        context: Tokens in the cache before each pass.
    """
    from draftproof.backends.info import model_info

    columns = list(zip(*measured.samples, strict=True))
    return {
        "n": list(measured.sizes),
        "ms": [1000 * seconds for seconds in measured.seconds],
        "ms_fastest": [1000 * min(column) for column in columns],
        "ms_slowest": [1000 * max(column) for column in columns],
        "ratio": [seconds / measured.seconds[0] for seconds in measured.seconds],
        "model": name,
        **model_info(model),
        "context": context,
        "repeats": len(measured.samples),
    }
