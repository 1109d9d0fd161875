"""The exception tree, and the checks of settings that raise it. Every message names the thing, its value and the cure.

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

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from random import uniform
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tenacity import RetryCallState

_LOGIN: Final = re.compile(r"((?i:https?)://)[^/\s]*@")


class ContextualError(Exception):
    """Base of every exception that this package raises on purpose."""


class SettingError(ContextualError, ValueError):
    """A setting has a value that cannot work.

    Args:
        text: What is wrong, and the cure.
        **settings: The settings that it is about, by their names in Python, and their values. The message begins with
            them: ``chunk_size=0 is not positive. …``.
    """

    def __init__(self, text: str = "", **settings: object) -> None:
        super().__init__(text)
        self.settings = {name: repr(value) for name, value in settings.items()}

    def __str__(self) -> str:
        text, start = (
            super().__str__(),
            ", ".join(f"{name}={value}" for name, value in self.settings.items()),
        )
        return f"{start}{'' if text.startswith(':') else ' '}{text}" if start else text


EXTRAS: Final = ("app", "local", "multilingual", "documents", "chroma", "llm", "ray")


class MissingExtraError(ContextualError, ImportError):
    """An optional dependency is missing; the message names what brings it.

    Args:
        what: What is missing.
        extra: An extra of this package, or another package.
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)

    def __str__(self) -> str:
        what, extra = self.args
        package = f"'llama-index-contextual[{extra}]'" if extra in EXTRAS else extra
        return f"{what} is not installed. Cure: pip install {package}"


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
    """The stored index was made with settings that do not fit the present ones."""


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


# Checks of settings


