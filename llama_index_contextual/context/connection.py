"""A generator's model, and the event loop that the model's client belongs to."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Final

from llama_index.core import Settings
from llama_index.core.llms import LLM

from llama_index_contextual.context import clients, models
from llama_index_contextual.context.cache import OBJECT
from llama_index_contextual.context.loop import LoopThread
from llama_index_contextual.errors import SettingError

DEFAULT_MODEL: Final = "ollama:qwen3:0.6b"


class Connection:
    """A model that is made when it is first needed, and called on one loop, where its client is closed too.

    A pickled or copied one has a client and a loop of its own.

    Args:
        given: A model's name or object; None takes ``Settings.llm`` where that has been set, else the default.
        api_key: For a model given by name; by default the provider's environment variable.

    Attributes:
        given: As it was given.
        loop: Where requests are sent from.

    Raises:
        SettingError: What is given is no model, or names none.
    """

    def __init__(self, given: str | LLM | None, api_key: str | None) -> None:
        _check(given)
        self.given, self._api_key = given, api_key
        self._llm = clients.with_own_client(given) if isinstance(given, LLM) else None
        self._reset()

    def _reset(self) -> None:
        self._lock, self.loop, self._connected = threading.Lock(), LoopThread(), False

    def __getstate__(self) -> dict[str, Any]:
        # Pickling a LlamaIndex component deletes its clients from the live object: give it a copy to do that to.
        llm = None if self._llm is None or isinstance(self.given, str) else self._llm.model_copy()
        return {"given": llm if isinstance(self.given, LLM) else self.given, "_api_key": self._api_key, "_llm": llm}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def llm(self, window: int | None, max_tokens: int) -> LLM:
        """Give the model; where it is not made yet, to take and to write so many tokens."""
        with self._lock:
            if self._llm is None:
                given = self.given
                if given is None:
                    given = Settings._llm or DEFAULT_MODEL  # noqa: SLF001  Settings.llm would insist on an OpenAI key
                if isinstance(given, LLM):
                    self._llm = clients.with_own_client(given)
                else:
                    spec = models.ModelSpec.parse(given)
                    self._llm = spec.make(api_key=self._api_key, window=window, max_tokens=max_tokens)
            if not self._connected:
                self._connected = True
                self.loop.before_close(partial(clients.close_client, self._llm))
            return self._llm

    def config(self) -> str | None:
        """Give what was given as plain data: an object's name, marked as one."""
        return f"{OBJECT}{models.model_name(self.given)}" if isinstance(self.given, LLM) else self.given


def _check(given: object) -> None:
    if isinstance(given, str):
        if given.startswith(OBJECT):
            raise SettingError(
                f"{given[len(OBJECT) :]} was an LLM object, which is never written down. Cure: pass it again, "
                "ContextualNodePostprocessor.from_dict(data, generator=resolve_generator('llm', llm=...))."
            )
        models.ModelSpec.parse(given)  # raises now and not in the middle of a run
    elif given is not None and not isinstance(given, LLM):
        raise SettingError(f"llm={type(given).__name__} is no LlamaIndex LLM. Cure: give one, or a name.")
