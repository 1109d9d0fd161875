"""Kill an index at random, again and again, and count what is lost: nothing should be.

One warm interpreter forks a child that works on a folder and kills it with SIGKILL at a random moment; a second child
then opens the index, asks it, refreshes once, and verifies. The index lives on from round to round, so that damage
would add up. The embedding is a hash, for speed; the LLM is a function. What is killed:

- index, refresh, delete, an LLM pass; the same with a page of thousands of chunks;
- derive: the cache, or a part of it, is taken away; a question and a refresh derive it again;
- replace: another embedding model builds a file beside the index, and takes its place at the end.

After each kill has to hold: the index opens and answers; after one refresh its chunks are those of a fresh parse of
the files and `verify` finds nothing; not more texts were embedded twice than a batch in hand.

    python benchmarks/crash.py --rounds 1000        # resumable: run it again and it goes on where it was
    python benchmarks/crash.py --only derive
    python benchmarks/crash.py --report             # print the table so far
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import platform
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from crash_stage import (
    QUESTION,
    Stage,
    change,
    change_large,
    repeats,
    take_cache,
    work,
)
from llama_index.core.schema import Document

from llama_index_contextual.app.index.writer import BATCH_TEXTS
from llama_index_contextual.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ACTIONS = (
    *("index", "refresh", "refresh", "refresh", "delete", "llm", "large", "large llm"),
    *("derive", "replace"),
)
SECTIONS = {"large": 2000, "large llm": 400}  # of the large page, each a chunk; other actions but derive take it away
SECONDS = {  # that they take at first; others 1, and all as was seen last
    "large": 4.0,
    "large llm": 6.0,
    "derive": 2.0,
}


@dataclass(slots=True)
class Outcome:
    """What one round showed."""

    round: int
    action: str
    killed_at: float
    was_killed: bool
    problems: list[str] = field(default_factory=list)
    set_aside: bool = False
    chunks: int = 0
    embedded_again: int = 0
    calls_repeated: int = 0


def check(stage: Stage, outcome: Outcome) -> None:
    """What has to hold afterwards: it opens, answers or says what it lacks, and one refresh makes it whole."""
    with stage.open(outcome.action) as index:
        if index.exists and outcome.action != "replace":  # the kill may have come before it did
            try:
                index.as_retriever().retrieve(QUESTION)
            except StorageError as error:  # questions repair nothing, and name what does
                if "Cure: llama-index-contextual index" not in str(error):
                    outcome.problems.append(f"an error without its cure: {error}")
        index.refresh()
        outcome.set_aside = any(stage.storage.glob("*.damaged"))
        if outcome.set_aside:
            outcome.problems.append("the database was damaged")
        verification = index.status(check=True)
        outcome.problems += verification.problems
        if verification.pending.any:
            outcome.problems.append(f"something is left to refresh: {verification.pending}")
        parser = index.settings.pipeline.parser
        expected = Counter(
            node.node_id
            for file in sorted(stage.docs.rglob("*.md"))
            for node in parser.get_nodes_from_documents([document(file, stage.docs)])
        )
        found = Counter(node.node_id for node in index.nodes())
        outcome.chunks = found.total()
        if found != expected:
            outcome.problems.append(f"{(expected - found).total()} chunks lost, {(found - expected).total()} too many")
        if not index.as_retriever(5).retrieve(QUESTION):
            outcome.problems.append("no answer")
    if outcome.action == "replace":
        stage.model.write_text(stage.model_of("replace"))


def document(file: Path, root: Path) -> Document:
    """A page as the index reads it."""
    path = file.relative_to(root).as_posix()
    return Document(id_=path, text=file.read_text(), metadata={"path": path})


def fork(task: Callable[[], object]) -> tuple[int, int]:
    """Run a task in a child; returns its process id and the reading end of a pipe that gets its result."""
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


def read_all(descriptor: int) -> str:
    """What a child said before its end."""
    with os.fdopen(descriptor, "rb") as file:
        return file.read().decode()


def prepare(stage: Stage, action: str, rng: random.Random) -> None:
    """Change the folder, and take away what an action is to make again."""
    change(stage.docs, rng)
    if action in SECTIONS:
        change_large(stage.large, rng, SECTIONS[action])
    elif action != "derive":  # which takes longer with it
        stage.large.unlink(missing_ok=True)
    if action == "index":
        shutil.rmtree(stage.storage, ignore_errors=True)
        for log in (stage.embeddings, stage.calls, stage.model):
            log.unlink(missing_ok=True)
    elif action == "derive":
        take_cache(stage.storage, rng)


def one_round(stage: Stage, number: int, typical: dict[str, float], actions: Sequence[str] = ACTIONS) -> Outcome:
    """Change the folder, work on the index and kill that, check."""
    rng = random.Random(number)  # noqa: S311  reproducible, not secret
    action = rng.choice(actions) if stage.storage.exists() else "index"
    stage.docs.mkdir(parents=True, exist_ok=True)
    prepare(stage, action, rng)
    paid = repeats(stage.embeddings)
    delay = rng.random() * typical.get(action, 1.0) * 1.1
    started = time.monotonic()
    pid, reading = fork(lambda: work(stage, action, rng))
    while time.monotonic() - started < delay and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.002)
    outcome = Outcome(number, action, round(time.monotonic() - started, 3), was_killed=False)
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        outcome.was_killed = True
        os.waitpid(pid, 0)
    said = read_all(reading)
    if not outcome.was_killed:
        typical[action] = outcome.killed_at
        if said != "null":
            outcome.problems.append(f"the work failed by itself: {said[-500:]}")
    else:
        typical[action] = max(typical.get(action, 0.3), delay / 0.9 if delay > typical.get(action, 0.3) else 0.0)
    pid, reading = fork(lambda: asdict(checked(stage, outcome)))
    said = read_all(reading)
    if os.waitpid(pid, 0)[1]:
        outcome.problems.append(said[-1500:])
        return outcome
    outcome = Outcome(**json.loads(said))
    outcome.embedded_again, outcome.calls_repeated = repeats(stage.embeddings), repeats(stage.calls)
    if (again := outcome.embedded_again - paid) > BATCH_TEXTS:
        outcome.problems.append(f"{again} texts were embedded twice")
    return outcome


def checked(stage: Stage, outcome: Outcome) -> Outcome:
    """The outcome, completed by a check."""
    check(stage, outcome)
    return outcome


def run(
    root: Path,
    rounds: int,
    results: Path | None = None,
    *,
    actions: Sequence[str] = ACTIONS,
    quiet: bool = False,
) -> list[Outcome]:
    """Do rounds that are not done yet; each is a line of the results file when it ends."""
    logging.getLogger("llama_index_contextual").setLevel(logging.ERROR)
    stage = Stage(root)
    stage.root.mkdir(parents=True, exist_ok=True)
    done = (
        [Outcome(**json.loads(line)) for line in results.read_text().splitlines()]
        if results and results.exists()
        else []
    )
    typical = dict(SECONDS)
    for outcome in done:
        typical[outcome.action] = max(typical.get(outcome.action, 0.3), outcome.killed_at)
    for number in range(len(done), rounds):
        outcome = one_round(stage, number, typical, actions)
        done.append(outcome)
        if results:
            with results.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
        if outcome.problems:
            print(
                f"round {number} ({outcome.action}, killed at {outcome.killed_at} s): {outcome.problems}",
                file=sys.stderr,
            )
        elif not quiet and number % 25 == 0:
            print(f"{number} rounds", file=sys.stderr)
    return done


def table(done: Sequence[Outcome]) -> str:
    """The figures, in Markdown."""
    lines = [
        "| killed during | rounds | killed in time | rounds with a problem |",
        "|---|---|---|---|",
    ]
    for action in (*dict.fromkeys(ACTIONS), "all"):
        rows = [one for one in done if action in (one.action, "all")]
        numbers = (
            len(rows),
            sum(o.was_killed for o in rows),
            sum(bool(o.problems) for o in rows),
        )
        lines.append(f"| {action} | " + " | ".join(map(str, numbers)) + " |")
    return "\n".join(lines)


def totals(done: Sequence[Outcome]) -> dict[str, int]:
    """Repeats, counted over the lives of the index between two full indexings."""
    last: dict[int, Outcome] = {}
    life = 0
    for outcome in done:
        life += outcome.action == "index"
        last[life] = outcome
    return {
        "texts embedded twice": sum(outcome.embedded_again for outcome in last.values()),
        "LLM calls repeated": sum(outcome.calls_repeated for outcome in last.values()),
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parents[1] / ".benchmarks-cache/crash")
    parser.add_argument("--only", nargs="+", choices=sorted(set(ACTIONS)), default=ACTIONS, help="what is killed")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    options = parser.parse_args()
    results = options.folder / "results.jsonl"
    rounds = 0 if options.report else options.rounds
    done = run(options.folder / "stage", rounds, results, actions=options.only)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, {datetime.now(tz=timezone.utc):%Y-%m-%d}\n")
    print(table(done))
    print("\n" + "; ".join(f"{name}: {number}" for name, number in totals(done).items()))


if __name__ == "__main__":
    main()
