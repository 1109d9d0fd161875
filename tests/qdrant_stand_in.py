"""Qdrant's REST interface in front of its local mode, as no registry of packages has the server as a binary.

It answers the requests that an index makes, with Qdrant's own models of requests and Qdrant's own Python engine. What
it proves is that the same code works by address, from several processes; it says nothing of a real server's speed, nor
of its approximate index of vectors.
"""

import json
import threading
import warnings
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from pydantic_core import to_jsonable_python
from qdrant_client import QdrantClient, models
from servers import served

VERSION = "1.20.0"


def _query(client, name, body):
    asked = models.QueryRequest(**body)
    return client.query_points(
        name,
        query=asked.query,
        using=asked.using,
        limit=asked.limit,
        query_filter=asked.filter,
        with_payload=asked.with_payload or False,
        with_vectors=asked.with_vector or False,
    )


def _scroll(client, name, body):
    asked = models.ScrollRequest(**body)
    points, offset = client.scroll(
        name,
        scroll_filter=asked.filter,
        limit=asked.limit,
        offset=asked.offset,
        with_payload=asked.with_payload if asked.with_payload is not None else True,
        with_vectors=asked.with_vector or False,
    )
    return {"points": points, "next_page_offset": offset}


def _retrieve(client, name, body):
    asked = models.PointRequest(**body)
    return client.retrieve(name, asked.ids, with_payload=asked.with_payload, with_vectors=asked.with_vector or False)


def _facet(client, name, body):
    asked = models.FacetRequest(**body)
    return client.facet(name, key=asked.key, limit=asked.limit, exact=asked.exact, facet_filter=asked.filter)


def _create(client, name, body):
    asked = models.CreateCollection(**body)
    return client.create_collection(
        name, vectors_config=asked.vectors, sparse_vectors_config=asked.sparse_vectors, metadata=asked.metadata
    )


def _batch(client, name, body):
    return client.batch_update_points(name, models.UpdateOperations(**body).operations)


ANSWERS = {
    ("POST", "points/query"): _query,
    ("POST", "points/query/batch"): lambda client, name, body: [_query(client, name, one) for one in body["searches"]],
    ("POST", "points/scroll"): _scroll,
    ("POST", "points"): _retrieve,
    ("POST", "points/count"): lambda client, name, _: client.count(name),
    ("POST", "facet"): _facet,
    ("PUT", "points"): lambda client, name, body: client.upsert(name, models.PointsList(**body).points),
    ("POST", "points/delete"): lambda client, name, body: client.delete(name, models.PointIdsList(**body)),
    ("POST", "points/batch"): _batch,
    ("PUT", "index"): lambda *_: {"operation_id": 0, "status": "completed"},
    ("GET", "exists"): lambda client, name, _: {"exists": client.collection_exists(name)},
    ("GET", ""): lambda client, name, _: client.get_collection(name),
    ("PUT", ""): _create,
    ("DELETE", ""): lambda client, name, _: client.delete_collection(name),
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Keep the test output clean."""

    def _answer(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts == [""]:
            self._send(200, {"title": "qdrant - vector search engine", "version": VERSION})
            return
        status, result = 200, None
        with self.server.lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client = self.server.client
            try:
                if parts == ["collections"]:
                    result = client.get_collections()
                else:
                    result = ANSWERS[self.command, "/".join(parts[2:])](client, parts[1], body)
            except ValueError as error:
                text = str(error)
                status = 404 if "not found" in text else 409 if "already exists" in text else 400
                self._send(status, {"status": {"error": text}, "time": 0})
                return
        self._send(status, {"result": to_jsonable_python(result), "status": "ok", "time": 0})

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
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.client, server.lock = QdrantClient(":memory:"), threading.Lock()
    with served(server) as url:
        yield url


@pytest.fixture(scope="session")
def qdrant_server():
    """URL of a stand-in for a Qdrant server."""
    with qdrant_stand_in() as url:
        yield url
