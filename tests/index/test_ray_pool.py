"""A pool of Ray's workers: how much it takes at once, and what becomes of the work of one that is lost."""

import contextlib
import os
import time
from pathlib import Path

import pytest

from llama_index_contextual.errors import EmbeddingError, SettingError
from llama_index_contextual.index import ray_actors, ray_pool

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")


@pytest.mark.long
def test_no_more_is_taken_than_the_workers_do_and_one_piece_each_waits(on_ray):
    class Slow(ray_actors.Worker):
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


class Echo(ray_actors.Worker):
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
        for worker in pool._ready.values():
            ray.kill(worker.actor)
            _until_dead(worker.actor)
        for number in range(3):
            with pytest.raises(SettingError, match=r"^2 workers did not start in 1 s: .*Cure: fewer"):
                pool.outcome(pool.given(number, "item"))
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
