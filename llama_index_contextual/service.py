"""Ask a service over HTTP, with patience while it is busy or away."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import httpx
import tenacity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_index_contextual.errors import ContextualError

_LONGEST_WAIT: Final = 60.0  # seconds, whatever a server asks for
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
    try:
        for attempt in tenacity.Retrying(
            stop=tenacity.stop_after_attempt(attempts),
            retry=tenacity.retry_if_exception_type(_Busy),
            wait=_pause,
            reraise=True,
        ):
            with attempt:
                return _post_once(url, body, headers, failure)
    except _Busy as error:
        raise failure(f"{url} failed {attempts} times: {error}. Cure: try again later.") from error
    raise AssertionError  # pragma: no cover  the loop returns or raises


def _post_once(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str] | None, failure: type[ContextualError]
) -> Any:
    try:
        answer = httpx.post(url, json=body, headers=headers, timeout=_TIMEOUT)
    except httpx.TransportError as error:
        raise _Busy(f"{type(error).__name__}: {error}") from error
    code = answer.status_code
    if code in (408, 409, 425, 429) or (code >= 500 and code != _NOT_OFFERED):  # noqa: PLR2004
        reason = f"HTTP {answer.status_code} {answer.text[:_SHOWN]!r}"
        raise _Busy(reason, _seconds(answer.headers.get("retry-after")))
    if answer.is_error:
        raise failure(
            f"{url} refused the request: HTTP {answer.status_code} {answer.text[:_SHOWN]!r}. "
            "Cure: see that key, model and settings are right."
        )
    try:
        return answer.json()
    except ValueError as error:  # an answer cut short, a proxy's page
        raise _Busy(f"the answer is no JSON ({error})") from error


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:  # there is none, or it is a date
        return None
    return seconds if 0 <= seconds < math.inf else None


def _pause(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.wait if isinstance(error, _Busy) else None
    guess = tenacity.wait_random_exponential(multiplier=1, max=_LONGEST_WAIT)(state)
    return min(guess if asked is None else asked, _LONGEST_WAIT)
