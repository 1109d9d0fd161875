"""The kinds of input of benchmarks/fuzz.py that are files: the database of an index, what it says, and settings.

Each is made whole, and then damaged: some bytes of it, or some of its values. Using it may raise an error of this
package, which is how it says no, and no other.
"""

from __future__ import annotations

import copy
import json
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from llama_index.core import MockEmbedding

from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.settings.loading import load_configuration
from llama_index_contextual.errors import ContextualError

if TYPE_CHECKING:
    import random

SETTINGS = """context = "headings"
[files]
include = ["*.md", "*.txt"]
[chunks]
chunk_size = 300
tokenizer = "cl100k"
[retrieval]
top_k = 5
half_life_days = 30.0
[memory]
evergreen = ["MEMORY.md"]
[descriptions]
"api/" = "REST reference"
"""
VALUES = (
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    float("nan"),
    "",
    "x",
    "\0",
    "\ud800",
    "../..",
    "/",
    [],
    ["x"],
    [[]],
    {},
    {"x": 1},
)
KEPT: list[tempfile.TemporaryDirectory[str]] = []


@cache
def scratch() -> str:
    """A folder for the life of the process."""
    held = tempfile.TemporaryDirectory(prefix="fuzz-")
    KEPT.append(held)
    return held.name


@cache
def whole() -> tuple[Path, bytes, bytes]:
    """A folder with an index, its database, and what that says of the whole index, as JSON."""
    folder = Path(scratch()) / "docs"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.md").write_text(f"# Page {number}\n\nSome words.\n")
    with opened(folder) as index:
        index.refresh()
        with index.settings.database.reading() as snapshot:
            state = json.dumps(asdict(snapshot.state)).encode()
        file = index.settings.layout.database
    return folder, file.read_bytes(), state


def opened(folder: Path) -> ContextualIndex:
    """The index of a folder, with an embedding that costs nothing."""
    return ContextualIndex.open(folder, embed_model=MockEmbedding(4, model_name="mock"))


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Some bytes of a file flipped, left out or put in."""
    data = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 20))):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(4)
        if kind == 0 and at < len(data):
            data[at] = dice.randrange(256)
        elif kind == 1:
            data[at:at] = dice.choice(
                (b'"', b"{", b"[", b"\0", b"\xff", b"9" * 5000, b"[" * 5000, b"=", b"\n", b"'''", b"-")
            )
        elif kind == 2:
            del data[at : at + dice.choice((1, 10, 1000))]
        else:
            data[at:at] = data[: dice.randrange(200)]
    return bytes(data)


def make_state(dice: random.Random) -> bytes:
    """What an index says of itself with damaged bytes, or whole JSON in which values became others."""
    content = whole()[2]
    if dice.random() < 0.5:
        return damaged(content, dice)
    tree = json.loads(content)
    for _ in range(dice.randint(1, 3)):
        place = tree
        while True:
            key = dice.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not place[key] or not isinstance(place[key], dict | list) or dice.random() < 0.4:
                break
            place = place[key]
        place[key] = copy.deepcopy(dice.choice(VALUES))  # what is put into it later stays out of the next input
    return json.dumps(tree).encode()


def use_state(content: bytes) -> None:
    """Write it into the database, value by value, or as the settings where it is no JSON; then read the index."""
    folder, database, _ = whole()
    try:
        tree = json.loads(content)
        rows = [(key, json.dumps(value)) for key, value in tree.items()] if isinstance(tree, dict) else []
    except (ValueError, RecursionError):
        rows = [("settings", content)]
    file = replaced(folder, database)
    with closing(sqlite3.connect(file)) as written, written:
        written.executemany("DELETE FROM state WHERE key = ?", [(key,) for key, _ in rows])
        written.executemany("INSERT INTO state VALUES (?, ?)", rows)
    read(folder)


def make_database(dice: random.Random) -> bytes:
    """A database with damaged bytes."""
    return damaged(whole()[1], dice)


def use_database(content: bytes) -> None:
    """Read the index, and mend it."""
    folder = whole()[0]
    replaced(folder, content)
    read(folder)
    with opened(folder) as index:
        index.refresh()
        if not index.status(check=True).ok:
            raise AssertionError("it is not mended")


def replaced(folder: Path, content: bytes) -> Path:
    """The file of the database, with another content and without a log."""
    storage = folder / ".contextual"
    for file in storage.glob("index.sqlite3*"):
        file.unlink()
    (storage / "index.sqlite3").write_bytes(content)
    return storage / "index.sqlite3"


def read(folder: Path) -> None:
    """Open the index, ask how far it is behind, what it holds, and a question."""
    try:
        with opened(folder) as index:
            json.dumps(index.freshness(5.0).changed)
            state = index.settings.state()
            index.settings.differences(state)
            index.settings.check(state)
            index.settings.check_writing()
            index.documents()
            index.as_retriever().retrieve("Some words")
    except ContextualError:
        pass


def make_settings(dice: random.Random) -> bytes:
    """A configuration with damaged bytes, or with other values."""
    if dice.random() < 0.5:
        return damaged(SETTINGS.encode(), dice)
    lines = SETTINGS.splitlines()
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(lines))
        value = dice.choice(
            ("1", "-1", "1.5", "nan", "1e400", '""', '"x"', "[]", "[[]]", "{}", "true", "1979-05-27", "[1, 'a']")
        )
        lines[at] = f"{lines[at].partition('=')[0]} = {value}"
    return "\n".join(lines).encode()


def use_settings(content: bytes) -> None:
    """Read it from a file, and open an index with it."""
    folder = Path(scratch()) / "settings"
    folder.mkdir(exist_ok=True)
    (folder / "contextual.toml").write_bytes(content)
    try:
        load_configuration(folder)
        opened(folder).close()
    except ContextualError:
        pass
