"""Kill an index at random, again and again, and count what is lost: nothing should be.

One warm interpreter forks a child that works on a folder and kills it with SIGKILL at a random
moment; a second child then opens the index, asks it, refreshes once, and checks. The index lives on
from round to round, so that damage would add up. Embedding and LLM are stand-ins that write down
each piece of work that they finished, so that work done twice shows. What is killed: index,
refresh, delete, an LLM pass; the same with a page of thousands of chunks; *derive*: the cache, or a
part of it, is taken away, and a question and a refresh derive it again; *replace*: another
embedding model takes the place of the former one.

After each kill has to hold: the index opens and answers; after one refresh its chunks are those of
a fresh parse of the files and `status --check` finds nothing; not more texts were embedded twice
than a batch in hand.

Then two writers edit pages and refresh, and one of them is killed again and again, while ten
readers ask. No reader may meet an error, a hit that is no page's, or parts of two versions of a
page.

    python benchmarks/crash.py --rounds 200 --seconds 60
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
SECTIONS = {
    "large": 800,
    "large llm": 200,
}  # sections of the large page, each a chunk; actions other than derive remove it
SECONDS = {
    "large": 2.0,
    "large llm": 3.0,
}  # expected at first; 1 for other actions, later what was measured last
MODELS = ("hash", "other hash")
PAGES, PARTS = 20, 4  # that two writers edit
READERS, WRITERS = 10, 2
QUESTION = "Which shard holds the lease?"
WORDS = ("disk", "lock", "queue", "shard", "token", "cache", "node", "lease")


class HashEmbedding(BaseEmbedding):
    """Vectors from a hash of the text; each text that was embedded is a line in a file."""

    _log: Path = PrivateAttr()

    def __init__(self, log: Path, model_name: str = "hash") -> None:
        super().__init__(model_name=model_name, embed_batch_size=2048)
        self._log = log

    def _get_query_embedding(self, query: str) -> list[float]:
        seed = int.from_bytes(hashlib.sha256(query.encode()).digest()[:8], "big")
        vector: list[float] = np.random.default_rng(seed).normal(size=64).tolist()
        return vector

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        append(
            self._log,
            [hashlib.sha256(f"{self.model_name} {text}".encode()).hexdigest() for text in texts],
        )
        return [self._get_query_embedding(text) for text in texts]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class CountingLLM(CustomLLM):
    """Answers after a few milliseconds; each call that it finished is a line in a file."""

    log: str

    @property
    def metadata(self) -> LLMMetadata:
        """A window that every page fits into."""
        return LLMMetadata(model_name="counting", context_window=32_000)

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:  # noqa: ARG002
        """Return a sentence that differs from prompt to prompt, in words of the pages.

        Others count as invented.
        """
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
    """Add lines in one write, so that a kill leaves whole ones."""
    with path.open("ab", buffering=0) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def repeats(log: Path) -> int:
    """Count the lines of a log that occur more than once."""
    lines = Counter(log.read_text().splitlines()) if log.exists() else Counter()
    return sum(count - 1 for count in lines.values())


@dataclass(slots=True)
class Outcome:
    """What one round showed."""

    round: int
    action: str
    killed_at: float
    was_killed: bool
    problems: list[str] = field(default_factory=list)
    embedded_again: int = 0
    calls_repeated: int = 0


class Stage:
    """The files of one run: pages, their index, and logs of what was embedded and asked."""

    def __init__(self, root: Path) -> None:
        self.docs, self.storage, self.model = root / "docs", root / "storage", root / "model.txt"
        self.embeddings, self.calls, self.large = (
            root / "embedded.log",
            root / "calls.log",
            root / "docs" / "large.md",
        )
        self.docs.mkdir(parents=True, exist_ok=True)
        self.data = root / "data"
        os.environ["LLAMA_INDEX_CONTEXTUAL_STORAGE"] = str(self.data)

    def model_of(self, action: str) -> str:
        """Return the name of the embedding.

        A replacement takes the other name of two, and every other action the present one.
        """
        now = self.model.read_text() if self.model.exists() else MODELS[0]
        return now if action != "replace" else MODELS[1 - MODELS.index(now)]

    def open(self, action: str) -> ContextualIndex:
        """Return the index, in the settings that an action works with."""
        options: dict[str, Any] = {
            "context": "headings"
        }  # each time: a model object is not remembered
        if action.endswith("llm"):
            options = {
                "context": "llm",
                "llm": CountingLLM(log=str(self.calls)),
                "batch_size": 1,
                "num_workers": 2,
            }
        options["embed_model"] = HashEmbedding(self.embeddings, self.model_of(action))
        return ContextualIndex.open(
            self.docs, storage=self.storage, reindex=action == "replace", **options
        )

    def change(self, dice: random.Random) -> None:
        """Edit, add, rename and delete some pages."""
        for _ in range(dice.randint(3, 15)):
            files = sorted(self.docs.rglob("page-*.md"))
            kind, new = (
                dice.choice(("add", "edit", "rename", "remove")),
                self.docs / f"page-{dice.randrange(10**6)}.md",
            )
            if kind == "add" or len(files) < 25:
                new.write_text(page(dice, dice.randint(2, 6)))
            elif kind == "edit":
                file = dice.choice(files)
                file.write_text(
                    file.read_text().replace(
                        "## Part 1", f"Line.\n\n## Part 1 {dice.randrange(99)}", 1
                    )
                )
            elif kind == "rename":
                dice.choice(files).rename(new)
            elif len(files) > 30:
                dice.choice(files).unlink()

    def prepare(self, action: str, dice: random.Random) -> None:
        """Take away what an action is to make again."""
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
        """Return what is killed: one action on the folder."""
        with self.open(action) as index:
            if action == "delete":
                for path in dice.sample(
                    sorted(index.documents()), k=min(5, len(index.documents()))
                ):
                    index.delete(path)
            if action == "derive" and dice.random() < 0.5:
                index.as_retriever().retrieve(QUESTION)
            index.refresh(confirm=True)

    def problems(self, action: str) -> list[str]:
        """Return what is wrong afterwards.

        The index must open, answer or name what it lacks, and be whole after one refresh.
        """
        problems = []
        with self.open(action) as index:
            if index.exists and action != "replace":  # the kill may have come before it did
                try:
                    index.as_retriever().retrieve(QUESTION)
                except StorageError as error:  # a question repairs nothing, and names what does
                    if "Run: llama-index-contextual index" not in str(error):
                        problems.append(f"an error that names no remedy: {error}")
            index.refresh(confirm=True)
            status = index.status(check=True)
            problems += status.problems or []
            if any(self.storage.glob("*.damaged")) or status.pending.work:
                problems.append(f"damaged, or something is left to refresh: {status.pending}")
            expected = Counter(
                node.node_id
                for path in (
                    file.relative_to(self.docs).as_posix()
                    for file in sorted(self.docs.rglob("*.md"))
                )
                for node in index.settings.parser.get_nodes_from_documents(
                    [
                        Document(
                            id_=path, text=(self.docs / path).read_text(), metadata={"path": path}
                        )
                    ]
                )
            )
            chunks = Counter(node.node_id for node in index.nodes())
            if chunks != expected:
                problems.append(
                    f"{(expected - chunks).total()} chunks lost, "
                    f"{(chunks - expected).total()} too many"
                )
            if not index.as_retriever(5).retrieve(QUESTION):
                problems.append("no answer")
        if action == "replace":
            self.model.write_text(self.model_of("replace"))
        return problems


def page(dice: random.Random, sections: int) -> str:
    """Return a page of some sections, each long enough to be a chunk."""
    parts = [
        f"## Part {n} {dice.choice(WORDS)}\n\n{' '.join(dice.choices(WORDS, k=90))}.\n"
        for n in range(sections)
    ]
    return "\n".join([f"# Page {dice.randrange(10**6)}", "", *parts])


def fork(task: Callable[[], object]) -> tuple[int, int]:
    """Run a task in a child; its process id and the reading end of a pipe that gets its result."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        os.setpgid(0, 0)
        os.write(writing, json.dumps(task()).encode())
        code = 0
    except BaseException:  # noqa: BLE001  the parent wants to know of anything
        os.write(writing, traceback.format_exc().encode())
    finally:
        os._exit(code)


