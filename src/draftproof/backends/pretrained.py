"""Models and tokenizers from disk: a folder with config.json and safetensors, or a GGUF file.

GGUF files go through transformers' reader, which turns their weights into ordinary numbers. No
code from a model's folder is ever run.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from draftproof.backends.gguf_files import read_once
from draftproof.backends.memory import allocating, require
from draftproof.backends.runtime import quiet, require_runtime
from draftproof.backends.weights import Weights, corrupt, read_gguf, read_safetensors
from draftproof.errors import InvalidSetting, ModelNotFound, UnsupportedModel
from draftproof.ports import Model, Tokenizer

DTYPES = ("float32", "bfloat16", "float16")
REMEDY = "use a smaller model or a smaller dtype, or free some memory"


def load_model(path: str | Path, *, device: str | None = None, dtype: str | None = None) -> Model:
    """Load a model for inference.

    Args:
        path: A folder with config.json and safetensors, or a `.gguf` file.
        device: Such as "cpu" or "cuda:0"; by default CUDA where there is a device.
        dtype: "float32", "bfloat16" or "float16". By default the stored one; for a GGUF file
            bfloat16 on CUDA and on a CPU that computes in it, else float32.

    Raises:
        ModelNotFound: There is no such file, or no model in the folder.
        ModelCorrupt: A file is truncated or damaged, or weights are missing from it.
        UnsupportedModel: The architecture is unknown, or its state cannot be rewound.
        OutOfMemory: The weights do not fit.
        InvalidSetting: The device is not there or the dtype has another name.
        MissingExtra: torch or transformers is not installed.
    """
    require_runtime()
    import torch

    from draftproof.backends.attention import steady
    from draftproof.backends.wrap import wrap_model

    path = _existing(path)
    if path.is_file():
        require_runtime("gguf", "accelerate")
    place = _device(device)
    weights = _weights(path)
    number = _dtype(dtype, path, place)
    what = f"{path.name} ({weights.count / 1e6:.0f} million weights)"
    needed = weights.stored_bytes if number == "auto" else weights.count * number.itemsize
    for memory in {torch.device("cpu"), place}:
        require(needed, memory, what)
    with _reading(path), allocating(what, REMEDY):
        config = _config(path, weights.architecture)
        kind = _auto_class(config, path)
        _refuse_a_shell(kind, config, path, weights.count)
        model, report = kind.from_pretrained(
            **_source(path),
            config=config,
            dtype=number,
            ignore_mismatched_sizes=True,  # they are reported, and refused below
            output_loading_info=True,
        )
        wrong = sorted([*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])])
        if wrong:
            raise corrupt(path, f"weights are missing or misshapen: {', '.join(wrong)}")
        model = model.to(place).eval()
        steady(model)
    return wrap_model(model, path.name if path.is_dir() else path.stem)


def load_model_and_tokenizer(
    path: str | Path, *, device: str | None = None, dtype: str | None = None
) -> tuple[Model, Tokenizer]:
    """Both, reading a GGUF file once; arguments and errors are those of the two functions."""
    path = _existing(path)
    if path.is_dir():
        return load_model(path, device=device, dtype=dtype), load_tokenizer(path)
    require_runtime("gguf")
    with read_once():
        return load_model(path, device=device, dtype=dtype), load_tokenizer(path)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the tokenizer that belongs to the model at `path`.

    Raises:
        ModelNotFound: There is no such file, or no tokenizer in the folder.
        ModelCorrupt: A file is damaged.
        MissingExtra: torch or transformers is not installed.
    """
    require_runtime()
    from transformers import AutoTokenizer

    from draftproof.backends.tokenizer import TransformersTokenizer

    path = _existing(path)
    if path.is_file():
        require_runtime("gguf")
    if path.is_dir() and not any(
        (path / name).is_file()
        for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    ):
        raise ModelNotFound(
            f"{path} holds no tokenizer",
            why="text becomes token ids by the tokenizer that the model was trained with",
            remedy="put the model's tokenizer files (tokenizer.json) beside its weights",
        )
    with _reading(path):
        return TransformersTokenizer(AutoTokenizer.from_pretrained(**_source(path)))


def _existing(path: str | Path) -> Path:
    path = Path(path).expanduser()
    if not path.exists():
        raise ModelNotFound(
            f"{path} does not exist",
            why="a model is loaded from a folder or a .gguf file",
            remedy="check the path, or name a model of the catalogue or the hub",
        )
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelNotFound(
            f"{path} holds no config.json",
            why="it tells the architecture of a model in a folder",
            remedy="name the folder that a model was saved in, or a .gguf file",
        )
    if path.is_file() and path.suffix != ".gguf":
        raise ModelNotFound(
            f"{path} is neither a folder nor a .gguf file",
            why="a model is loaded from one of these",
            remedy="name the folder that holds the file, with its config.json",
        )
    return path


