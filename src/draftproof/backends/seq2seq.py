"""Encoder-decoder models: T5 (the paper's own case), BART, Marian, Whisper and their kin."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from draftproof.backends.cache import RewindableCache
from draftproof.backends.loaded import LoadedModel
from draftproof.backends.memory import allocating
from draftproof.backends.prefix import REMEDY, Prefix, default_prefix
from draftproof.backends.session import CachedSession
from draftproof.core import Prompt
from draftproof.errors import (
    EmptyPrompt,
    InvalidInput,
    InvalidSetting,
    PromptTooLong,
    UnsupportedModel,
)

SPEECH = "input_features"


class Seq2SeqModel(LoadedModel):
    """An encoder-decoder transformers model as a `Model`.

    The encoder runs once, when a session is opened. The cross-attention's keys and values are
    filled by the first pass and stay; a rewind touches the decoder's self-attention alone.

    Args:
        model: What `AutoModelForSeq2SeqLM` or `AutoModelForSpeechSeq2Seq` loads, in evaluation
            mode; it is only read.
        name: What messages call it; by default where it was loaded from.
        prefix: The decoder's first tokens, such as Whisper's language and task. By default those
            of the generation settings; where these leave the language open, the model finds it in
            the sound, as in transformers.

    Raises:
        UnsupportedModel: It is not an encoder-decoder model that reads token ids or features.
        InvalidSetting: The decoder's first tokens do not follow from the generation settings, or
            are not tokens of the model.
    """

    ids_name = "decoder_input_ids"

    def __init__(
        self, model: Any, name: str | None = None, *, prefix: tuple[int, ...] | None = None
    ) -> None:
        super().__init__(model, name)
        self.prefix = default_prefix(model, self._name) if prefix is None else Prefix(prefix)
        if not self.prefix.tokens:
            raise InvalidSetting(
                f"the decoder of {self._name} has no first token",
                why="the first token's law needs at least one token before it",
                remedy=REMEDY,
            )
        for token in self.prefix.tokens:
            if not 0 <= token < self.decoder.input_rows:
                raise InvalidSetting(
                    f"the decoder of {self._name} cannot begin with token {token}",
                    why=f"its token ids run from 0 to {self.decoder.input_rows - 1}",
                    remedy=REMEDY,
                )

    @property
    def speech(self) -> bool:
        """Whether prompts are input features rather than token ids."""
        return bool(self.model.main_input_name == SPEECH)

    def open(self, prompt: Prompt) -> CachedSession:
        """A new session; `prompt` goes through the encoder now.

        Raises:
            EmptyPrompt: It has no tokens or frames.
            PromptTooLong: It does not fit in the encoder.
            InvalidInput: It is not what the encoder reads, or the model is in training mode.
            OutOfMemory: There is no memory for the encoder's pass.
        """
        self._check_prompt(prompt)
        self._refuse_training()
        device = self.decoder.device
        with (
            torch.inference_mode(),
            allocating(f"the encoder of {self.name}", "use a shorter prompt or a smaller model"),
        ):
            if isinstance(prompt, tuple):
                inputs = torch.tensor([prompt], dtype=torch.long, device=device)
            else:
                inputs = torch.tensor(prompt, dtype=self.model.dtype, device=device)[None]
            encoded = self.model.get_encoder()(inputs, return_dict=True)
        outputs = BaseModelOutput(last_hidden_state=encoded.last_hidden_state)
        prefix = self.prefix.tokens
        if self.prefix.languages:
            prefix = (prefix[0], self._language(outputs), *prefix[1:])
        return self._session(prefix, outputs)

    def _session(self, prefix: tuple[int, ...], outputs: Any) -> CachedSession:
        layers = RewindableCache()
        cache = EncoderDecoderCache(layers, DynamicCache())
        return CachedSession(self.decoder, prefix, layers, cache, {"encoder_outputs": outputs})

    def _language(self, outputs: Any) -> int:
        """The language that the model finds most likely: one pass over its start token."""
        session = self._session(self.prefix.tokens[:1], outputs)
        try:
            (logits,) = session.score(session.prefix, keep=1)
        finally:
            session.close()
        return max(self.prefix.languages, key=lambda token: float(logits[token]))

    def _check_prompt(self, prompt: Prompt) -> None:
        config = self.model.config
        if isinstance(prompt, tuple) == self.speech:
            expected = "input features" if self.speech else "token ids"
            raise InvalidInput(
                f"{self.name} was given {'token ids' if self.speech else 'input features'}",
                why=f"its encoder reads {expected}",
                remedy=f"pass {expected}",
            )
        size = len(prompt) if isinstance(prompt, tuple) else prompt.shape[1]
        if size == 0:
            raise EmptyPrompt(
                f"the prompt for {self.name} is empty",
                why="its encoder needs something to read",
                remedy="pass some text, or features of some sound",
            )
        if isinstance(prompt, tuple):
            if not all(0 <= token < self.decoder.input_rows for token in prompt):
                raise InvalidInput(
                    f"the prompt holds token ids outside the vocabulary of {self.name}",
                    why=f"its embedding has the rows 0 to {self.decoder.input_rows - 1}",
                    remedy="encode the text with the tokenizer that belongs to the model",
                )
            limit = self.context_length
            if limit is not None and size > limit:
                raise PromptTooLong(
                    f"the prompt's {size} tokens do not fit in the encoder of {self.name}",
                    why=f"it reads at most {limit} tokens",
                    remedy="shorten the prompt, or use a model with a longer context",
                )
        elif prompt.shape != (shape := (config.num_mel_bins, 2 * config.max_source_positions)):
            raise InvalidInput(
                f"the features for {self.name} have the shape {prompt.shape}",
                why=f"its encoder reads {shape[0]} bins of exactly {shape[1]} frames",
                remedy="make the features with the model's own feature extractor, which pads them",
            )

    def _shortest_prompt(self) -> Prompt:
        if not self.speech:
            return (0,)
        config = self.model.config
        return np.zeros((config.num_mel_bins, 2 * config.max_source_positions), np.float32)

    def _refuse_unrewindable(self) -> None:
        if not self.model.config.is_encoder_decoder or not self.model.can_generate():
            raise UnsupportedModel(
                f"{self._name} ({type(self.model).__name__}) is not an encoder-decoder model that "
                "generates text",
                why="it lacks an encoder, or a head that gives the next token's logits",
                remedy="load the model with AutoModelForSeq2SeqLM or AutoModelForSpeechSeq2Seq, or "
                "wrap a decoder-only model in CausalModel",
            )
        if self.model.main_input_name not in ("input_ids", SPEECH):
            raise UnsupportedModel(
                f"{self._name} ({type(self.model).__name__}) reads {self.model.main_input_name}",
                why="prompts here are token ids or the features of speech",
                remedy="use a text or speech model",
            )
        if self.model.main_input_name == SPEECH and not hasattr(self.model.config, "num_mel_bins"):
            raise UnsupportedModel(
                f"{self._name} ({type(self.model).__name__}) reads features of another kind",
                why="speech is read here as log-mel features of a fixed length, as Whisper does",
                remedy="use a Whisper model",
            )
        if getattr(self.model, "_is_stateful", False):
            raise self._refuse("has recurrent layers, which cannot be rewound")
        if not {"cache", "past_key_values"} & self._parameters:
            raise self._refuse("takes no key-value cache")
