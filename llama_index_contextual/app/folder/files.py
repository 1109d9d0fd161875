"""The one way to open a file that a user, an agent or a folder names."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from llama_index_contextual.errors import DocumentError

UNREAD: Final = "it cannot be read"  # by the system; that may change while size and times stay
MOST_BYTES: Final = 100_000_000
_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOCTTY", 0)


def read_file(path: Path | str, most: int = MOST_BYTES, *, root: Path | None = None) -> bytes:
    """The bytes of a regular file. A pipe or a device is refused before it is opened, so nothing hangs or never ends.

    Use it for each file whose name comes from outside: ``preview FILE``, ``evaluate -q FILE``, an ignore file, settings
    in a folder.

    Args:
        path: The file.
        most: Bytes that it may have; a sparse file counts with its full size.
        root: The folder that it must lie in after all links are followed; None for any.

    Raises:
        DocumentError: It is no regular file, larger, outside of the root, or the system refuses. The message does not
            name the path.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  which knows of loops of links in all versions of Python
        if not stat.S_ISREG(status.st_mode):
            raise DocumentError(f"{UNREAD} (no regular file). Cure: a file that is no pipe, device or folder.")
        if root is not None and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            raise DocumentError(f"it is a symbolic link out of {root}. Cure: read that file under its own name.")
        with open(os.open(path, _FLAGS), "rb") as file:  # noqa: PTH123  a descriptor
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # changed in between
                raise DocumentError(f"{UNREAD} (no regular file).")
            data = file.read(most + 1) if max(status.st_size, os.fstat(file.fileno()).st_size) <= most else None
    except (OSError, ValueError) as error:  # a ValueError: NUL in a name
        raise DocumentError(f"{UNREAD} ({getattr(error, 'strerror', None) or error}).") from error
    if data is None or len(data) > most:
        raise DocumentError(f"it has more than {most:,} bytes. Cure: split it.")
    return data
