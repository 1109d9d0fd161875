"""Lazy imports of a package's public names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import import_module

from llama_index_contextual.utils.errors import needs


def attach(
    package: str, modules: Mapping[str, str], extra: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` functions that import public names on first use.

    Args:
        package: The name of the package.
        modules: The module of each public name, relative to the package.
        extra: The extra that these modules need, or "".
    """

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needs(package, extra) if extra else nullcontext():
            module = import_module(f"{package}.{modules[name]}")
        return getattr(module, name)

    def names() -> list[str]:
        return sorted(modules)

    return get, names
