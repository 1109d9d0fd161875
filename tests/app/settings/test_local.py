from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import re
import runpy
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import Document
from pydantic import Field

from llama_index_contextual import HeadingAwareMarkdownNodeParser
from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index.chunking import LARGEST_OF_CODE, default_parser
from llama_index_contextual.app.settings import embeddings as module
from llama_index_contextual.app.settings import local as onnx
from llama_index_contextual.app.settings.embeddings import NoEmbedding, embedding_limit
from llama_index_contextual.app.settings.local import LocalEmbedding
from llama_index_contextual.app.settings.models import NamedModel, model_id, resolve_embedding
from llama_index_contextual.utils.errors import EmbeddingError, MissingExtraError, SettingError
from llama_index_contextual.utils.tokens import minilm_tokenizer

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def local():
    return LocalEmbedding()


def cosine(a, b):
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_related_texts_are_closer_than_unrelated_ones(local):
    dog, puppy, tax = local.get_text_embedding_batch(
        ["a dog barks", "the puppy is barking", "tax law of 1987"]
    )
    assert len(dog) == 384
    assert np.isclose(np.linalg.norm(dog), 1, atol=1e-5)
    assert cosine(dog, puppy) > 0.6
    assert cosine(dog, tax) < 0.3


@pytest.mark.long
def test_a_vector_does_not_depend_on_its_batch(local):
    texts = [f"sentence number {i} " * (i + 1) for i in range(70)]
    together = local.embed(texts)
    alone = np.vstack([local.embed([text]) for text in texts])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, LocalEmbedding(threads=1).embed(texts))


def test_eight_bits_change_little(local, monkeypatch):
    """The same weights multiplied in 32 bits, as onnxruntime runs the file of their package."""
    texts = [
        "a dog barks",
        "tax law of 1987",
        "def add(a, b):\n    return a + b",
        "The gateway times out. " * 30,
    ]
    quick = local.embed(texts)
    plain = onnx.open_session(onnx.weights_file())
    monkeypatch.setattr(onnx, "session", lambda: plain)
    precise = local.embed(texts)
    assert not np.array_equal(quick, precise)
    assert (np.sum(quick * precise, axis=1) > 0.998).all()


def test_a_padded_table_has_the_vector_of_a_plain_one(local):
    plain, padded = local.embed(
        [
            "| a | b |\n| --- | --- |\n| 1 | 2 |",
            f"| a{' ' * 300} | b |\n| {'-' * 300} | --- |\n| 1 | 2 |",
        ]
    )
    np.testing.assert_array_equal(plain, padded)


def test_any_embedding_of_an_index_reads_no_more_of_a_padded_table_than_was_counted(tmp_path):
    class Recording(MockEmbedding):
        texts: list[str] = Field(default_factory=list)

        def _get_text_embedding(self, text):
            self.texts.append(text)
            return super()._get_text_embedding(text)

    (tmp_path / "tides.md").write_text(
        f"# Tides\n\n| a | b |\n| {'-' * 300} | --- |\n| 1 | 2 |\n", "utf-8"
    )
    model = Recording(embed_dim=3, model_name="all-minilm")
    with ContextualIndex.open(tmp_path, embed_model=model) as index:
        index.refresh()
    pieces = [len(minilm_tokenizer().encode(text).ids) for text in model.texts]
    assert pieces
    assert max(pieces) < 60


def test_both_graphs_give_the_same_vectors():
    """The signed graph is used only where the processor adds products without overflow."""
    signed = onnx.open_session(onnx.SIGNED_GRAPH)
    unsigned = onnx.open_session(onnx.UNSIGNED_GRAPH)
    for text in ("a", "The gateway times out. " * 30, "\U0001f600 0 " * 20):
        ids = [101, *minilm_tokenizer().encode(text, add_special_tokens=False).ids[:254], 102]
        vector = onnx._embed_window(signed, ids)
        if onnx.adds_products_exactly():
            np.testing.assert_array_equal(vector, onnx._embed_window(unsigned, ids))
        else:
            assert cosine(vector, onnx._embed_window(unsigned, ids)) > 0.9


