"""Kill processes that write an index at random moments, and check that nothing is lost.

    python benchmarks/crash.py --rounds 200 --seconds 60

In each round, a forked child works on a folder and is killed by SIGKILL at a random moment. A
second child then opens the index, asks a question, refreshes it once, and checks it. All rounds use
the same index, so damage would add up. Embedding and LLM are stand-ins that record each finished
piece of work, so that repeated work is noticed. These actions are killed:

- index, refresh, delete, and a refresh with contexts by an LLM, also with a page of many chunks
- derive: parts of the cache are deleted, and a question or a refresh derives them again
- replace: another embedding model replaces the former one

After each kill, the index must open and answer. After a refresh, its chunks must be those of a
fresh parse of the files, and ``status --check`` must find nothing. At most one batch of texts may
have been embedded twice.

Then two writers edit pages and refresh, and one of them is killed again and again, while ten
readers ask questions. No reader may get an error, a hit from no page, or parts of two versions of a
page.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from common import command_line, fast_folder, machine, markdown_table
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms import CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata
from llama_index.core.schema import Document

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.app.index import refresh, status  # noqa: F401  for the children
from llama_index_contextual.app.index.chunking import default_parser
from llama_index_contextual.app.index.embedder import BATCH_TEXTS
from llama_index_contextual.utils.errors import LockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ACTIONS = (
    "index",
    "refresh",
    "refresh",
    "refresh",
    "delete",
    "llm",
    "large",
    "large llm",
    "derive",
    "replace",
)
# Sections of the large page, each of which is a chunk. Other actions except "derive" delete it.
SECTIONS = {
    "large": 800,
    "large llm": 200,
}
# The duration of an action that is expected at first, if it is not 1.
EXPECTED_SECONDS = {
    "large": 2.0,
    "large llm": 3.0,
}
CHANGES = ("add", "edit", "rename", "remove")
MIN_FILES = 25
MODELS = ("hash", "other hash")
PAGES = 20  # that two writers edit
PARTS = 4  # of such a page
READERS = 10
WRITERS = 2
QUESTION = "Which shard holds the lease?"
WORDS = ("disk", "lock", "queue", "shard", "token", "cache", "node", "lease")


class HashEmbedding(BaseEmbedding):
    """An embedding by a hash of the text, which writes a line to a file for each text."""

    _log: Path = PrivateAttr()

    def __init__(self, log: Path, model_name: str = "hash") -> None:
        super().__init__(model_name=model_name, embed_batch_size=2048)
        self._log = log

    def _get_query_embedding(self, query: str) -> list[float]:
        seed = int.from_bytes(hashlib.sha256(query.encode()).digest()[:8], "big")
        vector: list[float] = np.random.default_rng(seed).normal(size=64).tolist()
        return vector

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        keys = [f"{self.model_name} {text}".encode() for text in texts]
        append(self._log, [hashlib.sha256(key).hexdigest() for key in keys])
        return [self._get_query_embedding(text) for text in texts]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class CountingLLM(CustomLLM):
    """A model that answers after a few milliseconds, and writes a line to a file for each call."""

    log: str

    @property
    def metadata(self) -> LLMMetadata:
        """Return a context window that every page fits into."""
        return LLMMetadata(model_name="counting", context_window=32_000)

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:  # noqa: ARG002
        """Return a sentence that depends on the prompt, in words of the pages."""
        digest = hashlib.sha256(prompt.encode())
        time.sleep(0.003)
        append(Path(self.log), [digest.hexdigest()])
        words = ", ".join(WORDS[byte % len(WORDS)] for byte in digest.digest()[:3])
        return CompletionResponse(text=f"This passage of the page says how {words} work together.")

    def stream_complete(
        self,
        prompt: str,
        formatted: bool = False,  # noqa: ARG002
        **_: Any,  # noqa: ARG002, RUF100
    ) -> CompletionResponseGen:
        """Return the same in one piece."""
        yield self.complete(prompt)


def append(path: Path, lines: Sequence[str]) -> None:
    """Add lines in a single write, so that a kill leaves whole lines."""
    with path.open("ab", buffering=0) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def repeats(log: Path) -> int:
    """Count the lines of a log that occur more than once."""
    lines = Counter(log.read_text().splitlines()) if log.exists() else Counter()
    return sum(count - 1 for count in lines.values())


@dataclass(slots=True)
class Outcome:
    """The outcome of a round.

    Attributes:
        round: The number of the round.
        action: The action.
        seconds: The seconds until it was killed or ended.
        was_killed: Whether it was killed.
        problems: What was wrong afterwards.
        embedded_again: The number of texts that were embedded again, in all rounds so far.
        calls_repeated: The number of calls that were repeated, in all rounds so far.
    """

    round: int
    action: str
    seconds: float
    was_killed: bool = False
    problems: list[str] = field(default_factory=list)
    embedded_again: int = 0
    calls_repeated: int = 0


class Stage:
    """The files of a run.

    Attributes:
        docs: The folder with the pages.
        storage: The folder of the index.
        data: The user's data directory, with the content cache.
        model: A file with the name of the embedding model.
        large: The large page.
        embeddings: A log of the embedded texts.
        calls: A log of the calls of the LLM.
    """

    def __init__(self, root: Path) -> None:
        self.docs = root / "docs"
        self.storage = root / "storage"
        self.data = root / "data"
        self.model = root / "model.txt"
        self.large = self.docs / "large.md"
        self.embeddings = root / "embedded.log"
        self.calls = root / "calls.log"
        self.docs.mkdir(parents=True, exist_ok=True)
        os.environ["LLAMA_INDEX_CONTEXTUAL_STORAGE"] = str(self.data)

    def model_of(self, action: str) -> str:
        """Return the name of the embedding model for an action."""
        current = self.model.read_text() if self.model.exists() else MODELS[0]
        if action == "replace":
            return MODELS[1 - MODELS.index(current)]
        return current

    def open(self, action: str) -> ContextualIndex:
        """Open the index with the settings for an action."""
        # These are passed each time, because an index does not remember objects.
        options: dict[str, Any] = {
            "embed_model": HashEmbedding(self.embeddings, self.model_of(action)),
            "context": "headings",
        }
        if action.endswith("llm"):
            llm = CountingLLM(log=str(self.calls))
            options |= {"context": "llm", "llm": llm, "batch_size": 1, "num_workers": 2}
        is_replaced = action == "replace"
        return ContextualIndex.open(self.docs, storage=self.storage, reindex=is_replaced, **options)

    def change(self, dice: random.Random) -> None:
        """Edit, add, rename and delete some pages."""
        for _ in range(dice.randint(3, 15)):
            files = sorted(self.docs.rglob("page-*.md"))
            kind = dice.choice(CHANGES)
            new_file = self.docs / f"page-{dice.randrange(10**6)}.md"
            if kind == "add" or len(files) < MIN_FILES:
                new_file.write_text(page(dice, dice.randint(2, 6)))
            elif kind == "edit":
                file = dice.choice(files)
                heading = f"Line.\n\n## Part 1 {dice.randrange(99)}"
                file.write_text(file.read_text().replace("## Part 1", heading, 1))
            elif kind == "rename":
                dice.choice(files).rename(new_file)
            elif len(files) > MIN_FILES + 5:
                dice.choice(files).unlink()

    def prepare(self, action: str, dice: random.Random) -> None:
        """Delete what an action has to make again."""
        if action in SECTIONS:
            self.large.write_text(page(dice, SECTIONS[action]))
        elif action == "derive":
            for kind in dice.choice((["bm25"], ["vectors"], ["bm25", "vectors"])):
                for path in (self.storage / "cache").glob(f"{kind}*"):
                    path.unlink()
        else:
            self.large.unlink(missing_ok=True)
        if action == "index":
            for folder in (self.storage, self.data):
                shutil.rmtree(folder, ignore_errors=True)
            for log in (self.embeddings, self.calls, self.model):
                log.unlink(missing_ok=True)

    def work(self, action: str, dice: random.Random) -> None:
        """Do an action, which may be killed."""
        with self.open(action) as index:
            if action == "delete":
                paths = sorted(index.documents())
                for path in dice.sample(paths, k=min(5, len(paths))):
                    index.delete(path)
            if action == "derive" and dice.random() < 0.5:
                index.as_retriever().retrieve(QUESTION)
            index.refresh(confirm=True)

    def problems(self, action: str) -> list[str]:
        """Return what is wrong after an action, before and after a refresh."""
        problems = []
        with self.open(action) as index:
            # Before a refresh, it answers or names a remedy.
            is_former_model = action == "replace"  # it may have been killed before it wrote
            if index.exists and not is_former_model:
                try:
                    index.as_retriever().retrieve(QUESTION)
                except StorageError as error:
                    if "Run: llama-index-contextual index" not in str(error):
                        problems.append(f"an error that names no remedy: {error}")

            # After a refresh, it is complete.
            index.refresh(confirm=True)
            status = index.status(check=True)
            problems += status.problems or []
            if any(self.storage.glob("*.damaged")) or status.pending.work:
                problems.append(f"damaged, or something is left to refresh: {status.pending}")
            expected = self.expected_chunks(index)
            chunks = Counter(node.node_id for node in index.nodes())
            if chunks != expected:
                lost = (expected - chunks).total()
                surplus = (chunks - expected).total()
                problems.append(f"{lost} chunks lost, {surplus} too many")
            if not index.as_retriever(5).retrieve(QUESTION):
                problems.append("no answer")
        if action == "replace":
            self.model.write_text(self.model_of("replace"))
        return problems

    def expected_chunks(self, index: ContextualIndex) -> Counter[str]:
        """Return the ids of the chunks of all files, parsed again."""
        documents = []
        for file in sorted(self.docs.rglob("*.md")):
            path = file.relative_to(self.docs).as_posix()
            documents.append(Document(id_=path, text=file.read_text(), metadata={"path": path}))
        nodes = index.settings.parser.get_nodes_from_documents(documents)
        return Counter(node.node_id for node in nodes)


def page(dice: random.Random, sections: int) -> str:
    """Return a page of some sections, each long enough to be a chunk."""
    text = f"# Page {dice.randrange(10**6)}\n"
    for number in range(sections):
        heading = f"## Part {number} {dice.choice(WORDS)}"
        text += f"\n{heading}\n\n{' '.join(dice.choices(WORDS, k=90))}.\n"
    return text


class Child(NamedTuple):
    """A forked process.

    Attributes:
        pid: Its id.
        pipe: The descriptor from which its result can be read.
    """

    pid: int
    pipe: int

    def kill(self) -> int:
        """Kill it, and return its exit status."""
        os.kill(self.pid, signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]

    def output(self) -> str:
        """Return what it wrote until its end."""
        with os.fdopen(self.pipe, "rb") as file:
            return file.read().decode()

    def result(self, problems: list[str]) -> Any:
        """Wait for its end, and return the result of its task.

        If the task failed, the error is added to the problems, and the result is None.
        """
        output = self.output()
        if os.waitpid(self.pid, 0)[1]:
            problems.append(output[-1500:])
            return None
        return json.loads(output)


def fork(task: Callable[[], object]) -> Child:
    """Run a task in a forked process, which writes its result into a pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Child(pid, reading)
    code = 1
    try:
        os.setpgid(0, 0)
        os.write(writing, json.dumps(task()).encode())
        code = 0
    except BaseException:  # noqa: BLE001  the parent reports any error
        os.write(writing, traceback.format_exc().encode())
    finally:
        os._exit(code)