def output_of(descriptor: int) -> str:
    """Return what a child wrote before its end."""
    with os.fdopen(descriptor, "rb") as file:
        return file.read().decode()


def one_round(stage: Stage, number: int, typical: dict[str, float]) -> Outcome:
    """Change the folder, work on the index, kill that work, and check the index."""
    dice = random.Random(number)  # noqa: S311  reproducible, not secret
    action = dice.choice(ACTIONS) if stage.storage.exists() else "index"
    stage.change(dice)
    stage.prepare(action, dice)
    paid, expected = repeats(stage.embeddings), typical.get(action, 1.0)
    delay, started = dice.random() * expected * 1.1, time.monotonic()
    pid, reading = fork(lambda: stage.work(action, dice))
    while time.monotonic() - started < delay and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.002)
    outcome = Outcome(number, action, round(time.monotonic() - started, 3), was_killed=False)
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        outcome.was_killed = True
        os.waitpid(pid, 0)
    result = output_of(reading)
    if not outcome.was_killed and result != "null":
        outcome.problems.append(f"the work failed by itself: {result[-500:]}")
    typical[action] = max(expected, delay / 0.9) if outcome.was_killed else outcome.killed_at
    pid, reading = fork(lambda: stage.problems(action))
    result = output_of(reading)
    outcome.problems += [result[-1500:]] if os.waitpid(pid, 0)[1] else json.loads(result)
    outcome.embedded_again, outcome.calls_repeated = repeats(stage.embeddings), repeats(stage.calls)
    repeated = outcome.embedded_again - paid
    if repeated > BATCH_TEXTS:
        outcome.problems.append(f"{repeated} texts were embedded twice")
    return outcome


