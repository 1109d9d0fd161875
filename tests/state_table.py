"""Read and change the table ``state`` of an index, as anybody could who has the file."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from llama_index_contextual.utils.sqlite_file import checksum_of


def opened(storage):
    return closing(sqlite3.connect(Path(storage) / "index.sqlite3"))


def state_in(storage):
    """Return the state of an index, by key."""
    with opened(storage) as database:
        return json.loads(database.execute("SELECT value FROM state").fetchone()[0])


def change_layout(file, layout):
    """Set the layout version of a file."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(f"PRAGMA user_version={layout}")


def change_state(storage, **values):
    """Change what an index says about itself."""
    value = json.dumps({**state_in(storage), **values})
    with opened(storage) as database, database:
        database.execute("UPDATE state SET value = ?, checksum = ?", (value, checksum_of(value)))
