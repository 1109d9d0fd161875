"""Many readers, one writer; in threads, in processes, and through Chroma's server."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llama_index_contextual.utils.errors import LockedError

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]

COMMON = """
import json, sys, time
from pathlib import Path
from llama_index.core import Document, MockEmbedding
from llama_index_contextual.app import ContextualIndex

class Letters(MockEmbedding):
    def _get_text_embeddings(self, texts):
        return [[float(len(t)), *(float(t.count(c)) for c in "aeiou"), 1.0] for t in texts]
    def _get_query_embedding(self, query):
        return self._get_text_embeddings([query])[0]

def opened(folder, **options):
    return ContextualIndex.open(folder, embed_model=Letters(7, model_name="letters"), **options)
"""
WRITER = """
folder, seconds = sys.argv[1], float(sys.argv[2])
docs, end, round_ = Path(folder), time.monotonic() + seconds, 0
with opened(folder) as index:
    while time.monotonic() < end:
        round_ += 1
        for n in range(4):
            (docs / f"page{n}.md").write_text(f"# Page {n}\\n\\nround{round_} of page{n}.\\n")
        (docs / f"extra{round_}.md").write_text(f"# Extra\\n\\nextra{round_}\\n")
        (docs / f"extra{round_ - 1}.md").unlink(missing_ok=True)
        index.refresh()
print(json.dumps({"rounds": round_}))
"""
READER = """
folder, stop = sys.argv[1], Path(sys.argv[2])
queries, oldest = 0, 0
with opened(folder, create=False) as index:
    retriever = index.as_retriever(10)
    while not stop.exists():
        hits = retriever.retrieve("round of page")
        assert all(hit.node.text and hit.node.metadata["path"] for hit in hits), "a hit without text or path"
        queries += 1
    last = retriever.retrieve("round of page extra")
print(json.dumps({"queries": queries, "texts": sorted(hit.node.text for hit in last)}))
"""  # noqa: E501


def start(script, *arguments):
    return subprocess.Popen(  # noqa: S603  our own script
        [sys.executable, "-c", COMMON + script, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def test_readers_in_other_processes_meet_no_error_and_nothing_stale_after_the_writers_end(
    folder, tmp_path
):
    said(start(WRITER, folder, 0.1))
    stop = tmp_path / "stop"
    readers = [start(READER, folder, stop) for _ in range(4)]
    rounds = said(start(WRITER, folder, 8))["rounds"]
    stop.touch()
    for reader in readers:
        seen = said(reader)
        assert seen["queries"] > 0
        assert [text for text in seen["texts"] if text.startswith("# Page")] == [
            f"# Page {n}\n\nround{rounds} of page{n}." for n in range(4)
        ]
        assert [text for text in seen["texts"] if text.startswith("# Extra")] == [
            f"# Extra\n\nextra{rounds}"
        ]


def test_a_second_writer_is_refused(opened, folder):
    hold = (
        "with opened(sys.argv[1]).settings.layout.hold():\n    print('{}', flush=True)\n    "
        "time.sleep(60)"
    )
    with start(hold, folder) as other:
        assert other.stdout.readline()
        with pytest.raises(LockedError, match="another process is writing"):
            opened().refresh()
        other.kill()
    assert opened().refresh().added


def test_fifty_readers_while_one_thread_refreshes(opened, folder):
    index = opened()
    index.refresh()
    retriever, errors, done = index.as_retriever(3), [], threading.Event()

    def read():
        while not done.is_set():
            try:
                hits = retriever.retrieve("Which vegetable does Cookie like?")
                assert any("carrots" in hit.node.text for hit in hits)
            except Exception as error:  # noqa: BLE001, PERF203  whatever a reader meets fails the test
                errors.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(50)]
    for thread in threads:
        thread.start()
    for number in range(5):
        (folder / f"new{number}.md").write_text(
            f"# New {number}\n\nNumber {number} came while others read.\n"
        )
        (folder / "faq.md").write_text(f"# FAQ\n\nAnswer {number}.\n")
        index.refresh()
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert index.status(check=True).ok


async def test_readers_on_an_event_loop_do_not_wait_for_a_refresh(opened, folder):
    index = opened()
    await asyncio.to_thread(index.refresh)
    (folder / "new.md").write_text("# New\n\nSomething new.\n")
    refresh = asyncio.create_task(asyncio.to_thread(index.refresh))
    answers = await asyncio.gather(*(index.as_retriever(1).aretrieve("Cookie") for _ in range(50)))
    assert all("carrots" in hits[0].node.text for hits in answers)
    assert (await refresh).added == ["new.md"]


def test_a_reader_before_the_first_document_is_written_sees_an_empty_index(opened):
    index = opened()
    with index.settings.database.writing():  # the tables are there, and nothing is committed yet
        assert opened().documents() == {}
