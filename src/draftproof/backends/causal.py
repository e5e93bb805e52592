"""Decoder-only models."""

from __future__ import annotations

import torch

from draftproof.backends.cache import RewindableCache, rewindable_layers
from draftproof.backends.checks import require_token_prompt
from draftproof.backends.loaded import LoadedModel
from draftproof.backends.session import CachedSession
from draftproof.core import Prompt
from draftproof.errors import UnsupportedModel


class CausalModel(LoadedModel):
    """A decoder-only transformers model as a `Model`.

    Full, sliding-window and chunked attention are rewound exactly. Models with recurrent,
    convolutional or other state are refused by name.

    Args:
        model: What `AutoModelForCausalLM` loads, in evaluation mode; it is only read.
        name: What messages call it; by default where it was loaded from.

    Raises:
        UnsupportedModel: Its state cannot be rewound, or it is not a decoder-only model.
    """

    ids_name = "input_ids"

    def open(self, prompt: Prompt) -> CachedSession:
        """A new session over `prompt`, which is not scored yet.

        Raises:
            EmptyPrompt: It has no tokens.
            PromptTooLong: It leaves no room in the context.
            InvalidInput: It is not token ids, or the model is in training mode.
        """
        prompt = require_token_prompt(self.name, prompt, self.context_length)
        self._refuse_training()
        layers, _ = rewindable_layers(self.model.config)
        cache = RewindableCache(layers)
        return CachedSession(self.decoder, prompt, cache, cache, {})

    def _shortest_prompt(self) -> Prompt:
        return (0,)

    def _refuse_unrewindable(self) -> None:
        if self.model.config.is_encoder_decoder:
            raise UnsupportedModel(
                f"{self._name} ({type(self.model).__name__}) is an encoder-decoder model",
                why="its prompt goes through the encoder",
                remedy="wrap it in Seq2SeqModel",
            )
        if not self.model.can_generate() or not self._reads_left_to_right():
            raise UnsupportedModel(
                f"{self._name} ({type(self.model).__name__}) is not a decoder",
                why="nothing in it gives the next token's logits from the tokens before it alone",
                remedy="load a decoder-only model with AutoModelForCausalLM",
            )
        types = getattr(self.config, "layer_types", None) or ()
        if getattr(self.model, "_is_stateful", False):
            kinds = f" ({', '.join(sorted(set(types)))})" if types else ""
            raise self._refuse(f"has recurrent layers{kinds}, which cannot be rewound")
        if not {"cache", "past_key_values"} & self._parameters:
            raise self._refuse("takes no key-value cache")
        try:
            _, foreign = rewindable_layers(self.model.config)
        except (KeyError, ValueError, AttributeError) as error:
            raise self._refuse(
                f"has layers of an unknown kind, among {sorted(set(types))}"
            ) from error
        if foreign:
            kinds = ", ".join(sorted(foreign))
            raise self._refuse(f"has layers that cannot be rewound: {kinds}")

    def _reads_left_to_right(self) -> bool:
        """False for encoders that have a language-model head, as BERT's kin may.

        Some decoders' configurations (GPT-NeoX) say `is_decoder=False` too, so where one does the
        model is asked: a second token must not move the first one's logits.
        """
        flags = (getattr(self.config, name, True) for name in ("is_decoder", "is_causal"))
        if all(flag is not False for flag in flags):
            return True
        self._refuse_training()
        device = self.model.get_input_embeddings().weight.device
        with torch.inference_mode():
            first, second = (
                self.model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0]
                for ids in ((0, 0), (0, 1))
            )
        return bool(torch.allclose(first[0], second[0], rtol=1e-3, atol=1e-3))
