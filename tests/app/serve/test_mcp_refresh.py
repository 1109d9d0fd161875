"""The MCP server over a folder that changes: questions write nothing, and wait for no refresh."""

import asyncio
import threading

from llama_index.core import MockEmbedding
from mcp_clients import mcp, text_of, wait_for

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.serve import mcp_server
from llama_index_contextual.memory.digest import NOTHING
from llama_index_contextual.tools.arguments import Retrieval
from llama_index_contextual.utils.errors import LockedError


def contents(folder):
    """Every file below a folder, with what it holds."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(*_, **__):
    raise LockedError("another process is writing the index at /srv. Wait until it ends.")


async def test_questions_write_nothing(folder, index):
    (folder / "new.md").write_text("# New\n\nThe boat is called Luna.\n", "utf-8")
    before = contents(folder)
    async with mcp.Client(mcp_server.NotesServer(index, refresh="never")) as client:
        for tool, arguments in [
            ("memory_context", {"message": "what is the boat called?"}),
            ("retrieve", {"query": "boat"}),
            ("read", {"path": "new.md"}),
            ("list", {}),
        ]:
            await text_of(client, tool, **arguments)
        shown = await text_of(client, "memory_context", message="what does JC's dog love?")
    assert contents(folder) == before
    assert shown.splitlines()[-1] == "(Index: 1 file changed since; run index.)"


async def test_an_answer_waits_for_no_refresh_and_says_so(folder, index, monkeypatch):
    (folder / "new.md").write_text("# New\n\nThe boat is called Luna.\n", "utf-8")
    release, refresh = threading.Event(), index.refresh

    def slow(*arguments, **options):
        assert release.wait(60)
        return refresh(*arguments, **options)

    monkeypatch.setattr(index, "refresh", slow)
    async with mcp.Client(mcp_server.NotesServer(index)) as client:
        shown = await text_of(client, "memory_context", message="what does JC's dog love?")
        assert "Cookie loves carrots" in shown
        assert "being indexed" in shown.splitlines()[-1]
        assert await text_of(client, "memory_context", message="hola") == NOTHING
        release.set()
        await wait_for(client, "boat", "Luna")


async def test_a_refresh_that_fails_does_not_silence_memory(folder, index, monkeypatch):
    (folder / "new.md").write_text("# New\n\nThe boat is called Luna.\n", "utf-8")

    monkeypatch.setattr(index, "refresh", refused)
    async with mcp.Client(mcp_server.NotesServer(index)) as client:
        shown = await text_of(client, "retrieve", query="carrots")
    assert "Cookie" in shown
    assert shown.splitlines()[-1].endswith("another process is writing it.)"), (
        "an agent cannot fix the index"
    )


async def test_a_first_refresh_that_fails_is_told(folder):
    with ContextualIndex.open(folder, embed_model=MockEmbedding(embed_dim=3)) as index:
        index.refresh = refused
        async with mcp.Client(mcp_server.NotesServer(index)) as client:
            shown = await text_of(client, "retrieve", query="carrots")
    assert "nothing is indexed yet" in shown
    assert "another process is writing" in shown.splitlines()[-1]
    assert "being indexed" not in shown


async def test_a_question_while_the_first_refresh_is_at_work_is_told_and_one_after_it_failed_too(
    folder,
):
    working, release = threading.Event(), threading.Event()

    class Failing(MockEmbedding):
        def _get_text_embeddings(self, texts):
            working.set()
            release.wait(30)
            raise OSError("the model went away")

    with ContextualIndex.open(folder, embed_model=Failing(embed_dim=3)) as index:
        notes = mcp_server.NotesServer(index)
        notes.keeper.start()
        assert await asyncio.to_thread(working.wait, 30)
        shown = notes.tools.retrieve(Retrieval(query="carrots"))
        assert "nothing is indexed yet" in shown.text
        assert "being indexed" in shown.text
        release.set()
        await asyncio.to_thread(notes.keeper.close)
        shown = notes.tools.retrieve(Retrieval(query="carrots"))
    assert "nothing is indexed yet" in shown.text
    assert "the model went away" in shown.text
