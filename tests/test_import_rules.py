"""The house is as `docs/design.md` draws it: every room is on a floor, and imports only go down.

Imports for type checkers count too: a reader follows them like all others.
"""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "llama_index_contextual"
NAME = PACKAGE.name
DESIGN = (ROOT / "docs" / "design.md").read_text("utf-8")
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \|", re.MULTILINE)


def floors() -> dict[str, int]:
    """Floor of each room, as the table of the design page has it; floor 1 is the lowest."""
    return {room: int(floor) for floor, rooms in ROW.findall(DESIGN) for room in re.findall(r"`(\w+)[/.py]*`", rooms)}


def room_of(module: str) -> str:
    """The room that a module is in: its first name below the package."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = [NAME, *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)] = path
    return found


def imports(path: Path, known: set[str]) -> set[str]:
    """The modules of this package that a file names in its imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == NAME:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == NAME}
    return {name if name in known else f"{NAME}.__init__" for name in found}


MODULES = modules()
IMPORTS = {name: imports(path, set(MODULES)) for name, path in MODULES.items()}
FLOORS = floors()


def test_every_room_is_drawn_and_every_room_drawn_exists():
    rooms = {room_of(module) for module in MODULES} - {"__init__", "__main__"}
    assert rooms == set(FLOORS)


@pytest.mark.parametrize("module", [name for name in MODULES if room_of(name) not in {"__init__", "__main__"}])
def test_imports_only_go_down(module):
    own = room_of(module)
    wrong = [
        target
        for target in sorted(IMPORTS[module])
        if room_of(target) not in {own, "__init__"} and FLOORS[room_of(target)] >= FLOORS[own] > 1
    ]
    wrong += [target for target in IMPORTS[module] if FLOORS[own] == 1 and FLOORS.get(room_of(target), 0) > 1]
    assert not wrong, f"{module} imports {wrong} from a room that docs/design.md does not draw below {own}"


def test_no_files_import_one_another_in_a_circle():
    graph = {name: targets - {name, f"{NAME}.__init__"} for name, targets in IMPORTS.items()}
    # A room's __init__ only gives names out; what its own files take from it would be a circle, but that is for ruff.
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle of imports: {' -> '.join(error.args[1])}")


def test_every_file_of_a_larger_room_is_in_the_table_once():
    table = DESIGN.partition("## Files of the larger rooms")[2].partition("\n## ")[0]
    room, drawn = "", []
    for first, files in re.findall(r"^\| (`[\w/]+`)? ?\|[^|]*\| (.*) \|$", table, re.MULTILINE):
        room = first.strip("`/") or room
        drawn += [f"{room}/{name}" for name in re.findall(r"`(\w+)`", files)]
    there = [path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.glob("*/**/*.py")]
    assert sorted(drawn) == sorted(name for name in there if not name.endswith("__init__"))


def test_each_walk_has_at_most_fifteen_steps():
    walks = DESIGN.partition("## Two walks")[2].partition("\n## ")[0].split("\n**")[1:]
    steps = [len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) for walk in walks]
    assert len(steps) == 2
    assert all(0 < count <= 15 for count in steps)


@pytest.mark.parametrize("step", sorted(set(re.findall(r"`([\w/]+:[\w.]+)`", DESIGN))))
def test_what_the_walks_name_exists(step):
    file, name = step.split(":")
    thing = import_module(f"{NAME}.{file.replace('/', '.')}")
    for part in name.split("."):
        thing = getattr(thing, part)
