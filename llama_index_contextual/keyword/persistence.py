"""Keep a keyword index of nodes on disk: the copy of its engine, and the nodes in a file beside it.

::

    manifest.json, KEY.words    the engine; its stamp holds the settings, and how much of the nodes counts
    KEY.nodes                   the nodes, one after the other, deleted ones included; mapped into memory

The file of nodes only grows: saving after an edit writes the new nodes at its end. What lies beyond the bytes that the
manifest counts, a process left there that was killed. Once half of the nodes is deleted, the next save writes another.
"""

from __future__ import annotations

import json
import uuid
import zlib
from typing import TYPE_CHECKING, Any

from llama_index_contextual.durable import DAMAGE, map_file, path_of, read_manifest, sweep, sync, writing
from llama_index_contextual.errors import FingerprintError, StorageError
from llama_index_contextual.keyword.analyzer import Analyzer
from llama_index_contextual.keyword.engine import KeywordEngine
from llama_index_contextual.keyword.index import KeywordIndex, NodesFile, State, StoredNode, entries_in, entry_of
from llama_index_contextual.keyword.segments import FORMAT, read_segments, write_segments

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def save_index(
    index: KeywordIndex, folder: Path, *, stamp: str | None = None, settings: Mapping[str, Any] | None = None
) -> None:
    """Write what is new of an index, then the manifest, then remove what nothing refers to.

    Args:
        index: What to write.
        folder: Made where it is missing.
        stamp: What the index was made from (a version, a hash); :func:`load_index` can ask for it.
        settings: More JSON values to keep beside the index's own.

    Raises:
        StorageError: The folder cannot be written.
    """
    with writing(folder, "The keyword index"):
        state, engine = index.state, index.state.engine
        file = _write_nodes(folder, state, index.file)
        of_engine = {"k1": engine.k1, "b": engine.b, "analyzer": engine.analyzer.settings}
        content = {"settings": {**(settings or {}), **of_engine}, "stamp": stamp, "nodes": file}
        write_segments(folder, engine.segments, engine.analyzer.fingerprint, json.dumps(content))
        index.file = file
        sweep(folder, "nodes", {file.key})


def _write_nodes(folder: Path, state: State, before: NodesFile | None) -> NodesFile:
    if before is None or _present(folder) != before or 2 * len(state.stored) < before.entries:
        before = NodesFile(uuid.uuid4().hex)
    new = [entry_of(row, *node) for row, node in state.stored.items() if row >= before.next_row]
    size, checksum = before.size, before.checksum
    path = folder / f"{before.key}.nodes"
    with path.open("r+b" if size else "wb") as file:
        file.seek(size)
        for entry in new:
            file.write(entry)
            size, checksum = size + len(entry), zlib.crc32(entry, checksum)
        sync(file)
    return NodesFile(before.key, size, checksum, before.entries + len(new), state.next_row)


def _present(folder: Path) -> NodesFile | None:
    """Return what of the nodes the present manifest counts; None where it cannot be read."""
    try:
        return NodesFile(*json.loads(read_manifest(folder, FORMAT)["stamp"])["nodes"])
    except DAMAGE:
        return None


def load_index(
    folder: Path,
    *,
    stamp: str | None = None,
    analyzer: Analyzer | None = None,
    k1: float | None = None,
    b: float | None = None,
) -> tuple[KeywordIndex, dict[str, Any]]:
    """Read what :func:`save_index` wrote.

    Args:
        folder: Where it was written.
        stamp: Refuse an index that was saved with another stamp.
        analyzer: Refuse an index whose terms another analyzer made.
        k1: Replaces the saved one.
        b: Replaces the saved one.

    Returns:
        The index, and the settings that were given to be kept beside it.

    Raises:
        StorageError: The folder holds no index, it is damaged, or another version wrote it.
        FingerprintError: It was made from something else, or with another analyzer or version of it.
    """
    cure = "Cure: build it again from the vector store, which holds all that it needs"
    try:
        content = read_manifest(folder, FORMAT)
        stamped = json.loads(content["stamp"])
        settings, made_from = stamped["settings"], stamped["stamp"]
        analyzer = analyzer or Analyzer.from_settings(settings["analyzer"])
        if content["analyzer"] != analyzer.fingerprint:
            raise FingerprintError(f"{folder} holds terms of another analyzer or version. Cure: build it again.")
        if stamp is not None and stamp != made_from:
            raise FingerprintError(
                f"{folder} is stale: made from {made_from!r}, wanted {stamp!r}. Cure: build it again."
            )
        saved = {key: settings[key] if argument is None else argument for key, argument in (("k1", k1), ("b", b))}
        segments, _ = read_segments(folder, analyzer.fingerprint)
        engine = KeywordEngine(analyzer, **saved, segments=segments)
        index = KeywordIndex(analyzer)
        index.state, index.file = _read_nodes(folder, engine, stamped["nodes"])
    except FileNotFoundError as error:
        raise StorageError(f"{folder} holds no complete keyword index: {error}. {cure}.") from error
    except DAMAGE as error:
        raise StorageError(f"{folder} holds a damaged keyword index: {error!r}. {cure}.") from error
    return index, {key: value for key, value in settings.items() if key not in {"k1", "b", "analyzer"}}


def _read_nodes(folder: Path, engine: KeywordEngine, described: list[Any]) -> tuple[State, NodesFile]:
    file = NodesFile(*described)
    data = map_file(path_of(folder, file.key, "nodes"), file.size).data
    if zlib.crc32(data) != file.checksum:
        raise ValueError(f"{file.key}.nodes has a wrong checksum")
    live = set(engine.rows.tolist())
    stored = {row: StoredNode(node_id, record) for row, node_id, record in entries_in(data) if row in live}
    rows = {node.node_id: row for row, node in stored.items()}
    if len(rows) != len(live) or max(live, default=-1) >= file.next_row:
        raise ValueError(f"{file.key}.nodes holds other nodes than the engine")
    return State(engine, rows, stored, file.next_row), file
