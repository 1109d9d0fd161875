"""What happens while contexts are generated, for LlamaIndex's instrumentation."""

from __future__ import annotations

from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.events import BaseEvent

dispatcher = get_dispatcher("llama_index_contextual.context")


class ContextRunStartEvent(BaseEvent):
    """Contexts are about to be generated."""

    source: str
    documents: int
    chunks: int
    from_cache: int

    @classmethod
    def class_name(cls) -> str:
        """Name of the event."""
        return "ContextRunStartEvent"


class ContextCallEvent(BaseEvent):
    """A model has answered, or has failed to (``error`` says how)."""

    source: str
    document: str
    chunks: int
    accepted: int
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    error: str = ""

    @classmethod
    def class_name(cls) -> str:
        """Name of the event."""
        return "ContextCallEvent"


class ContextRunEndEvent(BaseEvent):
    """Contexts have been generated; ``failed`` counts the chunks without, by reason."""

    source: str
    generated: int
    from_cache: int
    failed: dict[str, int]

    @classmethod
    def class_name(cls) -> str:
        """Name of the event."""
        return "ContextRunEndEvent"
