"""Numbers among the settings of contexts: whole where they count something, and never too small."""

from __future__ import annotations

import math

from llama_index_contextual.errors import SettingError


def check_count(name: str, value: object, *, least: int = 1, optional: bool = False) -> None:
    """Raise a SettingError for what counts nothing: no whole number, or one below ``least``."""
    if optional and value is None:
        return
    if not isinstance(value, int) or value < least:
        none = ", or None" if optional else ""
        raise SettingError(f"{name}={value!r} cannot work. Cure: give a whole number, at least {least}{none}.")


def check_amount(name: str, value: object, *, zero: bool = False) -> None:
    """Raise a SettingError for what is no amount: no number, or a negative one, or 0 unless ``zero`` says something."""
    if not isinstance(value, int | float) or math.isnan(value) or value < 0 or (value == 0 and not zero):
        raise SettingError(
            f"{name}={value!r} cannot work. Cure: give a number {'of 0 or more' if zero else 'above 0'}."
        )
