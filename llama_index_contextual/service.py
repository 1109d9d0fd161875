"""Ask a service over HTTP, and wait while it is busy or away: whom to ask again, and after how long."""

from __future__ import annotations

import math
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import httpx
import tenacity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index_contextual.errors import ContextualError

LONGEST_WAIT: Final = 60.0  # seconds, whatever a server asks for
_BACKOFF: Final = tenacity.wait_random_exponential(multiplier=1, max=LONGEST_WAIT)
_TIMEOUT: Final = httpx.Timeout(120, connect=10)
_NOT_OFFERED: Final = 501  # what llama.cpp answers where it was not started for this
_SHOWN: Final = 200  # characters of an answer that an error shows


class _Busy(Exception):  # noqa: N818  a state that passes, never seen outside
    """The server may answer later.

    Attributes:
        wait: Seconds it asks for; None where it does not say.
    """

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


def post(
    url: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    *,
    failure: type[ContextualError],
    attempts: int = 6,
) -> Any:
    """Post JSON and return the answer's; wait and ask again while the server is busy, away or out of order.

    Args:
        url: The address.
        body: What is sent.
        headers: More headers, such as a key.
        failure: The class of the error.
        attempts: How often it is asked at most.

    Raises:
        ContextualError: Of the class ``failure``: the server refuses, or failed each time.
    """
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(attempts),
        retry=tenacity.retry_if_exception_type(_Busy),
        wait=pause,
        reraise=True,
    )
    try:
        return retrying(_post_once, url, body, headers, failure)
    except _Busy as error:
        raise failure(f"{url} failed {attempts} times: {error}. Cure: try again later.") from error


def _post_once(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str] | None, failure: type[ContextualError]
) -> Any:
    try:
        answer = httpx.post(url, json=body, headers=headers, timeout=_TIMEOUT)
    except httpx.TransportError as error:
        raise _Busy(f"{type(error).__name__}: {error}") from error
    if is_busy(answer.status_code):
        reason = f"HTTP {answer.status_code} {answer.text[:_SHOWN]!r}"
        raise _Busy(reason, retry_after(answer.headers))
    if answer.is_error:
        raise failure(
            f"{url} refused the request: HTTP {answer.status_code} {answer.text[:_SHOWN]!r}. "
            "Cure: see that key, model and settings are right."
        )
    try:
        return answer.json()
    except ValueError as error:  # an answer cut short, a proxy's page
        raise _Busy(f"the answer is no JSON ({error})") from error


def is_busy(status: int) -> bool:
    """Return whether a server that answers with this HTTP status may answer otherwise later."""
    return status in (408, 409, 425, 429) or (status >= 500 and status != _NOT_OFFERED)  # noqa: PLR2004


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait: ``Retry-After``, a number or a date; None where it says none."""
    value = headers.get("retry-after") or ""
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except (TypeError, ValueError):
            return None
    return seconds if 0 <= seconds < math.inf else None


def pause(state: tenacity.RetryCallState) -> float:
    """Return how many seconds tenacity waits: what the error's ``wait`` says, else exponentially longer with jitter."""
    error = state.outcome.exception() if state.outcome else None
    wait = getattr(error, "wait", None)
    return min(_BACKOFF(state) if wait is None else float(wait), LONGEST_WAIT)
