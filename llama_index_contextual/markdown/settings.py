"""What a caller may choose about chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from llama_index_contextual.errors import Checked, SettingError

TOKENIZERS = ("cl100k", "minilm", "e5", "estimate")


class ChunkSettings(Checked, BaseModel):
    """How a text is cut; sizes are in tokens of ``tokenizer``.

    Attributes:
        chunk_size: A chunk has at most this many tokens, unless nothing can be cut (then it is flagged).
        chunk_overlap: At most this many tokens of whole sentences or blocks are repeated from the chunk before,
            counted in ``chunk_size``, inside one section only.
        min_chunk_size: Smaller sections merge with a neighbour; smaller tails are avoided.
        max_chunk_size: What alone exceeds ``chunk_size`` (one sentence, one code line) is left whole up to this size;
            ``None`` is twice ``chunk_size``.
        keep_blocks: True leaves a code fence or table whole up to ``max_chunk_size``; False cuts it at ``chunk_size``.
        cut_at_rules: True makes every rule (``---``) end a chunk, however small.
        tokenizer: ``"cl100k"``, ``"minilm"``, ``"e5"``, ``"estimate"`` or a callable that returns the tokens of a
            text, or how many.
        semantic: False packs lines to the budget and ignores all structure.
    """

    chunk_size: int = 400
    chunk_overlap: int = 80
    min_chunk_size: int = 50
    max_chunk_size: int | None = None
    keep_blocks: bool = False
    cut_at_rules: bool = False
    tokenizer: str | Callable[[str], Any] = "cl100k"
    semantic: bool = True

    if not TYPE_CHECKING:  # a type checker reads the fields instead

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._check()

    def _check(self) -> None:
        size = self.chunk_size
        if size < 1:
            raise SettingError("is not positive. Cure: a number of tokens such as 400", chunk_size=size)
        if not 0 <= self.chunk_overlap < size:
            raise SettingError(
                f"is not in 0 to {size - 1}, less than a chunk. Cure: a fifth of the chunk size, {size // 5}, or 0",
                chunk_overlap=self.chunk_overlap,
            )
        if not 0 <= self.min_chunk_size <= size:
            raise SettingError(
                f"is not in 0 to the chunk size, {size}. Cure: an eighth of it, {size // 8}, or 0",
                min_chunk_size=self.min_chunk_size,
            )
        if self.max_chunk_size is not None and self.max_chunk_size < size:
            raise SettingError(
                f"is less than the chunk size, {size}. Cure: that or more; {2 * size} is the default",
                max_chunk_size=self.max_chunk_size,
            )
        if isinstance(self.tokenizer, str) and self.tokenizer not in TOKENIZERS:
            raise SettingError(
                f"is not known. Cure: one of {', '.join(TOKENIZERS)}, or a callable that returns the tokens of a text",
                tokenizer=self.tokenizer,
            )

    @property
    def cap(self) -> int:
        """Return the size that nothing exceeds, in tokens."""
        return 2 * self.chunk_size if self.max_chunk_size is None else self.max_chunk_size