def one_round(stage: Stage, number: int, usual_seconds: dict[str, float]) -> Outcome:
    """Change the folder, start an action, kill it, and check the index.

    Args:
        stage: The files.
        number: The number of the round.
        usual_seconds: The durations of actions, which are updated.
    """
    dice = random.Random(number)  # noqa: S311  reproducible, not secret
    action = dice.choice(ACTIONS) if stage.storage.exists() else "index"
    stage.change(dice)
    stage.prepare(action, dice)
    repeats_before = repeats(stage.embeddings)

    # Kill it at a random moment.
    expected = usual_seconds.get(action, 1.0)
    delay = dice.random() * expected * 1.1
    started = time.monotonic()
    child = fork(lambda: stage.work(action, dice))
    while time.monotonic() - started < delay and os.waitpid(child.pid, os.WNOHANG) == (0, 0):
        time.sleep(0.002)
    outcome = Outcome(number, action, round(time.monotonic() - started, 3))
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        child.kill()
        outcome.was_killed = True
    output = child.output()
    if outcome.was_killed:
        usual_seconds[action] = max(expected, delay / 0.9)
    else:
        usual_seconds[action] = outcome.seconds
        if output != "null":
            outcome.problems.append(f"the work failed by itself: {output[-500:]}")

    # Check the index.
    checker = fork(lambda: stage.problems(action))
    outcome.problems += checker.result(outcome.problems) or []
    outcome.embedded_again = repeats(stage.embeddings)
    outcome.calls_repeated = repeats(stage.calls)
    repeated = outcome.embedded_again - repeats_before
    if repeated > BATCH_TEXTS:
        outcome.problems.append(f"{repeated} texts were embedded twice")
    return outcome


