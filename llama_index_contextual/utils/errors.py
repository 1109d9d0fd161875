"""The exceptions of this package, checks of settings, and the errors of model servers.

Each message says what is wrong and what to do: ``"`min_chunk_size` must be at most `chunk_size`
(got 600 > 512)."``

::

    ContextualError
    ├── SettingError          a setting has an invalid value (also a ValueError)
    ├── MissingExtraError     an optional dependency is not installed (also an ImportError)
    ├── DocumentError         one file or document cannot be read; the others are processed
    ├── StorageError          the index on disk cannot be opened, written or trusted
    │   ├── FingerprintError  the index was made with other settings
    │   ├── ConfirmationError a refresh would delete or cost a lot and needs confirmation
    │   ├── LockedError       another process is writing the index
    │   └── DamagedError      data on disk is lost or unreadable, and can be rebuilt
    ├── EmbeddingError        the embedding model failed or returned something unusable
    ├── ContextError          a context generator failed and no fallback was allowed
    ├── RetrievalError        every retriever failed
    ├── AnswerError           a language model failed to answer a question
    └── CopyError             an object cannot be pickled (also a TypeError)

    ContextualWarning         a result is worse than it could be, for the reason in the message
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from random import uniform
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tenacity import RetryCallState

_T = TypeVar("_T")
_LOGIN = re.compile(r"((?i:https?)://)[^/\s]*@")


class ContextualError(Exception):
    """Base of every exception that this package raises on purpose."""


class SettingError(ContextualError, ValueError):
    """A setting has an invalid value. The message names the setting and the value."""


EXTRAS = ("pipeline", "app", "local", "multilingual", "documents", "chroma", "llm", "ray")


class MissingExtraError(ContextualError, ImportError):
    """An optional dependency is missing. The message says how to install it.

    Args:
        dependency: The name of the missing dependency.
        extra: An extra of this package, or the name of another package.
    """

    def __init__(self, dependency: str, extra: str) -> None:
        super().__init__(dependency, extra)

    def __str__(self) -> str:
        dependency, extra = self.args
        package = f"'llama-index-contextual[{extra}]'" if extra in EXTRAS else extra
        return f"{dependency} is not installed. Install it with: pip install {package}"


@contextmanager
def needs(dependency: str, extra: str) -> Iterator[None]:
    """Raise a MissingExtraError if an import inside the ``with`` block fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(dependency, extra) from error


class DocumentError(ContextualError):
    """One document cannot be read or parsed."""


class StorageError(ContextualError):
    """The stored index cannot be opened, written or trusted."""


class FingerprintError(StorageError):
    """The stored index was made with settings that are incompatible with the current ones."""


class ConfirmationError(StorageError):
    """A refresh would delete most documents or cause new model costs, and needs confirmation."""


class LockedError(StorageError):
    """Another process holds the index's write lock."""


class DamagedError(StorageError):
    """Data on disk or on a server is lost or cannot be read. It can be rebuilt."""


class EmbeddingError(ContextualError):
    """The embedding model failed, or is not the expected one."""


class ContextError(ContextualError):
    """A context could not be generated, and no fallback was allowed."""


class RetrievalError(ContextualError):
    """All retrievers of a fusion failed."""


class AnswerError(ContextualError):
    """The language model that should answer a question failed or is unavailable."""


class CopyError(ContextualError, TypeError):
    """An object cannot be pickled, because it has a resource that exists only in this process."""


class ContextualWarning(UserWarning):
    """A result is worse than it could be. The message counts what was replaced or left out."""


# Checks of settings


