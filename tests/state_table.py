"""The table ``state`` of an index, read and changed as anybody could who has the file."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from llama_index_contextual.app.store.database import write_state


def state_in(storage):
    """Return what an index says of itself, by key."""
    with closing(sqlite3.connect(Path(storage) / "index.sqlite3")) as database:
        rows = database.execute("SELECT key, value FROM state")  # SQLite has made numbers of numbers already
        found = {key: json.loads(value) if isinstance(value, str) else value for key, value in rows}
    del found["checksum"]
    return found


def change_layout(file, layout):
    """Have a file be of another layout."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(f"PRAGMA user_version={layout}")


def change_state(storage, **values):
    """Have an index say something else of itself."""
    with closing(sqlite3.connect(Path(storage) / "index.sqlite3")) as database, database:
        write_state(database, values)
