"""An LLM's asynchronous client: it belongs to one event loop, and on another its connections could hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx

if TYPE_CHECKING:
    from llama_index.core.llms import LLM

# Where integrations keep theirs, and what makes them another one if they can: OpenAI's and Anthropic's, Ollama's.
_CLIENTS: Final = {"_aclient": "_get_aclient", "_async_client": "async_client"}


def with_own_client(llm: LLM) -> LLM:
    """Give an LLM whose asynchronous client has not been used on another event loop."""
    fresh = {name: _like(llm, name, client) for name, client in _clients(llm)}
    if not fresh:
        return llm
    copy = llm.model_copy()
    for name, client in fresh.items():
        setattr(copy, name, client)
    return copy


async def close_client(llm: LLM) -> None:
    """Close the connections of an LLM's asynchronous client; the LLM has another one when it is used again."""
    for name, client in _clients(llm):
        fresh = _like(llm, name, client)
        if fresh is client:  # what the user has made is not ours to close
            continue
        setattr(llm, name, fresh)
        close = getattr(client, "close", None) or getattr(getattr(client, "_client", None), "aclose", None)
        if close is not None:
            await close()


def _clients(llm: LLM) -> list[tuple[str, Any]]:
    return [(name, client) for name in _CLIENTS if (client := getattr(llm, name, None)) is not None]


def _like(llm: LLM, name: str, client: Any) -> Any:
    """Another client like one: None where the LLM makes itself one, and the same where there is no way to make one.

    Anthropic's integration makes its client once. It can be copied, with connections of its own unless they were given
    (a proxy, say).
    """
    if hasattr(type(llm), _CLIENTS[name]):
        return None
    connections = getattr(client, "_client", None)
    if not (hasattr(client, "copy") and isinstance(connections, httpx.AsyncClient)):
        return client
    own = _package(connections) == _package(client)
    return client.copy(http_client=type(connections)()) if own else client


def _package(thing: object) -> str:
    return type(thing).__module__.partition(".")[0]