@pytest.mark.process
def test_each_processor_gets_a_graph_that_its_onnxruntime_runs():
    """In another process, because a fault here ends the process instead of raising an error."""
    code = """
        from llama_index_contextual.app.settings import local
        for is_exact in (True, False):
            local.adds_products_exactly = lambda: is_exact
            local.session.cache_clear()
            print(is_exact, len(local.LocalEmbedding().get_text_embedding("a dog barks")))
    """
    run = subprocess.run(  # noqa: S603
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, "True 384\nFalse 384\n"), run.stderr


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "flags : avx2 avx512_vnni", True),
        ("AMD64", "flags : avx2 avx_vnni", True),
        ("x86_64", "flags : avx2", False),
        ("x86_64", None, False),
        ("arm64", None, True),
    ],
)
def test_only_x86_without_vnni_needs_unsigned_weights(monkeypatch, machine, flags, expected):
    def read_text(path, encoding):
        if flags is None:
            raise FileNotFoundError(path)
        return flags

    monkeypatch.setattr(onnx.platform, "machine", lambda: machine)
    monkeypatch.setattr(onnx.Path, "read_text", read_text)
    assert onnx.adds_products_exactly.__wrapped__() is expected


def test_the_graphs_are_those_that_their_script_makes():
    script = runpy.run_path(str(ROOT / "scripts" / "minilm_graph.py"))
    for file, graph in script["graphs"](onnx.weights_file().read_bytes()).items():
        assert file.read_bytes() == graph


