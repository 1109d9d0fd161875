"""What a command does not need is not imported.

``llama_index.core`` and some packages below it import all of their parts: 1,300 modules and over a second before a
question is read, and a question needs a sixth of them. In the process of the command line the names of these packages
are looked up when they are used, as :pep:`562` has it. Other programs import LlamaIndex as always.
"""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_LAZY: Final = ("llama_index.core", "llama_index_contextual")


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
        if not name.startswith(_LAZY):
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is not None and found.submodule_search_locations is not None and found.loader is not None:
            found.loader = _Late(found.loader)
        return found


class _Late(Loader):
    """Gives the names of a package; what only running it can give has it run."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make it."""

    def exec_module(self, module: ModuleType) -> None:
        """Put off what the package does."""
        package, real = module.__name__, self._real
        known: dict[str, tuple[str, str]] = {}

        def look_up(name: str) -> object:
            if not known:
                known.update(_names_of(real.get_source(package), package, vars(module)))
            if name in vars(module):
                return vars(module)[name]
            if name in known:
                inner, given = known[name]
                found = getattr(import_module(inner), given)
            elif not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")
            elif name.startswith("__") and name not in ("__all__", "__version__"):
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            else:  # what it makes of others, or a name that it does not have
                vars(module).pop("__getattr__", None)
                real.exec_module(module)
                return getattr(module, name)
            setattr(module, name, found)
            return found

        vars(module)["__getattr__"] = look_up


def _names_of(source: str, package: str, values: dict[str, Any]) -> dict[str, tuple[str, str]]:
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
