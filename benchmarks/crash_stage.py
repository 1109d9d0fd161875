"""The stage of benchmarks/crash.py: a folder that changes, an index of it whose paid work is counted, and the work.

Embedding and LLM are stand-ins that are fast and write down each piece of work that they finished, so that work done
twice after a kill shows.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata

from llama_index_contextual.app.index import ContextualIndex

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

DIMENSIONS = 64
MODELS = ("hash", "other hash")
REINDEX: dict[str, Any] = {"replace": "all"}
FIRST_DAY = datetime(2026, 1, 1, 9, tzinfo=timezone.utc)
QUESTION = "Which shard holds the lease?"

WORDS = ("disk", "lock", "queue", "shard", "token", "cache", "node", "lease")


class HashEmbedding(BaseEmbedding):
    """Vectors from a hash of the text; each text that was embedded is a line in a file."""

    _log: Path = PrivateAttr()

    def __init__(self, log: Path, model_name: str = "hash") -> None:
        super().__init__(model_name=model_name, embed_batch_size=2048)
        self._log = log

    def _vector(self, text: str) -> list[float]:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        vector: list[float] = np.random.default_rng(seed).normal(size=DIMENSIONS).tolist()
        return vector

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        _append(self._log, [hashlib.sha256(f"{self.model_name} {text}".encode()).hexdigest() for text in texts])
        return [self._vector(text) for text in texts]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._vector(query)


class CountingLLM(CustomLLM):
    """Answers after a few milliseconds; each call that it finished is a line in a file."""

    log: str

    @property
    def metadata(self) -> LLMMetadata:
        """A window that every page fits into."""
        return LLMMetadata(model_name="counting", context_window=32_000)

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:  # noqa: ARG002
        """A sentence that differs from prompt to prompt, in words of the pages: others count as invented."""
        digest = hashlib.sha256(prompt.encode())
        time.sleep(0.003)
        _append(Path(self.log), [digest.hexdigest()])
        first, second, third = (WORDS[byte % len(WORDS)] for byte in digest.digest()[:3])
        return CompletionResponse(
            text=f"This passage of the page says how {first}, {second} and {third} work together."
        )

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponseGen:  # noqa: ARG002
        """The same in one piece."""
        yield self.complete(prompt)


def _append(path: Path, lines: Sequence[str]) -> None:
    """One write, so that a kill leaves whole lines."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
    finally:
        os.close(descriptor)


def repeats(log: Path) -> int:
    """Lines of a log that stand in it more than once."""
    lines = Counter(log.read_text().splitlines()) if log.exists() else Counter()
    return sum(count - 1 for count in lines.values())


@dataclass(frozen=True, slots=True)
class Stage:
    """The folders of one run."""

    root: Path

    @property
    def docs(self) -> Path:
        """What is indexed."""
        return self.root / "docs"

    @property
    def storage(self) -> Path:
        """The index."""
        return self.root / "storage"

    @property
    def embeddings(self) -> Path:
        """Texts that were embedded, by hash, one a line."""
        return self.root / "embedded.log"

    @property
    def calls(self) -> Path:
        """Prompts that the LLM has answered, by hash, one a line."""
        return self.root / "calls.log"

    @property
    def model(self) -> Path:
        """Name of the embedding that the index has."""
        return self.root / "model.txt"

    @property
    def large(self) -> Path:
        """The one large page, where there is one."""
        return self.docs / "large.md"

    def open(self, action: str) -> ContextualIndex:
        """The index, in the settings that an action works with."""
        options: dict[str, Any] = {"context": "headings"}  # said each time: a model object cannot be remembered
        if action.endswith("llm"):
            options = {"context": "llm", "llm": CountingLLM(log=str(self.calls)), "batch_size": 1, "num_workers": 2}
        embedding = HashEmbedding(self.embeddings, self.model_of(action))
        return ContextualIndex.open(
            self.docs, storage=self.storage, embed_model=embedding, reindex=REINDEX.get(action, "auto"), **options
        )

    def model_of(self, action: str) -> str:
        """Name of the embedding: a replacement takes the other one of two, and all else the present one."""
        now = self.model.read_text() if self.model.exists() else MODELS[0]
        return now if action != "replace" else MODELS[1 - MODELS.index(now)]


def page(rng: random.Random, sections: int) -> str:
    """A page of some sections, each long enough to be a chunk."""
    title = f"# Page {rng.randrange(10**6)}"
    parts = [
        f"## Part {number} {rng.choice(WORDS)}\n\n" + " ".join(rng.choices(WORDS, k=90)) + ".\n"
        for number in range(sections)
    ]
    return "\n".join([title, "", *parts])


def change_large(file: Path, rng: random.Random, sections: int) -> None:
    """Write a large page anew, or edit one that is there in some places."""
    if not file.exists() or rng.random() < 0.5:
        file.write_text(page(rng, sections))
        return
    parts = file.read_text().split("## ")
    for at in rng.sample(range(1, len(parts)), k=min(len(parts) - 1, 50)):
        parts[at] = parts[at].replace("\n\n", f" again {rng.randrange(99)}\n\n", 1)
    file.write_text("## ".join(parts))


def change(docs: Path, rng: random.Random) -> None:
    """Edit, add, rename and delete some pages."""
    for _ in range(rng.randint(3, 15)):
        files = sorted(docs.rglob("page-*.md"))
        kind = rng.choice(("add", "edit", "edit", "insert", "rename", "remove"))
        if kind == "add" or len(files) < 25:
            (docs / f"page-{rng.randrange(10**6)}.md").write_text(page(rng, rng.randint(2, 6)))
            continue
        file = rng.choice(files)
        if kind == "edit":
            file.write_text(
                file.read_text().replace("## Part 1", f"## Part 1 again {rng.randrange(99)}", 1) + "\nMore.\n"
            )
        elif kind == "insert":
            file.write_text("A line at the top.\n\n" + file.read_text())
        elif kind == "rename":
            file.rename(docs / f"page-{rng.randrange(10**6)}.md")
        elif len(files) > 30:
            file.unlink()


def work(stage: Stage, action: str, rng: random.Random) -> None:
    """What is killed: one action on the folder."""
    with stage.open(action) as index:
        if action == "delete":
            for path in rng.sample(sorted(index.documents()), k=min(5, len(index.documents()))):
                index.delete(path)
        if action == "derive" and rng.random() < 0.5:
            index.as_retriever().retrieve(QUESTION)
        index.refresh()


def take_cache(storage: Path, rng: random.Random) -> None:
    """Take away the cache, all of it or a part, so that it has to be derived again."""
    for kind in rng.choice((["bm25"], ["vectors"], ["bm25", "vectors"])):
        for path in (storage / "cache").glob(f"{kind}*"):
            path.unlink()
