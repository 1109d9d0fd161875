"""The plug-in works without the packages of its extras, and names a missing extra in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
import tomlkit
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# The dependencies of LlamaIndex's own packages are always installed.
ABSENT = [
    "rich", "pathspec", "markdown_it", "starlette", "uvicorn", "mcp", "simsimd",
    "onnxruntime", "tokenizers", "chromadb", "kreuzberg", "pypdfium2", "ray",
    "llama_index.llms.ollama", "llama_index.llms.openai_like", "llama_index.embeddings.ollama",
    "ollama",
    "llama_index.vector_stores.chroma",
    "pytest", "_pytest", "pytest_asyncio",
]  # fmt: skip
BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in {ABSENT!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


def alone(code, *arguments):
    command = [sys.executable, "-c", BLOCK + code, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603


@pytest.mark.process
def test_a_pipeline_of_the_plug_in_alone():
    done = alone("""
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
import llama_index_contextual as ctx
from llama_index_contextual import context, memory, node_parser, postprocessors, retrievers

for name in ctx.__all__:
    getattr(ctx, name)
nodes = ctx.HeadingAwareMarkdownNodeParser()([Document(text="# Gateway\\n\\nThe default is 60.\\n")])
nodes = ctx.ContextualNodePostprocessor()(nodes)
index = VectorStoreIndex(nodes, embed_model=MockEmbedding(8))
fusion = ctx.ContextualFusionRetriever([ctx.ContextualVectorRetriever(index), ctx.ContextualBM25Retriever(nodes)])
hits = ctx.RecencyPostprocessor().postprocess_nodes(fusion.retrieve("gateway default"))
print(ctx.MemoryContext(fusion).get("what is the gateway's default?").entries[0].snippet)
assert hits and not [name for name in sys.modules if name.startswith("llama_index_contextual.app")]
""")  # noqa: E501
    assert (done.returncode, done.stderr) == (0, "")
    assert "The default is 60." in done.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from llama_index_contextual.app import ContextualIndex", "app"),
        (
            (
                "from llama_index_contextual.app.settings.models import resolve_embedding; "
                "resolve_embedding('ollama:m')"
            ),
            "llm",
        ),
        (
            (
                "from llama_index_contextual.app import LocalEmbedding; "
                "LocalEmbedding().get_text_embedding('a')"
            ),
            "local",
        ),
        ("from llama_index_contextual.__main__ import main; main()", "app"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(code, extra):
    done = alone(code)
    assert done.returncode == 1
    assert (
        f"is not installed. Install it with: pip install 'llama-index-contextual[{extra}]'"
        in done.stderr.splitlines()[-1]
    )


def test_the_base_has_at_most_twelve_dependencies():
    base = (
        (ROOT / "pyproject.toml")
        .read_text("utf-8")
        .partition("\ndependencies = [\n")[2]
        .partition("\n]")[0]
    )
    assert 4 < len(base.splitlines()) <= 12


def test_the_base_brings_no_test_framework():
    project = tomlkit.parse((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    todo, seen = list(project["dependencies"]), set()
    while todo:
        need = Requirement(todo.pop())
        if need.name not in seen and (need.marker is None or need.marker.evaluate({"extra": ""})):
            seen.add(need.name)
            todo += requires(need.name) or ()
    assert {"llama-index-core", "openai", "aiohttp"} <= seen
    assert not {"pytest", "pytest-asyncio", "hypothesis", "coverage"} & seen