def whole(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """Return a whole number as an int. Numpy's 3 and the floats 3.0 and 1e6 are accepted, too.

    Raises:
        SettingError: The value is not a whole number, or is out of bounds.
    """
    number = _as_float(value)
    too_large = most is not None and number > most
    if not number.is_integer() or number < least or too_large:
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise SettingError(f"`{name}` must be a whole number {bounds} (got {value!r}).")
    return int(value)  # type: ignore[call-overload,no-any-return]


def amount(name: str, value: object, *, zero: bool = False, most: float = math.inf) -> float:
    """Return a finite number above 0 as a float.

    Args:
        name: The name of the setting, for the message.
        value: Its value.
        zero: Whether 0 is allowed, too.
        most: The largest value that is allowed.

    Raises:
        SettingError: The value is not a number, or is out of bounds.
    """
    number = _as_float(value)
    is_allowed = number > 0 or (zero and number == 0)
    if is_allowed and number <= most and number < math.inf:
        return number
    least = "of at least 0" if zero else "above 0"
    bounds = least if most == math.inf else f"{least} and at most {most:g}"
    raise SettingError(f"`{name}` must be a finite number {bounds} (got {value!r}).")


def _as_float(value: object) -> float:
    """Return a number of any type as a float, and nan for anything else, even True and False."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an int of more than 308 digits
        return math.inf


def one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise a SettingError for a value that is not allowed."""
    if value not in allowed:
        choices = ", ".join(map(repr, allowed))
        raise SettingError(f"`{name}` must be one of {choices} (got {value!r}).")


def objects_of(
    kind: type[_T], values: Iterable[_T], name: str, expected: str, hint: str
) -> list[_T]:
    """Return objects of a class as a list, after checking them.

    Args:
        kind: The class.
        values: The objects.
        name: The name of the parameter, for the message.
        expected: A plural noun for the objects, for the message.
        hint: A sentence for the end of the message.

    Raises:
        SettingError: The values are a single object, or contain an object of another class.
    """
    # A pydantic model, such as a vector store, is iterable, but over its fields.
    is_single = isinstance(values, str | kind) or hasattr(type(values), "model_fields")
    is_list = isinstance(values, Iterable) and not is_single
    objects = list(values) if is_list else []
    wrong = [value for value in objects if not isinstance(value, kind)] if is_list else [values]
    if wrong:
        class_name = type(wrong[0]).__name__
        raise SettingError(f"`{name}` must be a list of {expected} (got {class_name}). {hint}")
    return objects


def refuse_unknown(owner: str, names: Iterable[str], known: Iterable[str], hint: str = "") -> None:
    """Raise a SettingError for settings that do not exist.

    Args:
        owner: The object that has the settings, for the message.
        names: The names that a caller passed.
        known: The names that the owner takes.
        hint: A sentence for the end of the message, in place of the list of known names.
    """
    known_names = sorted(known)
    unknown_names = sorted(set(names).difference(known_names))
    if not unknown_names:
        return
    if not hint:
        hint = f"It takes {', '.join(known_names)}." if known_names else "It takes no options."
    raise SettingError(f"{owner} does not take {', '.join(unknown_names)}. {hint}")


class Checked:
    """A mixin for pydantic classes that raises a SettingError for invalid or unknown settings.

    It must be the first base class. LlamaIndex stores the class under its own name.
    """

    if not TYPE_CHECKING:  # a type checker reads the fields instead

        def __init__(self, **settings: Any) -> None:
            refuse_unknown(
                type(self).__name__, set(settings) - {"class_name"}, type(self).model_fields
            )
            # Imported here, because the process that converts documents does not need pydantic.
            from pydantic import ValidationError

            try:
                super().__init__(**settings)
            except ValidationError as error:  # not a ContextualError
                fault = error.errors(include_url=False)[0]
                name = f"`{fault['loc'][0]}`" if fault["loc"] else type(self).__name__
                shown = repr(fault["input"])
                if len(shown) > _SHOWN:
                    shown = type(fault["input"]).__name__
                message = f"{name} {requirement(fault)} (got {shown})."
                raise SettingError(message) from error

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex stores."""
        return cls.__name__


def requirement(fault: Mapping[str, Any]) -> str:
    """Return a requirement of pydantic as the end of a sentence: ``must be a valid integer``.

    Args:
        fault: An entry of ``ValidationError.errors()``.
    """
    if fault["type"] == "missing":
        return "is required"
    if fault["type"] == "extra_forbidden":
        return "is not a known setting; leave it out or correct its name"
    text: str = fault["msg"].removeprefix("Value error, ")
    if " should " in text:
        need, _, _ = text.partition(" should ")[2].partition(", unable")
        return f"must {need}"
    return f"is not valid: {text}"


def without_credentials(spec: str) -> str:
    """Return the name of a model without the user and password that its URL can contain."""
    return _LOGIN.sub(r"\1", spec)


# Errors of the clients of model servers. Their classes are compared by name, because importing them
# all would take a second.

ABOUT_PROMPT = (400, 413, 422)  # statuses that a retry of the same request would repeat
LONGEST_WAIT = 60.0  # seconds before the next attempt, whatever a server asks for
_BUSY = (408, 409, 425, 429)
_FIRST_STATUS = 100  # Ollama's client reports -1 if there was no answer
_SERVER_ERROR = 500
_NOT_OFFERED = 501  # llama.cpp was not started with this feature
_PASSING = frozenset(
    {"TransportError", "DecodingError", "OSError", "JSONDecodeError", "UnicodeDecodeError"}
)
_SHOWN = 200  # characters of an error without a known reason
_HINTS = {
    401: "check the API key",
    403: "check the API key",
    404: "check the name of the model and the address of its server",
    429: "use fewer num_workers, or try again later",
}
_PROMPT_TOO_LONG = re.compile(
    r"exceed_context_size|context_length_exceeded|maximum context length"
    r"|context (?:window|size|length)|prompt is too long|too many tokens|input length",
    re.IGNORECASE,
)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in a client's error, or None if there was no answer."""
    for source in (error, getattr(error, "response", None)):
        status = getattr(source, "status_code", None)
        if isinstance(status, int) and status >= _FIRST_STATUS:
            return status
    return None


def is_temporary(error: BaseException) -> bool:
    """Return whether a retry can succeed soon: the server is busy, unreachable, or sent no JSON."""
    status = status_of(error)
    if status is None:
        is_final = bool(_reason_to_give_up(error))
        return not is_final and not _PASSING.isdisjoint(_class_names(error))
    is_busy = status in _BUSY or (status >= _SERVER_ERROR and status != _NOT_OFFERED)
    return is_busy and (_retry_after(error) or 0) <= LONGEST_WAIT


def pause(state: RetryCallState) -> float:
    """Return the seconds before the next attempt, as the server asks or else exponential."""
    wait = _retry_after(state.outcome.exception() if state.outcome else None)
    if wait is not None:
        return wait
    longest = min(LONGEST_WAIT, 2.0 ** (state.attempt_number - 1))
    return uniform(0, longest)  # noqa: S311


def reason_of(error: Exception) -> str:
    """Return the reason why a model did not answer. The same cause gives the same words."""
    reason = _reason_to_give_up(error)
    if reason:
        return reason
    status = status_of(error)
    may_concern_prompt = status is None or status in ABOUT_PROMPT
    if may_concern_prompt and _PROMPT_TOO_LONG.search(str(error)):
        return "prompt too long (set the model's context_window)"
    if status is not None:
        hint = f" ({_HINTS[status]})" if status in _HINTS else ""
        return f"HTTP {status}{hint}"
    if is_temporary(error):
        return "no connection (start the server, or correct its address)"
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line[:_SHOWN]}"


def _class_names(error: BaseException | None) -> set[str]:
    """Return the names of the classes of an error and of its causes."""
    names: set[str] = set()
    while error is not None:
        names.update(kind.__name__ for kind in type(error).__mro__)
        error = error.__cause__
    return names


def _reason_to_give_up(error: BaseException) -> str:
    """Return the reason why a retry would fail in the same way; "" if it can succeed."""
    names = _class_names(error)
    if "AnswerTooLargeError" in names:
        return "answer too large"
    if "RedirectError" in names:
        return "redirect (use the final address of the server)"
    if any("Timeout" in name for name in names):
        return "timeout (use a longer timeout, or a smaller batch_size)"
    return ""


def _retry_after(error: BaseException | None) -> float | None:
    """Return the seconds in a ``Retry-After`` header, or None if there are none."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None
