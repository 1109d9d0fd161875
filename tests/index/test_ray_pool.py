"""A pool of Ray's workers: how much it takes at once, and what becomes of the work of one that is lost."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llama_index_contextual.app.distributed import ray_pool, ray_workers
from llama_index_contextual.errors import EmbeddingError, SettingError

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")


@pytest.mark.long
def test_no_more_is_taken_than_the_workers_do_and_one_piece_each_waits(on_ray):
    class Slow(ray_pool.Worker):
        def _make(self):
            pass

        def do(self, item):
            return item

    taken = []
    pool = ray_pool.RayPool(lambda: ray.remote(Slow).remote(None), 2, SettingError)
    try:
        pool.check()
        done = pool.map((taken.append(number) or number for number in range(50)), in_order=True)
        for number in range(50):
            assert next(done) == (number, number)
            assert len(taken) <= number + 4
    finally:
        pool.close()


class Echo(ray_pool.Worker):
    """Gives back what it is given; it hangs, or ends its process, at the first sight of something, once."""

    def _make(self):
        self._seen = Path(self._recipe)

    def do(self, item):
        for what, happens in {"hang": lambda: time.sleep(600), "die": lambda: os._exit(1)}.items():
            if item == what and not (self._seen / what).exists():
                (self._seen / what).touch()
                happens()
        return item


class Forgetful(Echo):
    """Hangs each time."""

    def do(self, item):
        (self._seen / item).unlink(missing_ok=True)
        return super().do(item)


@pytest.mark.long
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("what", ["hang", "die"])
@pytest.mark.parametrize("room", ["room", "no room"])
def test_the_work_of_one_that_is_lost_is_done_by_the_other_though_none_can_take_its_place(
    tmp_path, on_ray, monkeypatch, room, what, in_order
):
    monkeypatch.setattr(ray_pool, "_HANGS", 3.0)
    monkeypatch.setattr(ray_pool, "_FETCH", 0.1)
    cpus = iter([1, 1] if room == "room" else [1, 1, 99])
    pool = ray_pool.RayPool(lambda: ray.remote(num_cpus=next(cpus, 1))(Echo).remote(str(tmp_path)), 2, SettingError)
    try:
        pool.check()
        items = [f"item {number}" for number in range(30)]
        items[5] = what
        assert sorted(pool.map(items, in_order=in_order)) == list(enumerate(items))
        assert (tmp_path / what).exists()
    finally:
        pool.close()


def _until_dead(actor):
    """Wait: a worker that is killed may still do what reaches it in the next moment."""
    with contextlib.suppress(ray.exceptions.RayActorError):
        for _ in range(600):
            ray.get(actor.do.remote("item"), timeout=60)
            time.sleep(0.1)
        pytest.fail("it is alive")


@pytest.mark.long
def test_where_nobody_is_left_everybody_is_told_why(tmp_path, on_ray, monkeypatch):
    cpus = iter([1, 1])
    pool = ray_pool.RayPool(lambda: ray.remote(num_cpus=next(cpus, 99))(Echo).remote(str(tmp_path)), 2, SettingError)
    try:
        pool.check()
        monkeypatch.setattr(ray_pool, "_START_SECONDS", 1.0)
        for worker in pool._ready:
            ray.kill(worker.actor)
            _until_dead(worker.actor)
        for number in range(3):
            with pytest.raises(SettingError, match=r"^2 workers did not start in 1 s: .*Cure: fewer"):
                pool.outcome(pool.submit(number, "item"))
    finally:
        pool.close()


@pytest.mark.long
def test_over_what_every_worker_hangs_is_given_up(tmp_path, on_ray, monkeypatch):
    monkeypatch.setattr(ray_pool, "_HANGS", 1.0)
    monkeypatch.setattr(ray_pool, "_FETCH", 0.1)
    pool = ray_pool.RayPool(lambda: ray.remote(Forgetful).remote(str(tmp_path)), 2, EmbeddingError)
    try:
        pool.check()
        outcomes = dict(pool.map(["a", "hang", "b"], in_order=True))
        assert (outcomes[0], outcomes[2]) == ("a", "b")
        assert "ended 3 workers one after the other (no answer in 1 s)" in str(outcomes[1])
    finally:
        pool.close()


LISTENING = """
import os
import ray
from pathlib import Path
from llama_index_contextual.app.distributed.ray_workers import _connected

@ray.remote
class Worker:
    def work(self):
        return 1

def family(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(child))]

def sockets(pid):
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = file.readlink().name
        except OSError:
            continue
        if name.startswith("socket:["):
            yield name[8:-1]

with _connected(None):
    worker = Worker.remote()
    assert ray.get(worker.work.remote()) == 1
    held = {socket for pid in family(os.getpid()) for socket in sockets(pid)}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if rest[5] in held and state in {"0A", "07"}:
                print("listens", table, local.partition(":")[0])
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@pytest.mark.server
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="no /proc/net/tcp on this system")
def test_a_ray_that_is_started_here_listens_on_the_loopback_address_alone():
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", LISTENING], capture_output=True, text=True, env=environment, check=True
    )
    found = [line.split() for line in done.stdout.splitlines() if line.startswith("listens")]
    assert len(found) >= 4  # the driver, the head's server, the raylet, a worker
    assert [one for one in found if one[2] not in LOOPBACK] == []


def test_a_ray_that_would_listen_everywhere_is_not_used(monkeypatch):
    class Elsewhere:
        __version__ = "9"

        def init(self, *_, **__):
            self.shut = False

        def shutdown(self):
            self.shut = True

        class util:  # noqa: N801
            get_node_ip_address = staticmethod(lambda: "192.0.2.2")

    fake = Elsewhere()
    monkeypatch.setattr(ray_workers, "load_ray", lambda: fake)
    with pytest.raises(SettingError, match="Ray 9 would listen on every address"):
        ray_workers._connect(None)
    assert fake.shut


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_ray_is_started_again_where_a_process_of_its_own_died(monkeypatch, failures):
    starts = []

    def init(*_, **__):
        starts.append(None)
        if len(starts) <= failures:
            raise Exception("The current node timed out during startup.")  # noqa: TRY002  as Ray raises it

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    if failures < 3:
        ray_workers._connect(None)
    else:
        with pytest.raises(SettingError, match=r"^workers='ray': Ray does not start .*timed out.*Cure: "):
            ray_workers._connect(None)
    assert len(starts) == min(failures + 1, 3)
