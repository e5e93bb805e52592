"""Whether two tokenizers mean the same by the same ids, and which tokens both have."""

from __future__ import annotations

from draftproof.errors import TokenizerMismatch
from draftproof.ports import Tokenizer
from draftproof.text.spelling import Spelling

ENOUGH = 0.9  # of the smaller vocabulary; tokenizers of one family differ in a few added tokens
EXAMPLES = 3
REMEDY = (
    "choose a draft of the target's model family, with the same tokenizer, draft across "
    "tokenizers (--drafter crossvocab), or draft without a model: --drafter lookup"
)


def shared_ids(target: Tokenizer, draft: Tokenizer) -> int | frozenset[int]:
    """The ids that both tokenizers know, and know as the same string.

    Padding rows of an output head belong to no tokenizer and so are never among them.

    Returns:
        Their number where they run from 0 without a gap, else the ids. Either is what
        `DraftModel` takes as `allowed`; no other id is drafted.

    Raises:
        TokenizerMismatch: An id means different strings, or too few ids are shared.
    """
    theirs = draft.vocabulary
    ours = theirs if target is draft else target.vocabulary
    target_strings = {token: string for string, token in ours.items()}
    draft_strings = {token: string for string, token in theirs.items()}
    shared = target_strings.keys() & draft_strings.keys()
    different = sorted(
        token
        for token in shared
        if target_strings[token] != draft_strings[token]
        # An id can have two strings, of which each dictionary above holds one.
        and theirs.get(target_strings[token]) != token
        and ours.get(draft_strings[token]) != token
    )
    if different:
        examples = "; ".join(
            f"{token} is {target_strings[token]!r} to the target and {draft_strings[token]!r} "
            "to the draft"
            for token in different[:EXAMPLES]
        )
        raise TokenizerMismatch(
            f"{len(different)} of {len(shared)} token ids mean different strings: {examples}",
            why="the draft would read and propose other text than the target",
            remedy=REMEDY,
        )
    smaller = min(len(target_strings), len(draft_strings))
    if len(shared) < ENOUGH * smaller or not shared:
        raise TokenizerMismatch(
            f"target and draft share {len(shared)} token ids, "
            f"and the smaller vocabulary has {smaller}",
            why=f"under {ENOUGH:.0%} they hardly come from one tokenizer, "
            "and few drafts would be accepted",
            remedy=REMEDY,
        )
    return len(shared) if max(shared) == len(shared) - 1 else frozenset(shared)


def common_tokens(target: Spelling, draft: Spelling, rows: tuple[int, int]) -> dict[int, int]:
    """The tokens that both vocabularies have, whatever their ids.

    Text is compared by its bytes, and special tokens by their names.

    Args:
        target: Spells the target's tokens.
        draft: Spells the draft's.
        rows: Of the target's and the draft's output head: no id beyond them counts.

    Returns:
        The draft's id of each, by the target's, rising.

    Raises:
        TokenizerMismatch: There is none.
    """
    ours, theirs = target.ids(), draft.ids()
    pairs = sorted((ours[spelled], theirs[spelled]) for spelled in ours.keys() & theirs.keys())
    common = {mine: other for mine, other in pairs if mine < rows[0] and other < rows[1]}
    if not common:
        raise TokenizerMismatch(
            f"target and draft have no token in common, of {len(ours)} and {len(theirs)}",
            why="what the draft says could not be said in the target's tokens",
            remedy="choose another draft, or draft without a model: --drafter lookup",
        )
    return common
