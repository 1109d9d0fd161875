"""The exception tree. Every message names the thing, its value and the cure.

::

    ContextualError
    ├── SettingError          a wrong setting (also a ValueError)
    ├── MissingExtraError     an optional part is not installed (also an ImportError)
    ├── DocumentError         one file or document that cannot be read; the rest goes on
    ├── StorageError          the index on disk cannot be opened, written or trusted
    │   ├── FingerprintError  it was made with other settings
    │   ├── ConfirmationError a refresh would delete or pay for much, and nobody has agreed to that
    │   ├── LockedError       another process is writing it
    │   └── DamagedError      something on disk is lost or cannot be read, and can be made again
    ├── EmbeddingError        the embedding model failed or is not what it should be
    ├── ContextError          a context generator failed and no fallback was allowed
    ├── RetrievalError        every retrieval arm failed
    ├── AnswerError           a language model that should answer a question failed
    └── CopyError             an object cannot be pickled, as it holds an open database (also a TypeError)

    ContextualWarning         something was degraded, counted and reported; nothing is lost
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ContextualError(Exception):
    """Base of every exception that this package raises on purpose."""


class SettingError(ContextualError, ValueError):
    """A setting has a value that cannot work.

    Args:
        text: What is wrong, and the cure.
        **settings: The settings that it is about, by their names in Python, and their values. The message begins with
            them: ``chunk_size=0 is not positive. …``; the command line names its options instead.
    """

    def __init__(self, text: str = "", **settings: object) -> None:
        super().__init__(text)
        self.settings = {name: repr(value) for name, value in settings.items()}

    def __str__(self) -> str:
        return self.shown("{}={}".format)

    def shown(self, named: Callable[[str, str], str]) -> str:
        """Return the message, with what a function makes of the name of each setting and of its value as text."""
        text = super().__str__()
        start = ", ".join(named(name, value) for name, value in self.settings.items())
        return f"{start}{'' if text.startswith(':') else ' '}{text}" if start else text


class MissingExtraError(ContextualError, ImportError):
    """An optional dependency is missing; the message names the extra that brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed. Cure: pip install 'llama-index-contextual[{extra}]'")
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        what = str(self).split(" is not installed.", 1)[0]
        return (type(self), (what, self.extra))


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Raise a MissingExtraError for an import that fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(what, extra) from error


class DocumentError(ContextualError):
    """One document cannot be read or parsed."""


class StorageError(ContextualError):
    """The stored index cannot be opened, written or trusted."""


class FingerprintError(StorageError):
    """The stored index was made with settings that do not fit the ones given now."""


class ConfirmationError(StorageError):
    """A refresh would delete most documents, or pay a language model again, and has to be confirmed."""


class LockedError(StorageError):
    """Another process holds the index's write lock."""


class DamagedError(StorageError):
    """What is kept on disk, or by a server, is lost or cannot be read; it can be made again."""


class EmbeddingError(ContextualError):
    """The embedding model failed, or is not the one it should be."""


class ContextError(ContextualError):
    """A context could not be generated and no fallback was allowed."""


class RetrievalError(ContextualError):
    """No retrieval arm could answer."""


class AnswerError(ContextualError):
    """A language model that should answer a question cannot be asked, or failed."""


class CopyError(ContextualError, TypeError):
    """An object cannot be pickled: it holds something open that exists in this process only."""


class ContextualWarning(UserWarning):
    """Something was degraded, counted and reported; nothing is lost."""
