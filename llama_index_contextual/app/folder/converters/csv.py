"""CSV files and similar tables."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from pathlib import Path

from llama_index_contextual.app.folder.files import decode
from llama_index_contextual.app.folder.formats import Conversion, Part, declare_format
from llama_index_contextual.app.folder.tables import tables_of

_DELIMITERS = ";\t|,"
_SAMPLE = 100_000  # characters
_SAMPLE_LINES = 20
_LONGEST_FIELD = 1_000_000


@declare_format("CSV", ".csv", ".tsv", kept="titles above the table")
def read_csv(path: Path) -> Conversion:
    """Return a table whose header is the first line. Empty lines are ignored."""
    text = decode(path.read_bytes()).text.removeprefix("\ufeff").replace("\0", "")
    csv.field_size_limit(_LONGEST_FIELD)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
    filled_rows = (row for row in rows if any(map(str.strip, row)))
    return Conversion([Part(tables_of(filled_rows))])


def _delimiter(text: str) -> str:
    """Return the delimiter that occurs equally often in most lines."""
    lines = re.sub('"[^"]*"', "", text[:_SAMPLE]).split("\n")[:_SAMPLE_LINES]
    alike = {}
    for sign in _DELIMITERS:
        counts = Counter(line.count(sign) for line in lines if sign in line)
        alike[sign] = max(counts.values(), default=0)
    return max(alike, key=alike.__getitem__)
