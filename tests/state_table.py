"""The table ``state`` of an index, read and changed as anybody could who has the file."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path


def state_in(storage):
    """Return what an index says of itself, by key."""
    with closing(sqlite3.connect(Path(storage) / "index.sqlite3")) as database:
        return {key: json.loads(value) for key, value in database.execute("SELECT key, value FROM state")}


def change_state(storage, **values):
    """Have an index say something else of itself."""
    rows = [(key, json.dumps(value)) for key, value in values.items()]
    with closing(sqlite3.connect(Path(storage) / "index.sqlite3")) as database, database:
        database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", rows)
