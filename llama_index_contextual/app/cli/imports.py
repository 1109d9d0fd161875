"""What a command does not need is not imported.

``llama_index.core`` and some packages below it import all of their parts: 1,300 modules and over a second before a
question is read, and a question needs a sixth of them. In the process of the command line the names of these packages
are looked up when they are used, as :pep:`562` has it. Other programs import LlamaIndex as always.
"""

from __future__ import annotations

import ast
import sys
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, resolve_name
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_LAZY: Final = ("llama_index.core", "llama_index_contextual")
# LlamaIndex and bm25s import these for functions that a question does not need. They are run as a whole.
_WHOLE: Final = ("filetype", "fsspec", "requests", "scipy.sparse")


def import_late() -> None:
    """Have the packages of LlamaIndex and of our own give their names when they are used; for a process of our own."""
    if not any(isinstance(finder, _LatePackages) for finder in sys.meta_path):
        sys.meta_path.insert(0, _LatePackages())


class _LatePackages(MetaPathFinder):
    """Finds packages whose ``__init__.py`` is run only where a name needs it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the package as the usual finder does, with another loader; None for all else."""
        if not name.startswith(_LAZY) and name not in _WHOLE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec and spec.submodule_search_locations and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Late(name, spec.loader.path)
        return spec


class _Late(SourceFileLoader):
    """Gives the names of a package when they are used; what only running it can give has it run."""

    def exec_module(self, module: ModuleType) -> None:
        """Put off what the package does."""
        self._origins: dict[str, tuple[str, str]] = {}
        vars(module)["__getattr__"] = partial(self._value, module)

    def _value(self, module: ModuleType, name: str) -> object:
        """Import what a name stands for, or run the package where that is not known."""
        package, values = module.__name__, vars(module)
        if not self._origins and package not in _WHOLE:
            self._origins = _origins_of(str(self.get_source(package)), package, values)
        if name in values:
            return values[name]
        if name in self._origins:
            inner, original = self._origins[name]
            values[name] = getattr(import_module(inner), original)
            return values[name]
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        values.pop("__getattr__", None)  # it is made of other names, or there is none of this name
        super().exec_module(module)
        return getattr(module, name)


def _origins_of(source: str, package: str, values: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return where the names come from that a package imports; plain values that it sets go to ``values``."""
    origins = {"": ("", "")}
    for line in ast.parse(source).body:
        if isinstance(line, ast.ImportFrom):
            inner = resolve_name("." * line.level + (line.module or ""), package)
            origins |= {alias.asname or alias.name: (inner, alias.name) for alias in line.names}
        elif isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(line.value, ast.Constant):
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, line.value.value)
    return origins
