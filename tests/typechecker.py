"""What checks annotations while the tests run: beartype, and jaxtyping where they name shapes.

jaxtyping's own decorator binds and checks the parameters of every call twice, in a scope of shapes
that few of them need: it took a third of the suite's time. `checked` opens a scope only where an
annotation names a shape; the hook of `--jaxtyping-packages` is given it in that decorator's place.
"""

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

# An int where a float is due is allowed, as type checkers have it (PEP 484).
typed = beartype(conf=BeartypeConf(is_pep484_tower=True))
scope = jaxtyping.jaxtyped


def checked(fn: Any) -> Any:
    """A function, or a dataclass by its `__init__`, that refuses what its annotations exclude."""
    if inspect.isclass(fn):
        if dataclasses.is_dataclass(fn) and "__init__" in vars(fn):
            fn.__init__ = checked(fn.__init__)
        return fn
    names = fn.__globals__
    hints = {name: resolved(hint, names) for name, hint in fn.__annotations__.items()}
    fn.__annotations__ = hints
    checking = typed(fn)
    return within_a_scope(checking) if any(map(has_shape, hints.values())) else checking


def resolved(hint: Any, names: dict[str, Any]) -> Any:
    """What an annotation in text stands for; anything, where it cannot be evaluated (yet)."""

    def holder() -> None: ...

    holder.__annotations__ = {"hint": hint}
    try:
        return typing.get_type_hints(holder, names, include_extras=True)["hint"]
    except Exception:
        return Any


def has_shape(hint: Any) -> bool:
    """Whether a hint, or one within it, names a shape."""
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(has_shape, typing.get_args(hint)))


def within_a_scope(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Each call has its own sizes for the names of axes, in parameters and result alike."""

    @functools.wraps(fn)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        with scope("context"):
            return fn(*args, **kwargs)

    return scoped


def install() -> None:
    """Give the import hook `checked` for its decorator, and let protocols keep their members."""
    jaxtyping.jaxtyped = lambda typechecker: typechecker
    if sys.version_info < (3, 12):  # which gather them anew for every `isinstance`
        typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
