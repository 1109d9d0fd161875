"""A run of 500 chunks that is killed, and the calls that the next run repeats."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fake_model import Reply

pytestmark = pytest.mark.kill

WORKERS, BATCH = 4, 8  # the defaults, for a server elsewhere
SCRIPT = """
import sys
from llama_index.core.schema import TextNode
from llama_index_contextual.app.settings.models import NamedModel
from llama_index_contextual import ContextualNodePostprocessor

llm, cache = sys.argv[1:]
nodes = [
    TextNode(text=f"Chunk {doc}-{number} of a text.", metadata={"path": f"{doc}.md", "header_path": f"Part {number}"})
    for doc in range(10) for number in range(50)
]
named = NamedModel(llm, 800)
ContextualNodePostprocessor("llm", llm=named, cache=cache, num_workers=4, batch_size=8, fallback=None)(nodes)
assert all(node.metadata["context_source"] == "llm:fake+pattern" for node in nodes)
"""  # noqa: E501


@pytest.fixture
def start(fake_model, tmp_path):
    """Return a function that starts the run in a separate process."""

    def run():
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-c", SCRIPT, fake_model.llm, str(tmp_path / "contexts.sqlite")]
        return subprocess.Popen(command, env=environment)  # noqa: S603

    return run


def test_after_kill_9_no_finished_call_is_repeated(start, fake_model):
    fake_model.reply = lambda *_: Reply(delay=0.05)
    with start() as process:
        fake_model.wait_for(30, seconds=120)  # a busy machine takes its time
        process.send_signal(signal.SIGKILL)
    before = Counter(chunk for request in fake_model.requests for chunk in request.chunks)
    fake_model.reply = lambda *_: Reply()
    fake_model.requests.clear()
    with start() as process:
        assert process.wait(60) == 0
    after = Counter(chunk for request in fake_model.requests for chunk in request.chunks)
    assert len(before) >= 100
    assert len(before | after) == 500
    assert max(after.values()) == 1
    assert len(before & after) <= WORKERS * BATCH  # those in flight