@pytest.mark.long
def test_many_long_texts_take_little_memory():
    code = """
        import resource
        from llama_index_contextual.app import LocalEmbedding
        embedding = LocalEmbedding(threads=2)
        embedding.embed(["load the model"])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        embedding.embed(["the cat sat on the mat " * 42] * 64)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    run = subprocess.run(  # noqa: S603
        [sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 200  # MiB; in batches of 32 it was 650


@pytest.mark.process
def test_onnxruntime_reports_nothing(tmp_path):
    code = """
    from pathlib import Path
    from llama_index_contextual.app import LocalEmbedding
    LocalEmbedding().get_text_embedding("text")
    print([str(path) for path in Path.home().rglob("*") if path.is_file()])
    """
    env = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
    }  # and no setting of this process
    run = subprocess.run(  # noqa: S603
        [sys.executable, "-c", dedent(code)], env=env, capture_output=True, text=True, check=True
    )
    assert (
        run.stdout == "[]\n"
    )  # with telemetry: a number for this machine, and a database of events


def test_nothing_of_a_long_text_is_left_out(local):
    start = "the cat sat on the mat " * 60
    end = "quarterly revenue of the company grew"
    short, long = local.embed([start, start + end * 20])
    question = local.embed(["company revenue"])[0]
    assert cosine(long, question) > cosine(short, question) + 0.1


def test_empty_input_and_blank_text(local):
    assert local.get_text_embedding_batch([]) == []
    assert np.isclose(np.linalg.norm(local.get_text_embedding("")), 1, atol=1e-5)
    assert len(local.get_text_embedding("lone \ud800 surrogate")) == 384


def test_threads_and_async_give_the_same(local):
    texts = [f"thread {i}" for i in range(16)]
    expected = [local.get_text_embedding(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        threaded = list(pool.map(local.get_text_embedding, texts))
    np.testing.assert_allclose(threaded, expected, atol=1e-6)

    async def gather():
        return await asyncio.gather(*(local.aget_query_embedding(text) for text in texts))

    np.testing.assert_allclose(asyncio.run(gather()), expected, atol=1e-6)


def test_it_can_be_pickled_and_rebuilt_from_its_dict(local):
    local.get_text_embedding("load the session first")
    for copy in (pickle.loads(pickle.dumps(local)), LocalEmbedding.from_dict(local.to_dict())):  # noqa: S301
        np.testing.assert_allclose(copy.embed(["same"]), local.embed(["same"]), atol=1e-6)


def test_the_limit_is_what_the_counter_counts(local):
    assert embedding_limit(local) == ("minilm", 254)
    assert embedding_limit(MockEmbedding(embed_dim=3)) is None


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("sentence-transformers/all-MiniLM-L6-v2", ("minilm", 248)),
        ("all-minilm:l6-v2", ("minilm", 248)),
        ("mxbai-embed-large:latest", ("minilm", 504)),
        ("BAAI/bge-small-en-v1.5", ("minilm", 504)),
        ("intfloat/e5-base-v2", ("minilm", 504)),
        ("intfloat/multilingual-e5-small", ("e5", 504)),
        ("text-embedding-3-small", ("cl100k", 8183)),
        ("snowflake-arctic-embed2", ("cl100k", 8184)),
        ("somebody/else", None),
    ],
)
def test_known_models_have_the_window_of_their_card(model, limit, monkeypatch):
    assert embedding_limit(MockEmbedding(embed_dim=3, model_name=model)) == limit
    if limit and limit[0] != "cl100k":  # without the extra, as words may have more pieces
        monkeypatch.setattr(module, "find_spec", lambda _name: None)
        tokenizer, fewer = embedding_limit(MockEmbedding(embed_dim=3, model_name=model))
        assert (tokenizer, fewer < limit[1]) == ("cl100k", True)


def test_an_index_by_keywords_alone_needs_no_extra(monkeypatch):
    assert embedding_limit(NoEmbedding()) == embedding_limit(LocalEmbedding())
    monkeypatch.setattr(module, "find_spec", lambda _name: None)
    assert embedding_limit(NoEmbedding()) == ("cl100k", 190)


@pytest.mark.parametrize(
    ("model", "tokenizer", "size"),
    [
        ("all-minilm", "minilm", 184),
        ("all-minilm-l12", "minilm", 60),
        ("bge-small-en-v1.5", "minilm", 400),
        ("text-embedding-3-large", "cl100k", 400),
        ("somebody/else", None, 400),
    ],
)
def test_an_index_cuts_chunks_that_its_embedding_reads_whole(model, tokenizer, size):
    parser = default_parser(MockEmbedding(embed_dim=3, model_name=model))
    assert (parser.tokenizer, parser.chunk_size) == (tokenizer, size)
    assert (parser.chunk_overlap, parser.min_chunk_size) == (size // 5, size // 8)
    assert (
        default_parser(MockEmbedding(embed_dim=3, model_name=model), {"chunk_size": 800}).chunk_size
        == 800
    )


def test_the_local_embedding_names_its_missing_extra(monkeypatch):
    monkeypatch.setattr(onnx, "find_spec", lambda _name: None)
    onnx.session.cache_clear()
    with pytest.raises(MissingExtraError, match=r"pip install 'llama-index-contextual\[local\]'"):
        LocalEmbedding().get_text_embedding("x")
    onnx.session.cache_clear()


def test_other_weights_are_refused(monkeypatch):
    monkeypatch.setattr(onnx, "MODEL_SHA256", "0" * 64)
    onnx.session.cache_clear()
    with pytest.raises(EmbeddingError, match="force-reinstall"):
        LocalEmbedding().get_text_embedding("x")
    onnx.session.cache_clear()


@pytest.mark.parametrize(
    ("spec", "class_name", "model"),
    [
        ("local", "LocalEmbedding", "all-MiniLM-L6-v2-int8"),
        ("ollama:nomic-embed-text", "OllamaEmbedding", "nomic-embed-text"),
        ("ollama:all-minilm:latest@http://127.0.0.1:9", "OllamaEmbedding", "all-minilm:latest"),
        ("openai:@cf/baai/bge-m3@http://127.0.0.1:9/v1", "OpenAIEmbedding", "@cf/baai/bge-m3"),
    ],
)
def test_a_string_chooses_the_embedding(spec, class_name, model):
    chosen = resolve_embedding(spec)
    assert (chosen.class_name(), chosen.model_name) == (class_name, model)
    assert model_id(chosen).startswith(f"{class_name}:{model}#")


def test_nomic_gets_its_instructions():
    chosen = resolve_embedding("ollama:nomic-embed-text")
    assert (chosen.query_instruction, chosen.text_instruction) == (
        "search_query:",
        "search_document:",
    )
    assert model_id(chosen) != model_id(
        resolve_embedding("ollama:nomic-embed-text").model_copy(update={"text_instruction": None})
    )


def test_an_embedding_object_is_returned_unchanged():
    mock = MockEmbedding(embed_dim=3)
    assert resolve_embedding(mock) is mock


MISPLACED = (
    *(
        "ollama:m@localhost:11434",
        "openai:m@myhost/v1",
        "openai:@http://host/v1",
        "openai:m @http://host/v1",
    ),
)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "ollama",
        "ollama:",
        "cohere:x",
        "voyage:x",
        "jina:x",
        "nomic-embed-text",
        5,
        None,
        *MISPLACED,
    ],
)
def test_an_unknown_embedding_is_an_error_that_lists_the_accepted_forms(spec):
    with pytest.raises(SettingError, match=r"'ollama:MODEL'"):
        resolve_embedding(spec)


@pytest.mark.parametrize(
    "url", ["http://localhost:99999", "http://localhost:0/v1", "http://[::1", "http://:80"]
)
def test_an_invalid_address_is_named_as_the_cause(url):
    for model in (resolve_embedding, partial(NamedModel, max_tokens=800)):
        with pytest.raises(
            SettingError,
            match=rf"must have an address such as http://HOST:PORT/v1, .* not {re.escape(url)} ",
        ):
            model(f"openai:m@{url}")


class _Embeds(BaseHTTPRequestHandler):
    """OpenAI's interface for embeddings: a text's vector counts some of its letters."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body["model"], self.headers["Authorization"]))
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        vectors = [
            np.array([text.count(letter) + 0.1 for letter in "aeioutsx"], "<f4") for text in texts
        ]
        as_text = body.get("encoding_format") == "base64"
        data = [
            {
                "index": index,
                "embedding": (
                    base64.b64encode(vector.tobytes()).decode() if as_text else vector.tolist()
                ),
            }
            for index, vector in enumerate(vectors)
        ]
        answer = json.dumps(
            {"data": data, "model": body["model"], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_):
        """Keep the output of the tests clean."""


def test_any_server_with_openai_s_interface_embeds_and_does_not_get_the_key_of_openai(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    (tmp_path / "a.md").write_text("# A\n\nxxxxx xxxx\n")
    (tmp_path / "b.md").write_text("# B\n\neee eee eee\n")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Embeds)
    server.asked = []
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    ).start()
    try:
        name = f"openai:my-model@http://127.0.0.1:{server.server_port}/v1"
        with ContextualIndex.open(tmp_path, embed_model=name) as index:
            assert index.refresh().embedded == 2
            assert index.as_retriever(1).retrieve("xxx")[0].node.metadata["path"] == "a.md"
    finally:
        server.shutdown()
        server.server_close()
    assert {(path, model) for path, model, _ in server.asked} == {("/v1/embeddings", "my-model")}
    assert "sk-secret" not in str(server.asked)