def load_tokenizer(log: Path) -> None:
    """Load here what each child would load anew, so that it is killed at its work."""
    parser = default_parser(HashEmbedding(log))
    parser.get_nodes_from_documents([Document(text="# Page\n\nSome words.\n")])


def run(root: Path, rounds: int) -> list[Outcome]:
    """Do a number of rounds."""
    logging.getLogger("llama_index_contextual").setLevel(logging.ERROR)
    load_tokenizer(root / "embedded.log")
    stage, typical, done = Stage(root), dict(SECONDS), list[Outcome]()
    for number in range(rounds):
        outcome = one_round(stage, number, typical)
        done.append(outcome)
        if outcome.problems:
            print(
                f"round {number} ({outcome.action}, {outcome.killed_at} s): {outcome.problems}",
                file=sys.stderr,
            )
    return done


def totals(done: Sequence[Outcome]) -> dict[str, int]:
    """Count what was repeated between two full indexings."""
    last = [
        outcome
        for outcome, after in zip(done, [*done[1:], None], strict=True)
        if after is None or after.action == "index"
    ]
    embedded, calls = (
        sum(outcome.embedded_again for outcome in last),
        sum(outcome.calls_repeated for outcome in last),
    )
    return {"texts embedded twice": embedded, "LLM calls repeated": calls}


# Writers and readers


def edit(stage: Stage, number: int, version: int) -> None:
    """Write a version of a page, of which each part is a chunk that names it."""
    parts = (
        f"## Part {part}\n\n{f'page{number} version{version} lease ' * 60}" for part in range(PARTS)
    )
    temporary = stage.docs / f".{number}-{os.getpid()}"
    temporary.write_text("\n\n".join([f"# Page {number}", *parts]))
    temporary.replace(stage.docs / f"{number}.md")


def write(stage: Stage, until: float, seed: int) -> None:
    """Edit pages and refresh."""
    dice = random.Random(seed)  # noqa: S311  reproducible, not secret
    with stage.open("refresh") as index:
        while time.monotonic() < until:
            for _ in range(3):
                edit(stage, dice.randrange(PAGES), dice.randrange(10**9))
            with contextlib.suppress(LockedError):  # the other one writes
                index.refresh(confirm=True)