def _source(path: Path) -> dict[str, Any]:
    """Arguments by which transformers finds the files, without asking the network."""
    if path.is_dir():
        return {"pretrained_model_name_or_path": str(path), "local_files_only": True}
    return {
        "pretrained_model_name_or_path": str(path.parent),
        "gguf_file": path.name,
        "local_files_only": True,
    }


def _weights(path: Path) -> Weights:
    return read_safetensors(path) if path.is_dir() else read_gguf(path)


def _device(device: str | None) -> Any:
    import torch

    cuda = torch.cuda.is_available()
    if device is None:
        return torch.device("cuda" if cuda else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise InvalidSetting(
            f"no device is called {device!r}",
            why=str(error).split("\n", 1)[0],
            remedy='use "cpu" or "cuda"',
        ) from error
    if place.type == "cuda" and (not cuda or (place.index or 0) >= torch.cuda.device_count()):
        raise InvalidSetting(
            f"the device {device} is not there",
            why=f"PyTorch sees {torch.cuda.device_count()} CUDA devices",
            remedy='use "cpu", or install a PyTorch with CUDA on a machine that has such a device',
        )
    return place


def _dtype(dtype: str | None, path: Path, place: Any) -> Any:
    import torch

    if dtype is not None:
        if dtype not in DTYPES:
            raise InvalidSetting(
                f"no dtype is called {dtype!r}",
                why="weights are held in one of PyTorch's floating-point formats",
                remedy=f"use {', '.join(DTYPES)}",
            )
        return getattr(torch, dtype)
    if path.is_dir():
        return "auto"
    fast = place.type == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def _config(path: Path, architecture: str) -> Any:
    """The configuration; `architecture` is a GGUF file's own name for it.

    Raises:
        UnsupportedModel: transformers has no such architecture.
    """
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if path.is_dir():
        kind = json.loads((path / "config.json").read_text("utf-8")).get("model_type")
        if kind not in CONFIG_MAPPING:
            raise _unknown(path, kind)
    else:
        from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

        # The list spells some names as transformers does and some as GGUF does.
        readable = {name.replace("-", "").replace("_", "") for name in GGUF_SUPPORTED_ARCHITECTURES}
        if architecture.replace("-", "") not in readable:
            raise _unknown(path, architecture)
    return AutoConfig.from_pretrained(**_source(path))


def _unknown(path: Path, architecture: str | None) -> UnsupportedModel:
    return UnsupportedModel(
        f"{path.name} has the unknown architecture {architecture!r}",
        why="the installed transformers cannot run it, and code from a model's folder is never run",
        remedy="upgrade transformers, or choose another model",
    )


def _auto_class(config: Any, path: Path) -> Any:
    """Which of transformers' classes loads the model."""
    import transformers
    from transformers.models.auto import modeling_auto as known

    kinds = [
        (known.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING, transformers.AutoModelForSpeechSeq2Seq),
        (known.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, transformers.AutoModelForSeq2SeqLM),
    ]
    if not config.is_encoder_decoder:
        kinds = [(known.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.AutoModelForCausalLM)]
    for mapping, kind in kinds:
        if type(config) in mapping:
            return kind
    raise UnsupportedModel(
        f"{path.name} ({config.model_type}) is not a model that generates text",
        why="transformers has no language-model head for its architecture",
        remedy="choose a decoder-only or an encoder-decoder model",
    )


def _refuse_a_shell(kind: Any, config: Any, path: Path, count: int) -> None:
    """Refuse weights that are few for their configuration, before the memory for all is filled.

    A bare GGUF header leaves the configuration at its defaults, which may be those of a giant.
    """
    import torch

    if getattr(config, "quantization_config", None) is not None:
        return  # packed: several weights count as one
    with torch.device("meta"):
        described = kind.from_config(copy.deepcopy(config)).num_parameters()
    if described > 2 * count:
        raise corrupt(path, f"{count} weights, and its configuration describes {described}")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Keep the readers quiet, and name the file in whatever they say of a damaged one."""
    from safetensors import SafetensorError

    try:
        with quiet(), read_once() if path.is_file() else nullcontext():
            yield
    except Exception as error:
        # The tokenizers library raises Exception itself.
        if type(error) is not Exception and not isinstance(
            error, OSError | ValueError | KeyError | EOFError | SafetensorError
        ):
            raise
        raise corrupt(path, str(error).split("\n", 1)[0]) from error
