"""What every decoder-only backend checks before a pass."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core import Prompt
from draftproof.errors import EmptyPrompt, InvalidInput, PromptTooLong


def require_token_prompt(name: str, prompt: Prompt, context_length: int | None) -> tuple[int, ...]:
    """The prompt, if a decoder-only model can read it.

    Args:
        name: What messages call the model.
        prompt: What was passed in.
        context_length: Most tokens in a session; None where there is no limit.

    Raises:
        EmptyPrompt: It has no tokens.
        PromptTooLong: It leaves no room in the context.
        InvalidInput: It is not token ids.
    """
    if not isinstance(prompt, tuple):
        raise InvalidInput(
            f"{name} was given input features",
            why="a decoder-only model reads token ids",
            remedy="pass text or token ids, or use a speech model",
        )
    if not prompt:
        raise EmptyPrompt(
            f"the prompt for {name} holds no tokens",
            why="the first token's law needs at least one token before it",
            remedy="pass some text",
        )
    if context_length is not None and len(prompt) > context_length:
        raise PromptTooLong(
            f"the prompt's {len(prompt)} tokens do not fit in the context of {name}",
            why=f"it reads at most {context_length} tokens",
            remedy="shorten the prompt, or use a model with a longer context",
        )
    return prompt


def require_pass(
    name: str,
    tokens: Sequence[int],
    keep: int,
    *,
    length: int,
    rows: int,
    context_length: int | None,
    depth: int | None = None,
) -> None:
    """Refuse a pass that cannot be made, before anything is computed.

    Args:
        name: What messages call the model.
        tokens: What is to be appended, at least one.
        keep: How many of the last positions to return logits for.
        length: Tokens in the cache.
        rows: Rows of the input embedding: token ids are below this.
        context_length: Most tokens in a session; None where there is no limit.
        depth: Tokens on the longest path, where they are a tree.

    Raises:
        InvalidInput: A token id has no row in the embedding.
        PromptTooLong: The tokens do not fit in the context.
        ValueError: There are no tokens, or more are to be kept than there are.
    """
    if not tokens or not 0 <= keep <= len(tokens):
        raise ValueError(f"cannot keep {keep} positions of {len(tokens)} tokens")
    for token in tokens:
        if not 0 <= token < rows:
            raise InvalidInput(
                f"token id {token} is outside the vocabulary of {name}",
                why=f"its embedding has the rows 0 to {rows - 1}",
                remedy="encode the text with the tokenizer that belongs to the model",
            )
    total = length + (len(tokens) if depth is None else depth)
    if context_length is not None and total > context_length:
        raise PromptTooLong(
            f"{total} tokens do not fit in the context of {name}",
            why=f"it reads at most {context_length} tokens",
            remedy="shorten the prompt or ask for fewer tokens",
        )
