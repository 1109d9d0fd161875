"""Qdrant's REST interface in front of its own engine, as no registry of packages has the server as a binary.

The engine is Qdrant Edge: the Rust code of a server's shard (write-ahead log, segments, graph, filters by id) as a
Python module. Requests and answers are those of Qdrant's own Python client. What is
not a server's: HTTP in Python, one request at a time, one shard, optimized in the foreground.

As a script, ``python tests/qdrant_stand_in.py PORT FOLDER`` serves until it is killed; the folder is empty.
"""

import json
import shutil
import sys
import tempfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import qdrant_edge as edge
from qdrant_client import models
from servers import served

VERSION = "1.20.0"
OPTIMIZE = 10_000  # points that are written between two optimizations


class Collection:
    """One shard, and what its creator said of it."""

    def __init__(self, asked: models.CreateCollection, folder: Path) -> None:
        self.asked, self.folder, self.written = asked, folder, 0
        self.shard = edge.EdgeShard.create(
            str(folder),
            edge.EdgeConfig(
                vectors={
                    name: edge.EdgeVectorParams(size=one.size, distance=getattr(edge.Distance, one.distance.value))
                    for name, one in asked.vectors.items()
                },
            ),
        )

    def described(self) -> dict:
        info = self.shard.info()
        return {
            "status": "green",
            "optimizer_status": "ok",
            "points_count": info.points_count,
            "segments_count": info.segments_count,
            "payload_schema": {},
            "config": {
                "params": self.asked.model_dump(include={"vectors"}, mode="json"),
                "hnsw_config": {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000},
                "optimizer_config": {
                    "deleted_threshold": 0.2,
                    "vacuum_min_vector_number": 1000,
                    "default_segment_number": 0,
                    "flush_interval_sec": 5,
                },
                "wal_config": {"wal_capacity_mb": 32, "wal_segments_ahead": 0},
                "metadata": self.asked.metadata,
            },
        }

    def update(self, operation: edge.UpdateOperation, points: int = 0) -> dict:
        self.shard.update(operation)
        if self.written // OPTIMIZE != (self.written + points) // OPTIMIZE:
            self.shard.optimize()
        self.written += points
        return {"operation_id": self.written, "status": "completed"}

    # The requests that an index makes

    def query(self, body: dict) -> dict:
        asked = models.QueryRequest(**body)
        found = self.shard.query(
            edge.QueryRequest(
                query=edge.Query.Nearest(asked.query.nearest, using=asked.using),
                limit=asked.limit or 10,
                filter=_condition(asked.filter),
                with_payload=asked.with_payload or False,
                with_vector=asked.with_vector or False,
                params=edge.SearchParams(exact=bool(asked.params and asked.params.exact)),
            )
        )
        return {"points": [{**_record(one), "version": one.version, "score": one.score} for one in found]}

    def scroll(self, body: dict) -> dict:
        asked = models.ScrollRequest(**body)
        points, offset = self.shard.scroll(
            edge.ScrollRequest(
                offset=asked.offset,
                limit=asked.limit,
                filter=_condition(asked.filter),
                with_payload=asked.with_payload or False,
                with_vector=asked.with_vector or False,
            )
        )
        return {"points": list(map(_record, points)), "next_page_offset": _id(offset)}

    def count(self, body: dict) -> dict:
        return {"count": self.shard.count(edge.CountRequest(exact=body.get("exact", True)))}

    def upsert(self, body: dict) -> dict:
        points = [edge.Point(one["id"], one["vector"], one["payload"]) for one in body["points"]]
        return self.update(edge.UpdateOperation.upsert_points(points), len(points))

    def delete(self, body: dict) -> dict:
        return self.update(edge.UpdateOperation.delete_points(body["points"]))


def _record(point: object) -> dict:
    return {"id": _id(point.id), "payload": point.payload, "vector": point.vector}


def _id(given: object) -> object:
    return given if given is None or isinstance(given, int) else str(given)


def _condition(asked: models.Filter | None) -> edge.Filter | None:
    """Translate a filter by id from the models of the client to those of the engine."""
    if asked is None:
        return None
    (condition,) = asked.must if isinstance(asked.must, list) else [asked.must]
    return edge.Filter(must=[edge.HasIdCondition(set(condition.has_id))])


OF_POINTS = {
    ("POST", "points/query"): Collection.query,
    ("POST", "points/scroll"): Collection.scroll,
    ("POST", "points/count"): Collection.count,
    ("PUT", "points"): Collection.upsert,
    ("POST", "points/delete"): Collection.delete,
}


class _Server(ThreadingHTTPServer):
    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.folder, self.lock, self.collections = folder, threading.Lock(), dict[str, Collection]()
        self.made = 0

    def answer(self, method: str, path: str, body: dict) -> object:
        """Return the result of a request, or raise what :data:`STATUS` knows."""
        if path == "collections":
            return {"collections": [{"name": name} for name in self.collections]}
        _, name, action = [*path.split("/", 2), ""][:3]
        if action == "exists":
            return {"exists": name in self.collections}
        if (method, action) == ("PUT", ""):
            return self._make(name, models.CreateCollection(**body))
        if (method, action) == ("DELETE", ""):
            return name in self.collections and self._drop(self.collections.pop(name))
        if name not in self.collections:
            raise LookupError(f"Not found: Collection `{name}` doesn't exist!")
        held = self.collections[name]
        return held.described() if (method, action) == ("GET", "") else OF_POINTS[method, action](held, body)

    def _make(self, name: str, asked: models.CreateCollection) -> bool:
        if name in self.collections:
            raise FileExistsError(f"Wrong input: Collection `{name}` already exists!")
        self.made += 1
        folder = self.folder / str(self.made)
        folder.mkdir()
        self.collections[name] = Collection(asked, folder)
        return True

    @staticmethod
    def _drop(held: Collection) -> bool:
        held.shard.close()
        shutil.rmtree(held.folder)
        return True


STATUS = {LookupError: 404, FileExistsError: 409}  # 400 for what else the engine raises


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Keep the test output clean."""

    def _answer(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        path = urlsplit(self.path).path.strip("/")
        if not path:
            self._send(200, {"title": "qdrant - vector search engine", "version": VERSION})
            return
        try:
            with self.server.lock:
                result = self.server.answer(self.command, path, body)
        except Exception as error:  # noqa: BLE001  the engine raises nothing narrower
            self._send(STATUS.get(type(error), 400), {"status": {"error": f"{type(error).__name__}: {error}"}})
            return
        self._send(200, {"result": result, "status": "ok", "time": 0})

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815  the names that http.server calls

    def _send(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def qdrant_stand_in(port=0):
    """Serve an empty Qdrant; give its URL."""
    with tempfile.TemporaryDirectory() as folder, served(_Server(Path(folder), port)) as url:
        yield url


@pytest.fixture(scope="session")
def qdrant_server():
    """URL of a stand-in for a Qdrant server."""
    with qdrant_stand_in() as url:
        yield url


if __name__ == "__main__":
    _Server(Path(sys.argv[2]), int(sys.argv[1])).serve_forever()
