"""An extension of mkdocstrings that shows the values of constants in signatures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import griffe

if TYPE_CHECKING:
    from griffe import Function


class ConstantDefaults(griffe.Extension):
    """Replace a default such as ``POOL`` by its value, ``100``."""

    def on_function_instance(self, *, func: Function, **_: Any) -> None:
        """Replace the defaults of a function that name constants of its module."""
        module = import_module(func.module.path)
        for parameter in func.parameters:
            value = getattr(module, str(parameter.default), None)
            if isinstance(value, int | float | str):
                parameter.default = repr(value)
