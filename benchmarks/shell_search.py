"""Measure ``search`` from a shell, and how much of it is spent in other packages.

    python benchmarks/shell_search.py --chunks 13000

The folder has real pages (see ``scale.py``). It is indexed with the settings of a user, except that
its vectors are sums of directions of words. The local model embeds the question, whose vector is
compared with these vectors, which have the same length. Each figure is the CPU time of a process
of its own, the least of five runs.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from common import command_line, in_fresh_process, machine, markdown_table
from scale import OfWords, write_pages

from llama_index_contextual.app import ContextualIndex, LocalEmbedding

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNKS_PER_SIZE: Final = 1.34  # of `write_pages`
RUNS: Final = 5
QUESTION: Final = "How do I expose a service outside the cluster?"
PACKAGE: Final = "llama_index_contextual"
IMPORTED: Final = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s+([\w.]+)$", re.MULTILINE)
EMBED: Final = """
from llama_index_contextual.app import LocalEmbedding
LocalEmbedding().get_query_embedding("a question")
"""


class StandIn(LocalEmbedding):
    """Vectors of words, stored under the name of the local model."""

    def embed(self, texts: Sequence[str]) -> Any:
        """Return one vector per text."""
        vectors = OfWords().get_text_embedding_batch(list(texts))
        return np.array(vectors, np.float32)


def build(folder: Path) -> int:
    """Index a folder and return its number of chunks."""
    with ContextualIndex.open(folder, embed_model=StandIn()) as index:
        return index.refresh().chunks


def cpu_seconds(*arguments: str) -> float:
    """Return the least CPU time of Python with these arguments."""
    seconds = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)  # noqa: S603
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        user = after.ru_utime - before.ru_utime
        system = after.ru_stime - before.ru_stime
        seconds.append(user + system)
    return min(seconds)


def modules_of_others(*arguments: str) -> list[str]:
    """Return the modules of other packages that Python imports with these arguments, in order."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    modules = IMPORTED.findall(done.stderr)
    return [name for name in modules if name.partition(".")[0] != PACKAGE]


def import_all(modules: Sequence[str]) -> str:
    """Return a program that imports modules, except those that it cannot import by themselves."""
    return (
        "import contextlib, importlib\n"
        f"for name in {list(modules)!r}:\n"
        "    with contextlib.suppress(Exception):\n"
        "        importlib.import_module(name)\n"
    )


def main() -> None:
    """Measure a search and its parts, and print a table."""
    size = round(command_line(__doc__, chunks=13_000).chunks / CHUNKS_PER_SIZE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pages(folder, size)
        chunks = in_fresh_process(build, folder)
        search = ("-m", PACKAGE, "search", QUESTION, "--folder", name)
        imports = import_all(modules_of_others(*search))
        figures = {
            "Python alone": cpu_seconds("-c", "pass"),
            "`import llama_index.core`": cpu_seconds("-c", "import llama_index.core"),
            "all that `search` imports of other packages": cpu_seconds("-c", imports),
            "the same, and the question's vector": cpu_seconds("-c", imports + EMBED),
            f"`search` in {chunks:,} chunks": cpu_seconds(*search),
        }
    reference = figures["`import llama_index.core`"]
    rows = []
    for label, seconds in figures.items():
        rows.append([label, f"{seconds:.2f}", f"{seconds / reference:.2f}"])
    header = ["process", "CPU s", "relative to `import llama_index.core`"]
    print(f"{machine()}\n\n{markdown_table(header, rows)}")


if __name__ == "__main__":
    main()
