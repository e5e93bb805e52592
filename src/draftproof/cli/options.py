"""Options that several commands share, and what they become."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from draftproof.backends.choice import Backend
from draftproof.engine import Options
from draftproof.load import DrafterName

Command = TypeVar("Command", bound=Callable[..., Any])

BACKENDS = get_args(Backend)
DTYPES = ("float32", "float16", "bfloat16")
BITS = ("8", "4")


class DraftLength(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """`auto`, or a number of tokens."""

    name = "auto|N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        """Parse the option's text."""
        if value == "auto" or isinstance(value, int):
            return value  # type: ignore[no-any-return]  # click hands defaults through
        if not str(value).isdecimal():
            self.fail(f"{value!r} is neither 'auto' nor a number of tokens", param, ctx)
        return int(value)


class Size(click.ParamType):  # type: ignore[type-arg]
    """Bytes, or a number of KiB, MiB, GiB, KB, MB or GB."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the option's text."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:([kmg])(i?)b?|b)?", str(value).lower())
        if match is None:
            self.fail(f"{value!r} is not a size, such as 4GiB or 512MiB", param, ctx)
        number, unit, binary = match.groups()
        return int(float(number) * (1024 if binary else 1000) ** " kmg".index(unit or " "))


class TokenBias(click.ParamType):  # type: ignore[type-arg]
    """`ID=BIAS`: a token id and what is added to its logit."""

    name = "ID=BIAS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """Parse the option's text."""
        if isinstance(value, tuple):
            return value
        token, _, bias = str(value).partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not of the form ID=BIAS, such as 42=-100", param, ctx)


def apply(decorators: list[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    """All decorators, so that `--help` lists them in the order written."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


target_option = click.option(
    "--target",
    default="smollm2-135m",
    show_default=True,
    help="The model whose text it is: a catalogue name, org/name[:file.gguf] or a path.",
)
draft_option = click.option(
    "--draft",
    help="The draft model, named like the target; with --drafter ngram a file of counts, with "
    "suffix one of past outputs.",
)
drafter_option = click.option(
    "--drafter",
    type=click.Choice(get_args(DrafterName)),
    help="What drafts: mix, the draft model and the matches in the text, where --draft is given, "
    "else suffix, the matches alone.",
)
target_placement_options = apply(
    [
        click.option(
            "--backend",
            type=click.Choice(BACKENDS),
            help="What computes the target; by default cpu for a GGUF file that it runs, else "
            "torch.",
        ),
        click.option("--device", help="Where torch runs the target, such as cpu or cuda:0."),
        click.option("--dtype", type=click.Choice(DTYPES), help="torch's format for the target."),
        click.option(
            "--threads", type=int, help="Threads of the backend cpu; the fastest by default."
        ),
        click.option(
            "--cache-memory",
            type=Size(),
            help="Most memory for a model's keys and values on the backend cpu, such as 4GiB; half "
            "of what is free by default.",
        ),
        click.option(
            "--quantize",
            type=click.Choice(BITS),
            callback=lambda context, option, bits: None if bits is None else int(bits),
            help="Bits per weight that the backend cpu quantises a folder's weights to.",
        ),
    ]
)
placement_options = apply(
    [
        target_placement_options,
        click.option(
            "--draft-backend",
            type=click.Choice(BACKENDS),
            help="What computes the draft; the target's by default.",
        ),
        click.option("--draft-device", help="Where torch runs the draft; the target's by default."),
        click.option(
            "--draft-dtype", type=click.Choice(DTYPES), help="torch's format for the draft."
        ),
        click.option(
            "--draft-bits",
            type=click.Choice(["4", "stored"]),
            default="4",
            show_default=True,
            callback=lambda context, option, bits: None if bits == "stored" else int(bits),
            help="Bits per weight that a GGUF draft on the backend cpu is cut to; it drafts "
            "faster, and the target's text stays the same.",
        ),
    ]
)
pair_options = apply(
    [
        target_option,
        draft_option,
        drafter_option,
        click.option(
            "--draft-length",
            type=DraftLength(),
            default="auto",
            show_default=True,
            help="Tokens drafted per round; auto chooses from measured costs and acceptance.",
        ),
        placement_options,
    ]
)
law_options = apply(
    [
        click.option(
            "--temperature", type=float, default=0.0, show_default=True, help="0 is the argmax."
        ),
        click.option("--top-k", type=int, help="Keep the k most probable tokens."),
        click.option(
            "--top-p",
            type=float,
            default=1.0,
            show_default=True,
            help="Keep the fewest tokens that hold this mass.",
        ),
        click.option(
            "--min-p",
            type=float,
            default=0.0,
            show_default=True,
            help="Keep tokens of at least this times the highest probability.",
        ),
        click.option(
            "--repetition-penalty",
            type=float,
            default=1.0,
            show_default=True,
            help="On tokens met in prompt or output; 1 is off.",
        ),
        click.option(
            "--presence-penalty",
            type=float,
            default=0.0,
            show_default=True,
            help="Off the logit of tokens met in the output.",
        ),
        click.option(
            "--frequency-penalty",
            type=float,
            default=0.0,
            show_default=True,
            help="Off the logit, per occurrence in the output.",
        ),
        click.option(
            "--logit-bias",
            type=TokenBias(),
            multiple=True,
            help="Added to a token's logit; may be repeated.",
        ),
        click.option(
            "--ban", "banned", multiple=True, help="A word that must not appear; may be repeated."
        ),
    ]
)
verify_option = click.option(
    "--verify",
    type=click.Choice(["auto", "token", "block", "coupled"]),
    default="auto",
    show_default=True,
    help="The rule; auto is coupled where a seed is given, else block.",
)
output_options = apply(
    [
        click.option("--max-tokens", type=int, default=256, show_default=True, help="Most tokens."),
        click.option("--min-tokens", type=int, default=0, show_default=True, help="Fewest tokens."),
        click.option(
            "--stop", multiple=True, help="The text ends before this string; may be repeated."
        ),
        click.option("--seed", type=int, help="Makes the output reproducible."),
        verify_option,
        click.option(
            "--logprobs",
            type=int,
            metavar="N",
            help="Report log-probabilities and the N most probable tokens (in --json).",
        ),
    ]
)
prompts_options = apply(
    [
        click.option(
            "--prompts",
            type=click.Path(dir_okay=False, path_type=Path),
            help='JSON lines with "prompt" or "turns", gzipped or not; the package\'s own by '
            "default.",
        ),
        click.option(
            "--raw", is_flag=True, help="Take the prompts as they are, without chat template."
        ),
    ]
)
explain_options = apply(
    [
        click.option(
            "--explain",
            is_flag=True,
            help="Tell each round: what drafted, each token with p and q, what was accepted, why "
            "the draft stopped, milliseconds (with --json: rounds).",
        ),
        click.option(
            "--explain-page",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write an HTML page: the text with each token's origin, p and q, and acceptance "
            "along it.",
        ),
    ]
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

result_options = apply(
    [
        click.option(
            "--output",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Where to write the result; benchmarks/results/ where the current folder has it.",
        ),
        json_option,
    ]
)

LOAD_NAMES = (
    "target", "draft", "drafter", "draft_length",
    "backend", "device", "dtype", "threads", "cache_memory", "quantize",
    "draft_backend", "draft_device", "draft_dtype", "draft_bits",
)  # fmt: skip


def split(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keyword arguments of `load` and of `generate` in a command's options.

    Raises:
        InvalidSetting: A setting is out of range: said here, before any model is loaded.
    """
    loading = {name: given.pop(name) for name in LOAD_NAMES if name in given}
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    Options.of(given)
    return loading, given
