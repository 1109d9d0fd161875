"""The copy of a keyword engine on disk.

::

    manifest.json        format, stamp, analyzer, segments with their checksums and live rows; replacing it is a commit
    KEY.words            a segment, written once and mapped into memory
    write.lock           held by the process that saves

Saving after an edit writes the new segments and the manifest, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from llama_index_contextual.durable import (
    DAMAGE,
    map_file,
    packed,
    path_of,
    read_manifest,
    sweep,
    sync,
    unpacked,
    write_manifest,
)
from llama_index_contextual.keyword.segments import Segment, checksum_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMAT: Final = 4


def write_segments(folder: Path, segments: Sequence[Segment], analyzer: str, stamp: str) -> list[Segment]:
    """Write what is new of some segments, then the manifest; return the same segments, mapped from there.

    Args:
        folder: What this process is ``writing``.
        segments: All that the folder shall hold.
        analyzer: Fingerprint of what made their terms.
        stamp: Of the caller; :func:`read_segments` returns it.
    """
    try:
        known = {entry["key"]: entry for entry in read_manifest(folder, FORMAT)["segments"]}
    except DAMAGE:
        known = {}
    entries, mapped = [], []
    for one in segments:
        path, entry = path_of(folder, one.key, "words"), known.get(one.key)
        if entry is None or not path.exists() or path.stat().st_size != len(one.data):
            with path.open("wb") as file:
                file.write(one.data.data)
                sync(file)
            entry = {"key": one.key, "checksum": checksum_of(one.data)}
        entries.append({**entry, "live": packed(one.live)})
        mapped.append(Segment(map_file(path), one.key, one.live))
    write_manifest(folder, FORMAT, {"stamp": stamp, "analyzer": analyzer, "segments": entries})
    sweep(folder, "words", {one.key for one in segments})
    return mapped


def read_segments(folder: Path, analyzer: str) -> tuple[list[Segment], str]:
    """Return the segments of a folder, mapped, and the stamp; one of ``DAMAGE`` where they cannot be used."""
    content = read_manifest(folder, FORMAT)
    if content["analyzer"] != analyzer:
        raise ValueError("its terms are of another analyzer")
    segments, stamp = [_read_segment(folder, entry) for entry in content["segments"]], content["stamp"]
    if not isinstance(stamp, str):
        raise TypeError("the manifest has no stamp")
    rows = np.concatenate([np.empty(0, dtype=np.int64), *(one.rows[one.live] for one in segments)])
    rows.sort(kind="stable")  # ascending runs, which it only merges
    if np.any(rows[1:] == rows[:-1]):
        raise ValueError("a row is in two segments")
    return segments, stamp


def _read_segment(folder: Path, entry: dict[str, Any]) -> Segment:
    path = path_of(folder, entry["key"], "words")
    segment = Segment(map_file(path), entry["key"])
    if checksum_of(segment.data) != entry["checksum"]:
        raise ValueError(f"{path.name} has a wrong checksum")
    segment.check()
    return Segment(segment.data, segment.key, unpacked(entry["live"], len(segment)))
