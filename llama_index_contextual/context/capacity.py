"""How much goes into one call: a model's window divided, and less of it once the server shows that less fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from llama_index.core.utils import get_tokenizer

from llama_index_contextual.context.window import Window

if TYPE_CHECKING:
    from llama_index_contextual.context.settings import RunSettings

INSTRUCTION_TOKENS: Final = 250
_CHARS_PER_TOKEN: Final = 3  # few, so that what is reserved suffices in any language with an alphabet
_MARK_TOKENS: Final = 30  # around each chunk
_SAFETY: Final = 0.9  # our tokenizer is not the model's
_GIVE_UP_BATCHES: Final = 2  # batches in a row whose answers could not be matched to chunks


@dataclass(slots=True)
class Learned:
    """What earlier runs found out about a model, because an index asks for contexts file by file.

    Attributes:
        room: Tokens of a document that its server takes, where that was less than the LLM said.
        size: 1 where it cannot answer about several chunks at once.
    """

    room: int | None = None
    size: int | None = None


@lru_cache(maxsize=64)
def count_tokens(text: str) -> int:
    """Count tokens as LlamaIndex does; the same document is counted for each of its calls."""
    return len(get_tokenizer()(text))


def window_for(settings: RunSettings, tokens: int) -> tuple[Window, int]:
    """Divide a model's window between the document and the rest.

    Returns:
        The room for the document, and how many chunks a call can have at most.
    """
    excerpt = (settings.excerpt_chars or 2000) // _CHARS_PER_TOKEN
    per_chunk = excerpt + settings.max_output_tokens + _MARK_TOKENS
    size = max(1, min(settings.batch_size, tokens // 2 // per_chunk))
    room = int((tokens - size * per_chunk - INSTRUCTION_TOKENS) * _SAFETY)
    return Window(max(room, tokens // 8), count_tokens), size


class Capacity:
    """What a run's next call may hold; what the server teaches is remembered for later runs.

    Args:
        settings: The run's; its ``learned`` is read here and written to.
        tokens: What the model takes, as far as the LLM says.

    Attributes:
        window: The room for the document.
        size: How many chunks a call has at most.
    """

    def __init__(self, settings: RunSettings, tokens: int) -> None:
        self._settings = settings
        learned = settings.learned
        window, size = window_for(settings, tokens)
        self.window = replace(window, tokens=min(window.tokens, learned.room or window.tokens))
        self.size = min(size, learned.size or size)
        self._unmatched_batches = 0

    def shrink(self, used: Window, said: int | None) -> None:
        """Show less from now on, because a prompt with this window did not fit.

        Args:
            used: The window that the prompt was made for.
            said: Tokens that the server takes, where it said so.
        """
        if used is not self.window:  # another call has done it
            return
        smaller = replace(used, tokens=max(1, used.tokens * 2 // 3))
        if said is not None:
            window, size = window_for(self._settings, said)
            self.size = min(self.size, size)  # it may be 1 already, for another reason
            smaller = min(window, smaller, key=lambda one: one.tokens)
        self.window = smaller
        self._settings.learned.room = smaller.tokens

    def note_batch(self, *, matched: bool) -> None:
        """Note whether an answer about several chunks could be matched to them; a model that cannot is asked singly."""
        self._unmatched_batches = 0 if matched else self._unmatched_batches + 1
        if self._unmatched_batches >= _GIVE_UP_BATCHES:
            self.size = self._settings.learned.size = 1