def read(stage: Stage, until: float, seed: int) -> tuple[int, list[str]]:
    """Ask questions and check that documents are whole.

    Return the number of questions, and the problems.
    """
    dice, asked, problems = random.Random(seed), 0, list[str]()  # noqa: S311  reproducible, not secret
    with stage.open("refresh") as index:
        while time.monotonic() < until and not problems:
            page = f"{dice.randrange(PAGES)}.md"
            versions_by_chunk = [
                re.findall(r"version(\d+)", node.get_content()) for node in index.nodes(page)
            ]
            versions = {version for chunk in versions_by_chunk for version in chunk}
            if len(versions_by_chunk) != PARTS or len(versions) != 1:
                first_versions = [chunk[:1] for chunk in versions_by_chunk]
                problems.append(f"{page} is not whole: {first_versions}")
            hits = index.as_retriever(5).retrieve(f"lease of page{dice.randrange(PAGES)}")
            if len(hits) != 5 or not all("version" in hit.text for hit in hits):
                problems.append(f"hits: {[hit.text[:50] for hit in hits]}")
            asked += 1
    return asked, problems


def crowd(root: Path, seconds: float) -> tuple[int, int, list[str]]:
    """Run ten readers and two writers, one of which is killed every second.

    Return the numbers of kills and questions, and the problems.
    """
    stage, dice, kills, asked, problems = Stage(root), random.Random(0), 0, 0, list[str]()  # noqa: S311  not secret
    for number in range(PAGES):
        edit(stage, number, 0)
    os.waitpid(fork(lambda: stage.work("refresh", dice))[0], 0)
    until = time.monotonic() + seconds
    readers = [fork(lambda seed=seed: read(stage, until, seed)) for seed in range(READERS)]  # type: ignore[misc]
    writers = [fork(lambda seed=seed: write(stage, until, seed)) for seed in range(WRITERS)]  # type: ignore[misc]
    while time.monotonic() < until - 1:
        time.sleep(dice.uniform(0.5, 1.5))
        pid, reading = writers.pop(0)
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] != signal.SIGKILL:
            problems.append(f"a writer ended: {output_of(reading)[-800:]}")
        else:
            os.close(reading)
        kills += 1
        writers.append(fork(lambda seed=kills + WRITERS: write(stage, until, seed)))  # type: ignore[misc]
    for pid, reading in [*readers, *writers]:
        result = output_of(reading)
        if os.waitpid(pid, 0)[1]:
            problems.append(result[-800:])
        elif result != "null":
            number, reported = json.loads(result)
            asked, problems = asked + number, problems + reported
    pid, reading = fork(lambda: stage.problems("refresh"))
    problems += [output_of(reading)] if os.waitpid(pid, 0)[1] else json.loads(output_of(reading))
    repeated = repeats(stage.embeddings)
    if repeated > (kills + 1) * BATCH_TEXTS:
        problems.append(f"{repeated} texts were embedded twice")
    return kills, asked, problems


def main() -> None:
    """Run the rounds and the crowd, and print tables."""
    options, began = command_line(__doc__, rounds=200, seconds=60.0), time.monotonic()
    with fast_folder() as place:
        done = run(Path(place) / "kills", options.rounds)
        kills, asked, problems = crowd(Path(place) / "crowd", options.seconds)
    rows = []
    for action in (*dict.fromkeys(ACTIONS), "all"):
        outcomes = [outcome for outcome in done if action in (outcome.action, "all")]
        rows.append(
            [
                action,
                len(outcomes),
                sum(outcome.was_killed for outcome in outcomes),
                sum(bool(outcome.problems) for outcome in outcomes),
            ]
        )
    header = ["killed during", "rounds", "killed in time", "rounds with a problem"]
    print(
        f"{machine()}; {(time.monotonic() - began) / 60:.1f} min\n\n"
        f"{markdown_table(header, rows)}\n"
    )
    print("; ".join(f"{name}: {number}" for name, number in totals(done).items()))
    print(
        f"\n{WRITERS} writers, {kills} kills, {READERS} readers, {asked:,} questions: "
        f"{problems or 'no problem'}"
    )


if __name__ == "__main__":
    main()
