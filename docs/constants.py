"""An extension of mkdocstrings that shows the values of constants in signatures."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import griffe

if TYPE_CHECKING:
    from griffe import Function

_CONSTANT: Final = re.compile(r"\b_?[A-Z][A-Z_]+\b")


class ConstantDefaults(griffe.Extension):
    """Replace a default such as ``POOL`` by its value, ``100``."""

    def on_function_instance(self, *, func: Function, **_: Any) -> None:
        """Replace the names of constants in the defaults of a function."""
        module = import_module(func.module.path)

        def value_of(match: re.Match[str]) -> str:
            value = getattr(module, match[0], None)
            return repr(value) if isinstance(value, int | float | str) else match[0]

        for parameter in func.parameters:
            default = str(parameter.default)
            if _CONSTANT.search(default):
                parameter.default = _CONSTANT.sub(value_of, default)
