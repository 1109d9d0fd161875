"""Keep an index up to date while it is searched."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from llama_index_contextual.app.index.status import PATIENCE, Freshness
from llama_index_contextual.app.settings.registry import Refreshing
from llama_index_contextual.utils.errors import ContextualError, LockedError, amount, one_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from llama_index_contextual.app.index.index import ContextualIndex

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 0.1  # between two checks whether a refresh has ended
_LOOK_SECONDS = 1.0  # between two comparisons with the folder
_THREAD = "llama-index-contextual refresh"


def is_refreshing() -> bool:
    """Return whether any index of this process is being refreshed in the background."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


class BackgroundRefresh:
    """A thread that keeps an index up to date while it is searched.

    It does not generate contexts again that fell back to free ones. Only
    :meth:`ContextualIndex.refresh` does that.

    Args:
        index: An open index.
        mode: ``"auto"`` refreshes in the background. ``"wait"`` lets :meth:`look` wait until the
            refresh ends. ``"never"`` only compares the index with its folder.
        patience: Seconds that :meth:`look` may take, except with ``"wait"``. It does not wait at
            all for a refresh that has been running for longer.

    Raises:
        SettingError: `mode` or `patience` is not valid.
    """

    def __init__(
        self, index: ContextualIndex, mode: Refreshing = "auto", patience: float = PATIENCE
    ) -> None:
        one_of("mode", mode, get_args(Refreshing))
        self._index = index
        self._mode = mode
        self._patience = amount("patience", patience, zero=True)
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._ended = -_LOOK_SECONDS
        self._seen = Freshness()
        self._error = ""
        self._is_closed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start a refresh without waiting, unless one is running or the mode is ``"never"``."""
        with self._guard:
            if self._mode == "never" or self.refreshing:
                return
            self._began = time.monotonic()
            self._is_closed = False
            self._thread = threading.Thread(target=self._refresh, name=_THREAD, daemon=True)
            self._thread.start()

    def look(self) -> Freshness:
        """Refresh the index as the mode says, and return how far it is behind its folder."""
        if self._mode == "wait":
            self._join()  # a running refresh may have missed the last change
            self.start()
            self._join()
            return Freshness(error=self._error)
        if self._mode == "never":
            return self._index.freshness(self._patience)
        return self._look_and_refresh()

    def _look_and_refresh(self) -> Freshness:
        until = time.monotonic() + self._patience
        if not self.refreshing and time.monotonic() - self._ended >= _LOOK_SECONDS:
            self._seen = self._index.freshness(self._patience / 2)
            is_behind = self._seen.changed or not self._seen.certain
            if is_behind and not self._seen.error:
                self.start()
        self._join(min(until, self._began + self._patience))
        if self.refreshing:
            return replace(self._seen, refreshing=True)
        error = self._seen.error or self._error
        return replace(self._seen, error=error) if error else Freshness()

    @property
    def refreshing(self) -> bool:
        """Return whether a refresh is running."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, *, wait: float = math.inf) -> None:
        """Wait for a running refresh. Documents that it has finished are kept in any case.

        Args:
            wait: The longest time to wait, in seconds.
        """
        self._join(time.monotonic() + wait)
        self._is_closed = True  # ends a look() that waits in another thread, too

    def _join(self, until: float = math.inf) -> None:
        while self._thread is not None and self.refreshing and not self._is_closed:
            remaining = until - time.monotonic()
            if remaining <= 0:
                return
            self._thread.join(min(remaining, _WAIT_SECONDS))

    def _refresh(self) -> None:
        try:
            report = self._index.refresh(retry_contexts=False)
            for problem in report.failed:
                logger.warning("%s", problem)
            self._error = ""
        except LockedError:  # the other process brings the index up to date
            self._error = "another process is writing it"
        except ContextualError as error:  # such as a model server that is down; searches go on
            self._error = str(error)
        except Exception as error:
            logger.exception("The index could not be brought up to date.")
            self._error = f"{type(error).__name__}: {error}"
        finally:
            self._ended = time.monotonic()
