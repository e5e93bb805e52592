"""Chat templates: programs in Jinja that write a conversation as the model was trained to read it.

They come with models, so they run in a sandbox. What they find there is what they find in
transformers, for which they are written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from draftproof.backends.tokenizer import refused_by_template
from draftproof.errors import InvalidInput, UnsupportedModel

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import SandboxedEnvironment


class ChatTemplate:
    """A chat template.

    Args:
        source: The template, in Jinja. It is compiled when it is first used.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def render(self, messages: Sequence[Mapping[str, str]], named: Mapping[str, str]) -> str:
        """The conversation as the model's prompt, up to where the answer begins.

        Args:
            messages: Each with a "role" and a "content", in order.
            named: Special tokens, such as "bos_token".

        Raises:
            InvalidInput: The template refuses the messages, or there are none.
            UnsupportedModel: The template is not written correctly.
        """
        if not messages:
            raise InvalidInput(
                "the conversation is empty",
                why="a chat template writes at least one message",
                remedy='pass a message, such as {"role": "user", "content": "Hello"}',
            )
        template = self._compiled
        try:
            return template.render(
                **named,
                messages=[
                    {key: value for key, value in message.items() if value is not None}
                    for message in messages
                ],
                tools=None,
                documents=None,
                add_generation_prompt=True,
            )
        except Exception as error:  # a template is a program: it can fail in any way
            raise refused_by_template(error) from error

    @cached_property
    def _compiled(self) -> Template:
        from jinja2 import TemplateSyntaxError

        try:
            return _environment().from_string(self.source)
        except TemplateSyntaxError as error:
            raise UnsupportedModel(
                "the model's chat template cannot be read",
                why=f"line {error.lineno}: {error.message}",
                remedy="pass plain text instead, or use another copy of the model",
            ) from error


def _environment() -> SandboxedEnvironment:
    """What templates are compiled and run in."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what a model wrote, for training; here it changes nothing."""

        tags = {"generation"}  # noqa: RUF012  # as jinja declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # Jinja's own escapes what HTML would mistake for markup.
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