def whole(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """A count as an int; numpy's 3 and 3.0 are 3, as 1e6 and numbers in JSON are floats.

    Raises:
        SettingError: It is no whole number, or out of bounds.
    """
    number = _number(value)
    if not number.is_integer() or number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise SettingError(f"cannot work. Cure: give a whole number, {bounds}.", **{name: value})
    return int(value)  # type: ignore[call-overload,no-any-return]


def amount(name: str, value: object, *, zero: bool = False, most: float = math.inf) -> float:
    """An amount: a number above 0.

    Args:
        name: The setting.
        value: The value of the setting.
        zero: Whether 0 is allowed.
        most: What it may be at most.

    Raises:
        SettingError: It is no number, or out of bounds.
    """
    number = _number(value)
    if number >= 0 and (number or zero) and number <= most and number < math.inf:
        return number
    kind = "finite number" if most == math.inf else "number"
    bounds = f"{'from' if zero else 'above'} 0{f' to {most:g}' if most < math.inf else ''}"
    raise SettingError(f"cannot work. Cure: give a {kind} {bounds}.", **{name: value})


def _number(value: object) -> float:
    """A number of any kind as a float; nan for anything else, True and False included."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an int of more than 308 digits
        return math.inf


def one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise a SettingError for a value that is not allowed."""
    if value not in allowed:
        raise SettingError(
            f"is not known. Cure: one of {', '.join(map(repr, allowed))}.", **{name: value}
        )


def refuse_unknown(what: str, names: Iterable[str], known: Iterable[str], cure: str = "") -> None:
    """Raise a SettingError for settings that nobody reads, which a misspelt one is.

    Args:
        what: Takes the settings.
        names: What a caller passed.
        known: Names that it takes.
        cure: What to say instead of listing those.
    """
    takes = sorted(known)
    if unknown := sorted(set(names).difference(takes)):
        cure = cure or (f"use some of {', '.join(takes)}" if takes else "leave them out")
        raise SettingError(f"{what} does not take {', '.join(unknown)}. Cure: {cure}.")


class Checked:
    """The first base of a pydantic class whose wrong or unknown settings are a :class:`SettingError`.

    LlamaIndex calls such a class by its name.
    """

    if not TYPE_CHECKING:  # a type checker reads the fields instead

        def __init__(self, **settings: Any) -> None:
            refuse_unknown(
                type(self).__name__, set(settings) - {"class_name"}, type(self).model_fields
            )
            from pydantic import (
                ValidationError,
            )  # a process that converts documents does without it

            try:
                super().__init__(**settings)
            except ValidationError as error:  # it is no ContextualError
                fault = error.errors(include_url=False)[0]
                name = str(fault["loc"][0]) if fault["loc"] else "settings"
                raise SettingError(
                    f"cannot work. Cure: {cure_of(fault)}.", **{name: fault["input"]}
                ) from error

    @classmethod
    def class_name(cls) -> str:
        """The name in what LlamaIndex writes down."""
        return cls.__name__


def cure_of(fault: Any) -> str:
    """What pydantic says that a value should be."""
    if fault["type"] == "extra_forbidden":
        return "leave it out, or correct its name"
    cure: str = fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return cure[:1].lower() + cure[1:]


def without_credentials(spec: str) -> str:
    """The name of a model or of an embedding without the user and password of its URL, to be written down."""
    return _LOGIN.sub(r"\1", spec)


# Errors of the clients of model servers. Their classes are known by name: importing all of them would take a second.

ABOUT_PROMPT: Final = (400, 413, 422)  # statuses of a request that the server will refuse again
LONGEST_WAIT: Final = 60.0  # seconds before the next attempt, whatever a server asks for
_BUSY: Final = (408, 409, 425, 429)
_NOT_OFFERED: Final = 501  # what llama.cpp answers where it was not started for this
_PASSING: Final = {
    "TransportError",
    "DecodingError",
    "OSError",
    "JSONDecodeError",
    "UnicodeDecodeError",
}
_SHOWN: Final = 200  # characters of an error without a known reason
_CURES: Final = {
    **dict.fromkeys((401, 403), "the API key"),
    404: "the name of the model, or the address of its server",
    429: "fewer num_workers, or later",
}
_OVERFLOW: Final = re.compile(
    r"exceed_context_size|context_length_exceeded|maximum context length|context (?:window|size|length)"
    r"|prompt is too long|too many tokens|input length",
    re.IGNORECASE,
)


def _kinds(error: BaseException | None) -> set[str]:
    """Names of the classes of an error, and of those that it was raised from."""
    return (
        set()
        if error is None
        else {kind.__name__ for kind in type(error).__mro__} | _kinds(error.__cause__)
    )


def _is_final(error: BaseException) -> str:
    """Why another attempt would end as this one; "" where it may not."""
    kinds = _kinds(error)
    if "AnswerTooLargeError" in kinds:
        return "answer too large"
    return (
        "timeout (cure: a longer timeout, or a smaller batch_size)"
        if any("Timeout" in one for one in kinds)
        else ""
    )


def status_of(error: BaseException) -> int | None:
    """The HTTP status in an error of a client; None where there was no answer."""
    codes = (
        getattr(source, "status_code", None) for source in (error, getattr(error, "response", None))
    )
    # Ollama's client says -1 where there was no answer.
    return next((code for code in codes if isinstance(code, int) and code >= 100), None)  # noqa: PLR2004


def may_pass(error: BaseException) -> bool:
    """Whether a request that failed may succeed soon: its server is busy, away, or answered what is no JSON."""
    status = status_of(error)
    if status is not None:
        is_busy = status in _BUSY or (status >= 500 and status != _NOT_OFFERED)  # noqa: PLR2004
        return is_busy and (_retry_after(error) or 0) <= LONGEST_WAIT
    return not _is_final(error) and not _PASSING.isdisjoint(_kinds(error))


def _retry_after(error: BaseException | None) -> float | None:
    """The seconds that a server asks to wait in a ``Retry-After`` header; None where it does not."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def pause(state: RetryCallState) -> float:
    """Seconds before tenacity's next attempt: as the server asks, else exponentially more with jitter."""
    wait = _retry_after(state.outcome.exception() if state.outcome else None)
    return (
        uniform(0, min(LONGEST_WAIT, 2.0 ** (state.attempt_number - 1))) if wait is None else wait  # noqa: S311
    )


def reason_of(error: Exception) -> str:
    """Why a model did not answer, in the same few words for the same cause: a status, a timeout, a prompt too long."""
    status = status_of(error)
    if final := _is_final(error):
        return final
    if status in (*ABOUT_PROMPT, None) and _OVERFLOW.search(str(error)):
        return "prompt too long (cure: the model's context_window)"
    if status:
        return f"HTTP {status}" + (f" (cure: {_CURES[status]})" if status in _CURES else "")
    if may_pass(error):
        return "no connection (cure: start the server, or correct its address)"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:_SHOWN]}"
