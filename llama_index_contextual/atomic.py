"""Replace a file as a whole: a reader, or a kill at any instant, meets the old content or the new one."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable


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
            f"{path} cannot be written ({error.strerror}). What was there before is unharmed. "
            "Cure: free space or make the folder writable, then refresh."
        ) from error
    return status