def load_tokenizer(log: Path) -> None:
    """Load what each child would otherwise load, so that it is killed during its work."""
    parser = default_parser(HashEmbedding(log))
    parser.get_nodes_from_documents([Document(text="# Page\n\nSome words.\n")])


def run(root: Path, rounds: int) -> list[Outcome]:
    """Return the outcomes of a number of rounds."""
    logging.getLogger("llama_index_contextual").setLevel(logging.ERROR)
    load_tokenizer(root / "embedded.log")
    stage = Stage(root)
    usual_seconds = dict(EXPECTED_SECONDS)
    outcomes = []
    for number in range(rounds):
        outcome = one_round(stage, number, usual_seconds)
        outcomes.append(outcome)
        if outcome.problems:
            name = f"round {number} ({outcome.action}, {outcome.seconds} s)"
            print(f"{name}: {outcome.problems}", file=sys.stderr)
    return outcomes


def totals(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return the numbers of texts and calls that were repeated.

    The logs start again with each action "index", so the last outcomes before it are added.
    """
    last_outcomes = []
    for outcome, next_outcome in zip_longest(outcomes, outcomes[1:]):
        if next_outcome is None or next_outcome.action == "index":
            last_outcomes.append(outcome)
    return {
        "texts embedded twice": sum(outcome.embedded_again for outcome in last_outcomes),
        "LLM calls repeated": sum(outcome.calls_repeated for outcome in last_outcomes),
    }


# Writers and readers


def edit(stage: Stage, number: int, version: int) -> None:
    """Write a version of a page. Each part is a chunk that contains the version."""
    text = f"# Page {number}"
    for part in range(PARTS):
        words = f"page{number} version{version} lease " * 60
        text += f"\n\n## Part {part}\n\n{words}"
    temporary = stage.docs / f".{number}-{os.getpid()}"
    temporary.write_text(text)
    temporary.replace(stage.docs / f"{number}.md")


def write(stage: Stage, until: float, seed: int) -> None:
    """Edit pages and refresh until a time."""
    dice = random.Random(seed)  # noqa: S311  reproducible, not secret
    with stage.open("refresh") as index:
        while time.monotonic() < until:
            for _ in range(3):
                edit(stage, dice.randrange(PAGES), dice.randrange(10**9))
            with contextlib.suppress(LockedError):  # the other writer is writing
                index.refresh(confirm=True)


class Readings(NamedTuple):
    """The number of questions of a reader, and the problems."""

    questions: int
    problems: list[str]


def read(stage: Stage, until: float, seed: int) -> Readings:
    """Ask questions until a time, and check that pages are whole."""
    dice = random.Random(seed)  # noqa: S311  reproducible, not secret
    questions = 0
    problems: list[str] = []
    with stage.open("refresh") as index:
        while time.monotonic() < until and not problems:
            page = f"{dice.randrange(PAGES)}.md"
            texts = [node.get_content() for node in index.nodes(page)]
            versions = {version for text in texts for version in re.findall(r"version\d+", text)}
            if len(texts) != PARTS or len(versions) != 1:
                problems.append(f"{page} is not whole: {len(texts)} parts, {sorted(versions)}")
            hits = index.as_retriever(5).retrieve(f"lease of page{dice.randrange(PAGES)}")
            if len(hits) != 5 or not all("version" in hit.text for hit in hits):
                problems.append(f"hits: {[hit.text[:50] for hit in hits]}")
            questions += 1
    return Readings(questions, problems)


class Crowd(NamedTuple):
    """The results of readers and writers."""

    kills: int
    questions: int
    problems: list[str]


def crowd(root: Path, seconds: float) -> Crowd:
    """Run ten readers and two writers, one of which is killed about every second."""
    stage = Stage(root)
    dice = random.Random(0)  # noqa: S311  reproducible, not secret
    for number in range(PAGES):
        edit(stage, number, 0)
    problems: list[str] = []
    fork(lambda: stage.work("refresh", dice)).result(problems)
    until = time.monotonic() + seconds
    readers = [fork(partial(read, stage, until, seed)) for seed in range(READERS)]
    writers = [fork(partial(write, stage, until, seed)) for seed in range(WRITERS)]

    # Kill the older writer, and start a new one.
    kills = 0
    while time.monotonic() < until - 1:
        time.sleep(dice.uniform(0.5, 1.5))
        writer = writers.pop(0)
        was_killed = writer.kill() == signal.SIGKILL
        output = writer.output()
        if not was_killed:
            problems.append(f"a writer ended: {output[-800:]}")
        kills += 1
        writers.append(fork(partial(write, stage, until, kills + WRITERS)))

    questions = 0
    for writer in writers:
        writer.result(problems)
    for reader in readers:
        readings = reader.result(problems)
        if readings is not None:
            reader_questions, reader_problems = readings
            questions += reader_questions
            problems += reader_problems
    problems += fork(lambda: stage.problems("refresh")).result(problems) or []
    repeated = repeats(stage.embeddings)
    if repeated > (kills + 1) * BATCH_TEXTS:
        problems.append(f"{repeated} texts were embedded twice")
    return Crowd(kills, questions, problems)


def main() -> None:
    """Run the rounds and the crowd, and print tables."""
    options = command_line(__doc__, rounds=200, seconds=60.0)
    began = time.monotonic()
    with fast_folder() as place:
        all_outcomes = run(Path(place) / "kills", options.rounds)
        kills, questions, problems = crowd(Path(place) / "crowd", options.seconds)
    rows: list[list[object]] = []
    for action in (*dict.fromkeys(ACTIONS), "all"):
        outcomes = [outcome for outcome in all_outcomes if action in (outcome.action, "all")]
        killed = sum(outcome.was_killed for outcome in outcomes)
        faulty = sum(bool(outcome.problems) for outcome in outcomes)
        rows.append([action, len(outcomes), killed, faulty])
    header = ["killed during", "rounds", "killed in time", "rounds with a problem"]
    minutes = (time.monotonic() - began) / 60
    print(f"{machine()}; {minutes:.1f} min\n\n{markdown_table(header, rows)}\n")
    counts = [f"{name}: {number}" for name, number in totals(all_outcomes).items()]
    print("; ".join(counts))
    print(f"\n{WRITERS} writers, {kills} kills, {READERS} readers, {questions:,} questions:")
    print(problems or "no problem")


if __name__ == "__main__":
    main()
