"""A file that is replaced as a whole: a kill at any moment leaves its old content or the new one."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

_STALE: Final = 3600.0  # seconds after which nobody is still at work on a new content


def write_atomically(path: Path, data: bytes, *, check: Callable[[], None] | None = None) -> os.stat_result:
    """Replace a file's content, and keep its mode; return what the new file says of itself.

    Args:
        path: The file.
        data: What it holds afterwards.
        check: Called when all of it is on disk, right before the file is replaced. Where it raises, the old content
            is kept.

    Raises:
        StorageError: That failed; the old content is kept.
    """
    temporary = ""
    try:
        _remove_stale(path)
        temporary = str(path.with_name(f".{path.name}.{secrets.token_hex(4)}"))
        with Path(temporary).open("xb") as file:  # as readable for others as all files of this user
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            status = os.fstat(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).chmod(stat.S_IMODE(path.stat().st_mode))
        if check is not None:
            check()
        Path(temporary).replace(path)
    except BaseException as error:  # it may be interrupted, too
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        if not isinstance(error, OSError):
            raise
        raise StorageError(
            f"{path} cannot be written ({error.strerror}). What was there before is unharmed. Cure: make its folder "
            "one that exists and that you may write, with free space, then do the same again."
        ) from error
    return status


def _remove_stale(path: Path) -> None:
    """Remove what writers of this file left that were killed."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}"):
        with contextlib.suppress(OSError):  # another writer does the same
            if time.time() - left.stat().st_mtime > _STALE:
                left.unlink()
