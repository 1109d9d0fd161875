"""The registry of context generators.

To add a generator, create ``generators/NAME.py`` with a subclass of ``ContextGenerator`` whose
``name`` is NAME. The settings, the command line, the evaluation and the documentation all read
their lists of generators from here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from llama_index_contextual.context import generators
from llama_index_contextual.context.base import ContextGenerator
from llama_index_contextual.utils.errors import SettingError, one_of, refuse_unknown

OFF = "off"
ALIASES = {None: OFF, False: OFF, "headers": "headings"}


def names() -> list[str]:
    """Return ``"off"`` and the names of all generators, without importing them."""
    return [OFF, *sorted(module.name for module in iter_modules(generators.__path__))]


def generator_class(name: str) -> type[ContextGenerator]:
    """Return the generator class with a name, from this package or else from the user's program.

    Raises:
        SettingError: No generator has this name.
    """
    module = f"{generators.__name__}.{name}"
    is_ours = name in names()
    if is_ours:
        import_module(module)
    for kind in _subclasses():
        if vars(kind).get("name") == name and (not is_ours or kind.__module__ == module):
            return kind
    one_of("context", name, tuple(names()))
    raise AssertionError(f"{module} defines no ContextGenerator named {name!r}")


def is_free(value: object) -> bool:
    """Return whether a kind of context is free. A kind that does not exist is not."""
    try:
        name = context_name(value)
    except SettingError:
        return False
    return name == OFF or generator_class(name).free


def context_name(value: object) -> str:
    """Return the name of a kind of context: a generator's name, or ``"off"`` for None and False.

    Raises:
        SettingError: There is no such kind.
    """
    if value is None or isinstance(value, str | bool):
        value = ALIASES.get(value, value)
    own_names = [kind.name for kind in _subclasses() if "name" in vars(kind)]
    if value not in own_names:
        one_of("context", value, tuple(names()))
    return str(value)


def resolve_generator(
    spec: str | ContextGenerator | bool | None = "headings", **options: Any
) -> ContextGenerator | None:
    """Return the generator that a setting names, or None if contexts are off.

    Args:
        spec: A name from :func:`names`, or a generator, which is returned unchanged.
        **options: Arguments of the generator's class.

    Raises:
        SettingError: The name or an option is unknown. The message lists the known ones.
    """
    if isinstance(spec, ContextGenerator):
        refuse_unknown("a generator that is already made", options, ())
        return spec
    name = context_name(spec)
    hint = "Use context='llm' (--context llm), or leave it out." if "llm" in options else ""
    if name == OFF:
        refuse_unknown(f"context={name!r}", options, (), hint)
        return None
    kind = generator_class(name)
    refuse_unknown(f"context={name!r}", options, inspect.signature(kind).parameters, hint)
    return kind(**options)


def _subclasses() -> Iterator[type[ContextGenerator]]:
    """Yield all imported generator classes, the latest definition first."""
    waiting = ContextGenerator.__subclasses__()
    while waiting:
        kind = waiting.pop()
        yield kind
        waiting += kind.__subclasses__()
