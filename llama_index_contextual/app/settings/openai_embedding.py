"""LlamaIndex's embedding of OpenAI's interface, with bounded answers and waits."""

from __future__ import annotations

from typing import Any

import httpx
import tenacity
from llama_index.embeddings.openai import OpenAIEmbedding

from llama_index_contextual.service import ATTEMPTS, VECTOR_BYTES, client_options, may_pass, pause


class BoundedOpenAIEmbedding(OpenAIEmbedding):
    """An ``OpenAIEmbedding`` that waits at most three times; of its two loops of attempts the client's is off."""

    @classmethod
    def class_name(cls) -> str:
        """The name under which vectors are recorded."""
        return "OpenAIEmbedding"

    def _create_retry_decorator(self) -> Any:
        stop, retry = tenacity.stop_after_attempt(ATTEMPTS), tenacity.retry_if_exception(may_pass)
        return tenacity.retry(stop=stop, retry=retry, wait=pause, reraise=True)


def bounded_openai(model_name: str, timeout: float, base_url: str = "") -> OpenAIEmbedding:
    """An embedding of OpenAI, or of another server with its interface."""
    # The client insists on a key. That of the environment is OpenAI's, and is not sent to another host.
    where = {"model_name": model_name, "api_base": base_url, "api_key": "none"} if base_url else {"model": model_name}
    return BoundedOpenAIEmbedding(
        **where,
        max_retries=0,
        timeout=timeout,
        http_client=httpx.Client(**client_options(timeout, VECTOR_BYTES)),
        async_http_client=httpx.AsyncClient(**client_options(timeout, VECTOR_BYTES, is_async=True)),
    )
