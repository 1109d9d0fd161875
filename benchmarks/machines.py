"""Index a folder with several machines on one: hosts in network namespaces of Linux, of which one is cut off.

    sudo env PATH=$PATH python benchmarks/machines.py [--pages 10]

Needs root, `ip` (iproute2), `unshare`, `redis-server`, and the extras `ray`, `redis` and `local`. Each host has an
address, a /tmp and processes of its own; a bridge joins them. The head has Ray's head without a CPU for those that
embed, Redis, a Chroma server, and a stand-in for an embedding service and a language model, which writes down who asked
for what. Two hosts have nothing but a Ray node. A fourth is no part of the cluster, and asks for the same by Ray's
client. The nodes have to be those of one process without Ray. "Twice" are requests for what had been answered before.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import machine, markdown_table, send_json
from scale import pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NET = "10.77.0"
HEAD = f"{NET}.1"
HOSTS = {"head": HEAD, "one": f"{NET}.2", "two": f"{NET}.3", "fourth": f"{NET}.4"}
WIRE = "ctx-wire"  # a namespace of its own for the bridge, so that this machine's network stays as it is
RAY, CLIENT, REDIS, CHROMA, SERVICE = 6379, 10001, 6380, 8000, 9000
EMBEDDING, MODEL = f"ollama:all-minilm@http://{HEAD}:{SERVICE}", f"openai:counting@http://{HEAD}:{SERVICE}/v1"
SLEEP = 0.3  # seconds that the service takes for a request
CUT_AFTER = 4  # requests for vectors; then a host goes away
TOKEN = secrets.token_hex(32)  # of the cluster, whose ports nobody else of this machine can reach anyhow
RAY_NODE = ["--object-store-memory=100000000", "--disable-usage-stats", "--block"]


class Service(BaseHTTPRequestHandler):
    """Ollama's embeddings and OpenAI's chat. Each request is a line of a file: host, kind, hashes of the texts."""

    protocol_version = "HTTP/1.1"
    log = Path("asked")
    lock = threading.Lock()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer whoever looks whether somebody is here."""
        send_json(self, {"data": [], "models": [], "version": "0"})

    def do_POST(self) -> None:
        """Answer after a while."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(SLEEP)
        if "messages" in body:
            prompt = "\n".join(str(message["content"]) for message in body["messages"])
            numbers = re.findall(r'<chunk number="(\d+)"', prompt) or [""]
            text = "\n".join(
                f"{number}: What this part of the page is about." if number else "Yes." for number in numbers
            )
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            self._note("chat", [prompt])
            send_json(
                self,
                {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": "counting",
                    "choices": [choice],
                    "usage": usage,
                },
            )
            return
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        self._note("embed", texts)
        vectors = [[byte / 255 - 0.4 for byte in hashlib.sha512(text.encode()).digest()] for text in texts]
        send_json(self, {"model": body["model"], "embeddings": vectors})

    def _note(self, kind: str, texts: list[str]) -> None:
        hashes = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
        with self.lock, self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps([self.client_address[0], kind, hashes]) + "\n")


class Host:
    """A machine of its own, as far as its network, its name and its /tmp go."""

    def __init__(self, name: str, work: Path) -> None:
        self.name, self.address, self.space = name, HOSTS[name], f"ctx-{name}"
        self.tmp = work / name
        self.tmp.mkdir()
        system("ip", "netns", "add", self.space)
        system("ip", "link", "add", "eth0", "netns", self.space, "type", "veth", "peer", self.space, "netns", WIRE)
        system("ip", "-n", WIRE, "link", "set", self.space, "master", "wire", "up")
        system("ip", "-n", self.space, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            system("ip", "-n", self.space, "link", "set", device, "up")

    def start(self, *command: str, log: str = "log", **variables: str) -> subprocess.Popen[bytes]:
        """Start a command there; its output goes into a file of the host's /tmp."""
        prepared = 'mount --bind "$1" /tmp && hostname "$2" && shift 2 && cd /tmp && HOME=/tmp exec "$@"'
        inside = ["unshare", "--uts", "sh", "-c", prepared, "sh", str(self.tmp), self.name, *command]
        with (self.tmp / log).open("ab") as output:
            return subprocess.Popen(  # noqa: S603
                ["ip", "netns", "exec", self.space, *inside],  # noqa: S607
                stdout=output, stderr=subprocess.STDOUT, env={**environment(), **variables},
            )  # fmt: skip

    def wire(self, state: str) -> None:
        """Plug the network cable in or out: ``"up"`` or ``"down"``."""
        system("ip", "-n", WIRE, "link", "set", self.space, state)

    def processes(self) -> list[int]:
        """Return the ids of the processes that run there."""
        found = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, text=True, check=False)  # noqa: S603, S607
        return [int(pid) for pid in found.stdout.split()]

    def kill(self) -> None:
        """Pull the plug: all processes end at once."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def environment() -> dict[str, str]:
    """What processes of a host inherit: nothing of a Ray or of keys of this machine."""
    kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "LANG") if key in os.environ}
    # A cable that is pulled shows after 4 s, and not after a minute as by Ray's defaults.
    fast = {
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
    }
    own = {"OPENAI_API_KEY": "none", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
    return {**kept, **fast, **own, "RAY_AUTH_TOKEN": TOKEN}


def system(*command: str) -> None:
    """Run a command, which has to succeed."""
    subprocess.run(command, check=True)  # noqa: S603


@contextlib.contextmanager
def network(work: Path) -> Iterator[dict[str, Host]]:
    """Make the hosts and what joins them; at the end everything that runs there is ended, and they are taken away."""
    spaces = [WIRE, *(f"ctx-{name}" for name in HOSTS)]
    try:
        system("ip", "netns", "add", WIRE)
        system("ip", "-n", WIRE, "link", "add", "wire", "type", "bridge")
        system("ip", "-n", WIRE, "link", "set", "wire", "up")
        hosts = {name: Host(name, work) for name in HOSTS}
        try:
            yield hosts
        finally:
            for host in hosts.values():
                host.kill()
            time.sleep(1)
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], stderr=subprocess.DEVNULL, check=False)  # noqa: S603, S607


def start_servers(head: Host) -> None:
    """Start everything that the head has."""
    ray = ["--head", "--num-cpus=0", f"--port={RAY}", f"--ray-client-server-port={CLIENT}", "--include-dashboard=false"]
    head.start("ray", "start", *ray, *RAY_NODE, f"--node-ip-address={HEAD}", log="ray.log")
    redis = ["--bind", HEAD, "--port", str(REDIS), "--save", "", "--protected-mode", "no", "--dir", "."]
    head.start("redis-server", *redis, log="redis.log")
    head.start("chroma", "run", "--host", HEAD, "--port", str(CHROMA), "--path", "chroma", log="chroma.log")
    head.start(sys.executable, __file__, "--serve", log="service.log")


def join(host: Host) -> None:
    """Start a Ray node with two CPUs, which belongs to the cluster."""
    where = [f"--address={HEAD}:{RAY}", f"--node-ip-address={host.address}", "--num-cpus=2"]
    host.start("ray", "start", *where, *RAY_NODE, log="ray.log")


def wait_for(head: Host, nodes: int) -> None:
    """Wait until the servers answer and the cluster has so many nodes.

    Raises:
        SystemExit: They do not; the hosts' files say why.
    """
    code = head.start(sys.executable, __file__, "--nodes", str(nodes), log="waiting.log").wait()
    if code:
        sys.exit(f"the servers or nodes did not start: see the files of {head.tmp.parent}, kept with --keep")


def look_for(nodes: int) -> None:
    """Do the waiting, as a process of the head."""
    import ray

    for port in (RAY, CLIENT, REDIS, CHROMA, SERVICE):
        while True:
            with contextlib.suppress(OSError), socket.create_connection((HEAD, port), 1):
                break
            time.sleep(0.2)
    ray.init(f"{HEAD}:{RAY}", log_to_driver=False)
    while sum(node["Alive"] for node in ray.nodes()) != nodes:
        time.sleep(0.5)


@dataclass
class Run:
    """One refresh, and what was asked of the service for it."""

    name: str
    seconds: float
    nodes: str
    chunks: int
    asked: list[tuple[str, str, list[str]]]

    def row(self) -> list[object]:
        """Its row of the table."""
        names, columns = {address: name for name, address in HOSTS.items()}, list[object]()
        for kind in ("chat", "embed"):
            by, texts = Counter[str](), Counter[str]()
            for address, what, hashes in self.asked:
                if what == kind:
                    by[names[address]] += len(hashes)
                    texts.update(hashes)
            columns += [", ".join(f"{name} {count}" for name, count in sorted(by.items())) or "nobody"]
            columns += [texts.total() - len(texts)]
        return [self.name, self.chunks, f"{self.seconds:.0f}", *columns, self.nodes]


def index(host: Host, name: str, log: Path, *options: str, then: Callable[[], object] | None = None) -> Run:
    """Index the folder of a host; do something else when so many requests for vectors have come."""
    started, before = time.monotonic(), len(asked(log))
    storage = f"runs/{name.replace(' ', '-')}"
    command = ["llama-index-contextual", "index", "pages", "--storage", storage, "--json", "--embed-model", EMBEDDING]
    command += ["--context", "llm", "--llm", MODEL, "--batch-size", "4", "--timeout", "60", *options]
    process = host.start(*command, log="index.log")
    while process.poll() is None:
        time.sleep(0.1)
        if then is not None and sum(kind == "embed" for _, kind, _ in asked(log)[before:]) >= CUT_AFTER:
            then()
            then = None
    if process.returncode:
        sys.exit(f"{name}: {(host.tmp / 'index.log').read_text('utf-8')[-2000:]}")
    took = time.monotonic() - started
    (host.tmp / "nodes").unlink(missing_ok=True)
    host.start("llama-index-contextual", "export", "pages", "--storage", storage, log="nodes").wait()
    lines = sorted((host.tmp / "nodes").read_text("utf-8").splitlines())
    return Run(name, took, hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8], len(lines), asked(log)[before:])


def asked(log: Path) -> list[tuple[str, str, list[str]]]:
    """Return what was asked of the service so far."""
    return [tuple(json.loads(line)) for line in log.read_text("utf-8").splitlines()] if log.exists() else []


def measure(hosts: dict[str, Host], count: int) -> list[Run]:
    """Index the pages in each way."""
    head, one, two, fourth = hosts.values()
    log = head.tmp / "asked"
    for host in (head, fourth):
        for path, text in pages(count):
            (host.tmp / "pages" / path).parent.mkdir(parents=True, exist_ok=True)
            (host.tmp / "pages" / path).write_text(text, "utf-8")
    start_servers(head)
    wait_for(head, 1)
    runs = [index(head, "one process, without Ray", log)]
    join(one)
    join(two)
    wait_for(head, 3)

    def shared(name: str, cache: int | None = None) -> list[str]:
        """Return a collection and an empty cache of its own, or that of an earlier run."""
        database = f"redis://{HEAD}:{REDIS}/{len(runs) if cache is None else cache}"
        return ["--store", f"chroma:http://{HEAD}:{CHROMA}#{name}", "--shared-cache", database]

    inside, outside = ["--workers", f"ray:{HEAD}:{RAY}"], ["--workers", f"ray:ray://{HEAD}:{CLIENT}"]
    runs.append(index(head, "from the head", log, *inside, *shared("head")))
    runs.append(index(fourth, "from the fourth host", log, *outside, *shared("fourth")))
    runs.append(index(fourth, "the same, with the head's cache", log, *outside, *shared("again", cache=1)))
    runs.append(index(head, "cable of one pulled", log, *inside, *shared("cable"), then=lambda: one.wire("down")))
    one.kill()
    one.wire("up")
    join(one)
    wait_for(head, 3)
    runs.append(index(fourth, "host two killed, from the fourth", log, *outside, *shared("killed"), then=two.kill))
    return runs


def main() -> None:
    """Serve, wait, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--keep", action="store_true", help="leave the hosts' files, to look into them")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--nodes", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        ThreadingHTTPServer((HEAD, SERVICE), Service).serve_forever()
    if given.nodes:
        look_for(given.nodes)
        return
    work = Path(tempfile.mkdtemp(prefix="machines-"))
    try:
        with network(work) as hosts:
            runs = measure(hosts, given.pages)
    finally:
        if not given.keep:
            shutil.rmtree(work, ignore_errors=True)
    header = [
        "",
        "chunks",
        "seconds",
        "calls of the language model from",
        "twice",
        "texts embedded for",
        "twice",
        "hash of the nodes",
    ]
    print(f"{machine()}; load {os.getloadavg()[1]:.1f}\n\n{markdown_table(header, [run.row() for run in runs])}")
    assert len({run.nodes for run in runs}) == 1, "they differ in what they store"


if __name__ == "__main__":
    main()
