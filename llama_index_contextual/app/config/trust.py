"""Where the user's own settings are, and which settings a folder may set by itself.

A folder of documents is data. What it sets of servers, models, stores, paths and secrets never counts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from platformdirs import user_config_path, user_data_path
from pydantic import ValidationError

from llama_index_contextual.app.config.declaring import as_list
from llama_index_contextual.app.config.keys import SETTINGS

_NAME: Final = "llama-index-contextual"


def user_folder() -> Path:
    """Return where this user's own settings are: ``~/.config/llama-index-contextual`` or what the system has for it."""
    return user_config_path(_NAME, appauthor=False)


def user_storage() -> Path:
    """Return where the index of the folders is that the user's own settings name under ``[collections]``."""
    return user_data_path(_NAME, appauthor=False).resolve() / "collections"


def is_safe(key: str, value: Any) -> bool:
    """Return whether a folder may set a value; so also of a key that is not known, an error anyway.

    Args:
        key: With dots, as ``"chunks.chunk_size"``.
        value: As TOML has it, before it is checked.
    """
    safe = SETTINGS[key].safe if key in SETTINGS else True
    if isinstance(safe, bool):
        return safe
    listed = as_list(value)
    return all(item in safe for item in (listed if isinstance(listed, list | tuple) else [listed]))


def may_say(key: str, value: Any) -> bool:
    """Return whether an index may set a value: what a folder may, where it is known and valid."""
    try:
        return key in SETTINGS and is_safe(key, SETTINGS[key].adapter.validate_python(value))
    except ValidationError:
        return False


def is_strange(owner: int) -> bool:
    """Return whether a file belongs to another user; for root, who called ``sudo`` is no other user.

    Windows has no such numbers: there nobody counts as another.
    """
    if not hasattr(os, "geteuid"):
        return False
    users = {os.geteuid()}
    if users == {0} and (caller := os.environ.get("SUDO_UID", "")).isdecimal():
        users.add(int(caller))
    return owner not in users