def test_a_provider_that_is_not_installed_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_index.embeddings.huggingface", None)
    with pytest.raises(MissingExtraError, match=r"pip install llama-index-embeddings-huggingface$"):
        resolve_embedding("huggingface:BAAI/bge-small-en-v1.5")


def test_source_code_is_cut_longer_than_prose_unless_a_size_is_chosen(local):
    text = "\n\n".join(
        f"def add_{number}(a, b):\n    return a + b + {number}" for number in range(80)
    )
    documents = [
        Document(text=text, id_=path, metadata={"path": path}) for path in ("sums.py", "sums.txt")
    ]

    def longest(parser):
        nodes = parser(documents)
        return [
            max(
                node.metadata["token_count"] for node in nodes if node.ref_doc_id == document.doc_id
            )
            for document in documents
        ]

    code, prose = longest(default_parser(local))
    assert prose <= default_parser(local).chunk_size == 190 < code <= LARGEST_OF_CODE
    alone = {node.text for node in default_parser(local)(documents[1:])}
    assert alone == {
        node.text
        for node in HeadingAwareMarkdownNodeParser(
            chunk_size=190,
            chunk_overlap=38,
            min_chunk_size=23,
            tokenizer="minilm",
            markdown_suffixes=(".md",),
        )(documents[1:])
    }, "prose is cut as before"
    assert not any("overflow" in node.metadata for node in default_parser(local)(documents))
    assert max(longest(default_parser(local, {"chunk_size": 100}))) <= 100
    assert max(longest(default_parser(local, {"chunk_overlap": 0}))) <= 190
    for name in ("bge-small-en-v1.5", "all-minilm", "all-mpnet-base-v2", "paraphrase-multilingual"):
        cut = default_parser(MockEmbedding(embed_dim=3, model_name=name))
        assert max(longest(cut)) <= cut.chunk_size, (
            f"{name} reads no further, and averages no windows"
        )
    assert longest(pickle.loads(pickle.dumps(default_parser(local)))) == [code, prose]  # noqa: S301
