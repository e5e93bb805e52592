"""The vocabulary in a GGUF file's metadata as a tokenizer of the `tokenizers` library.

Two kinds are known: byte-level ones ("gpt2": tokens and merges, spelled in an alphabet of 256
printable characters, one per byte) and SentencePiece ones ("llama": tokens and scores, with a token
for each byte that no other token covers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers import normalizers as norms
from tokenizers import pre_tokenizers as pre
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from draftproof.backends.cpu.merges import merges_of
from draftproof.backends.cpu.pretokenizers import pre_tokenizer
from draftproof.errors import DraftproofError, ModelCorrupt, UnsupportedModel

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # types of tokens
SPACE = "\u2581"  # what SentencePiece writes for a space
NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # by their keys' stems


def read_vocabulary(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer, and the strings of the special tokens by names such as "bos_token".

    Raises:
        UnsupportedModel: The vocabulary is of another kind.
        ModelCorrupt: Something is missing from it, or does not fit together.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in KINDS:
        raise UnsupportedModel(
            "the file holds no tokenizer"
            if kind is None
            else f"no tokenizer of the kind {kind!r} can be read",
            why=f"the kinds that can be read are {', '.join(map(repr, KINDS))}",
            remedy="run the model with --backend torch, or choose another model",
        )
    spell, build = KINDS[kind]
    try:
        tokens, types = _tokens(metadata)
        tokens = spell(tokens, types)
        named = _named(metadata, tokens)
        tokenizer, begins = build(metadata, tokens, types)
        _add(tokenizer, tokens, types, named.values())
        begins = bool(metadata.get("tokenizer.ggml.add_bos_token", begins))
        ends = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
        _frame(
            tokenizer,
            named.get("bos_token") if begins else None,
            named.get("eos_token") if ends else None,
        )
    except DraftproofError:
        raise
    except Exception as error:  # the library raises Exception itself; metadata can hold anything
        raise damaged(str(error)) from error
    return tokenizer, named


def _frame(tokenizer: Tokenizer, begin: str | None, end: str | None) -> None:
    """Let encoding put `begin` before a text and `end` after it, unless it is told not to."""
    parts = [part for part in (begin, "$A", end) if part is not None]
    tokenizer.post_processor = TemplateProcessing(
        single=parts,
        special_tokens=[(part, tokenizer.token_to_id(part)) for part in {*parts} - {"$A"}],
    )


def damaged(fault: str) -> ModelCorrupt:
    """The error for a tokenizer that cannot be read, or whose parts do not fit together."""
    return ModelCorrupt(
        f"the tokenizer cannot be used: {fault}",
        why="text becomes token ids by the tokenizer that the model was trained with",
        remedy="fetch the file again, or use another copy of the model",
    )


def _byte_level(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> tuple[Tokenizer, bool]:
    """A byte-level vocabulary, and whether prompts begin with a token for that by default."""
    way = pre_tokenizer(str(metadata.get("tokenizer.ggml.pre", "default")))
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise damaged("it holds no merges")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        raise damaged("a merge is not a pair of tokens")
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    tokenizer = Tokenizer(BPE(vocabulary, pairs, ignore_merges=way.keeps_tokens))
    way.apply(tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, way.begins


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> tuple[Tokenizer, bool]:
    """A SentencePiece vocabulary, whose prompts begin with a token for that by default."""
    scores = np.asarray(metadata.get("tokenizer.ggml.scores", ()), np.float64)
    if len(scores) != len(tokens):
        raise damaged(f"it holds {len(tokens)} tokens and {len(scores)} scores")
    # What users define is matched before anything is merged, whatever score converters give it.
    priorities = np.where(np.asarray(types) == USER_DEFINED, np.inf, scores)
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    tokenizer = Tokenizer(
        BPE(
            vocabulary,
            merges_of(tokens, priorities),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    # As SentencePiece does it, a text that begins with a space gets another one before it.
    tokenizer.normalizer = norms.Sequence(
        [*([norms.Prepend(SPACE)] if prefix else []), norms.Replace(" ", SPACE)]
    )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer, True


def _in_bytes(tokens: Sequence[str], types: Sequence[int]) -> Sequence[str]:
    """The tokens in the byte alphabet; some files spell a few in plain text.

    Control and user-defined tokens are matched in the text as they stand, so they stay.
    """
    alphabet = frozenset(pre.ByteLevel.alphabet())
    if alphabet.issuperset(set("".join(tokens))):
        return tokens
    spell = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    return [
        "".join(piece for piece, _ in spell.pre_tokenize_str(token))
        if kind == NORMAL and not alphabet.issuperset(token)
        else token
        for token, kind in zip(tokens, types, strict=True)
    ]


def _with_spaces(tokens: Sequence[str], types: Sequence[int]) -> Sequence[str]:
    """The tokens as SentencePiece spells them; converters spell runs of spaces in plain text."""
    return [
        SPACE * len(token) if " " in token and not token.strip(" ") else token for token in tokens
    ]


KINDS = {"gpt2": (_in_bytes, _byte_level), "llama": (_with_spaces, _sentencepiece)}


def _tokens(metadata: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[int]]:
    """The tokens and their types.

    Raises:
        ModelCorrupt: There are none, or not as many of one as of the other.
    """
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise damaged("it holds no tokens")
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return tokens, [NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise damaged(f"it holds {len(tokens)} tokens and {len(types)} types")
    return tokens, np.asarray(types).tolist()


def _named(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    """The strings of the special tokens that the file names.

    Raises:
        ModelCorrupt: An id is outside the vocabulary.
    """
    named = {}
    for name, stem in NAMED.items():
        token = metadata.get(f"tokenizer.ggml.{stem}_token_id")
        if token is None:
            continue
        if not 0 <= token < len(tokens):
            raise damaged(f"its {stem} token has the id {token}, of {len(tokens)}")
        named[f"{name}_token"] = tokens[token]
    return named


def _add(
    tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int], named: Iterable[str]
) -> None:
    """Make control tokens and `named` ones special, and find user-defined ones whole in a text."""

    def of_type(wanted: int) -> list[str]:
        return [token for token, kind in zip(tokens, types, strict=True) if kind == wanted]

    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False)
            for token in dict.fromkeys([*of_type(CONTROL), *named])
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=False)
            for token in of_type(USER_DEFINED)
            if tokenizer.token_to_id(token) is not None
        ]
    )
