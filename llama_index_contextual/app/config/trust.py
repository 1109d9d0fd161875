"""Whose settings count: the user's own folder of settings, the folders that the user trusts, and seals.

A folder of documents is data. What it says about servers, models, stores, paths and secrets counts only after the user
has said so, once for each content. An index of the user's own carries a seal, made with a key that only this user has:
so it opens again without options, and one that a stranger made does not.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock
from platformdirs import user_config_path, user_data_path
from pydantic import ValidationError

from llama_index_contextual.app.config.declaring import as_list
from llama_index_contextual.app.config.keys import SETTINGS
from llama_index_contextual.errors import ContextualWarning, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NAME: Final = "llama-index-contextual"
_MAX_BYTES: Final = 100_000_000  # of the file that says whom the user trusts
_SECONDS: Final = 10.0  # to wait for another process that changes the file


def user_folder() -> Path:
    """Return where this user's own settings are: ``~/.config/llama-index-contextual`` or what the system has for it."""
    return user_config_path(_NAME, appauthor=False)


def user_storage() -> Path:
    """Return where the index of the folders is that the user's own settings name under ``[collections]``."""
    return user_data_path(_NAME, appauthor=False).resolve() / "collections"


def is_safe(key: str, value: Any) -> bool:
    """Return whether a folder may say a value that nobody trusts; so also of a key that is not known, an error anyway.

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
    """Return whether an index may say a value that nobody trusts: what a folder may, where it is known and valid."""
    try:
        return key in SETTINGS and is_safe(key, SETTINGS[key].adapter.validate_python(value))
    except ValidationError:
        return False


def digest_of(values: Any) -> str:
    """Return the hash of plain values."""
    return hashlib.sha256(_serialised(values)).hexdigest()


def is_trusted(folder: str | Path, digest: str) -> bool:
    """Return whether the user trusts what a folder says, as long as it says just that."""
    return digest in _read()["folders"].get(_path(folder), [])


def trusted_folders() -> list[str]:
    """Return the folders that the user trusts."""
    return sorted(_read()["folders"])


def trust(folder: str | Path, digests: Iterable[str]) -> None:
    """Trust what a folder says now, in place of what it said before.

    Raises:
        SettingError: That cannot be written down.
    """
    with _editing() as record:
        record["folders"][_path(folder)] = sorted(digests)


def distrust(folder: str | Path) -> bool:
    """Trust a folder no longer; return whether it was trusted.

    Raises:
        SettingError: That cannot be written down.
    """
    with _editing() as record:
        return record["folders"].pop(_path(folder), None) is not None


def seal_of(values: Any) -> str:
    """Return a seal for plain values, which nobody without this user's key can make; "" where no key can be kept."""
    try:
        key = _read()["key"]
        if not key:
            with _editing() as record:
                key = record["key"] = record["key"] or secrets.token_hex(32)
    except SettingError as error:
        warnings.warn(f"The index will ask for its settings when it is opened again. {error}", ContextualWarning, 2)
        return ""
    return hmac.new(key.encode(), _serialised(values), "sha256").hexdigest()


def is_sealed(values: Any, seal: str) -> bool:
    """Return whether a seal is this user's, and of these values."""
    key = _read()["key"] if seal else ""
    return bool(key) and hmac.compare_digest(hmac.new(key.encode(), _serialised(values), "sha256").hexdigest(), seal)


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


def _path(folder: str | Path) -> str:
    return str(Path(folder).expanduser().resolve())


def _serialised(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, default=str).encode("utf-8", "surrogatepass")


def _file() -> Path:
    return user_folder() / "trusted.json"


def _read() -> dict[str, Any]:
    path = _file()
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(_MAX_BYTES))
        folders = {str(folder): [str(digest) for digest in digests] for folder, digests in record["folders"].items()}
        return {"key": str(record["key"]), "folders": folders}
    except (FileNotFoundError, NotADirectoryError):
        return {"key": "", "folders": {}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SettingError(
            f"{path} cannot be read ({type(error).__name__}). Cure: make it readable; or delete it, and trust your "
            "folders again."
        ) from error


@contextlib.contextmanager
def _editing() -> Iterator[dict[str, Any]]:
    """Change the record: one process at a time, whole or not at all."""
    path, temporary = _file(), ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(path.with_name("trusted.lock"), timeout=_SECONDS):
            record = _read()
            yield record
            descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # readable by this user alone
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(record, file, indent=1, sort_keys=True)
            Path(temporary).replace(path)
    except (OSError, TimeoutError) as error:  # filelock's Timeout is a TimeoutError
        with contextlib.suppress(OSError):
            Path(temporary or path.with_name("none")).unlink()
        raise SettingError(f"{path} cannot be written ({error}). Cure: make that folder writable.") from error
