"""Dates that notes carry: in a path, a heading or a metadata value. An impossible date is no date.

Only numeric year-first forms are read, because any other order of digits is a guess.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timezone
from typing import Final

_PARTS: Final = re.compile(r"(?<![\d.])((?:19|20|21)\d{2})([-_/.])(\d{2})([-_/.])(\d{2})(?!\d)")


def date_from_path(path: str) -> date | None:
    """Find the date in a path: ``memory/2026-04-09.md``, ``2026/04/09-standup.md``, ``log/2026_04_09``.

    The deepest possible date wins; ``2026-02-31`` is none.
    """
    return _last_date(path.replace("\\", "/"))


def date_from_heading(title: str) -> date | None:
    """Find the date in a heading's text: ``2026-01-31``, ``Standup, 2026-01-31``."""
    return _last_date(title)


def parse_date(value: object) -> date | datetime | None:
    """Read a metadata value: a date, a datetime, ISO 8601 text with or without a time and a zone.

    Returns:
        A datetime where the value has a time of day (naive if it names no zone), else a date; None if it is no date.
    """
    if isinstance(value, date):  # a datetime is one too
        return value
    if not isinstance(value, str):
        return None
    text = value.strip()
    try:
        return date.fromisoformat(text)
    except ValueError:
        pass
    try:
        # Python 3.10 does not know the Z of UTC
        return datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        return date_from_heading(text)


def epoch_seconds(day: date) -> int:
    """Seconds from the epoch to midnight UTC of a day, the value of ``metadata["date_ts"]``."""
    return int(datetime.combine(day, time(), tzinfo=timezone.utc).timestamp())


def _last_date(text: str) -> date | None:
    for year, first, month, second, day in reversed(_PARTS.findall(text)):
        if first != second and "." in (first, second):
            continue
        try:
            return date(int(year), int(month), int(day))
        except ValueError:
            continue
    return None
