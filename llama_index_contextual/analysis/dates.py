"""ISO dates as words, so that "in April" and "9 de abril" find 2026-04-09."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

_ISO: Final = re.compile(r"(?<!\d)(\d{4})[-_/.](\d{1,2})[-_/.](\d{1,2})(?!\d)")

MONTHS: Final = {
    "en": "january february march april may june july august september october november december",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
}


def take_dates(word: str) -> tuple[list[dt.date], str]:
    """The valid dates in a word, and the rest of the word; impossible dates (2026-02-31) are no dates."""
    dates: list[dt.date] = []

    def take(match: re.Match[str]) -> str:
        year, month, day = map(int, match.groups())
        try:
            dates.append(dt.date(year, month, day))
        except ValueError:
            return match.group()
        return "-"

    return dates, _ISO.sub(take, word).strip("-")
