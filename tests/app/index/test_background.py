"""A refresh in the background: when it starts, what is waited for, and what is told."""

import threading
from types import SimpleNamespace

import pytest

from llama_index_contextual.app.index import BackgroundRefresh, background
from llama_index_contextual.app.index.background import is_refreshing
from llama_index_contextual.app.index.status import Freshness, RefreshReport
from llama_index_contextual.utils.errors import LockedError, SettingError, StorageError


class Recorded:
    """An index that records what is called.

    Attributes:
        seen: The answers of :meth:`freshness`, first to last.
        budgets: The budgets of :meth:`freshness`.
        refreshes: The options of all refreshes.
        gate: Is set when a refresh may end.
        error: What a refresh raises.
    """

    def __init__(self, *seen):
        self.seen = list(seen)
        self.budgets = []
        self.refreshes = []
        self.gate = threading.Event()
        self.gate.set()
        self.error = None

    def freshness(self, budget):
        self.budgets.append(budget)
        return self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]

    def refresh(self, **options):
        self.refreshes.append(options)
        self.gate.wait(20)
        if self.error:
            raise self.error
        return RefreshReport()


@pytest.fixture
def clock(monkeypatch):
    """Return the clock, whose ``now`` can be set."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_an_index_that_is_up_to_date_is_not_refreshed():
    index = Recorded(Freshness())
    assert not BackgroundRefresh(index, patience=0.5).look()
    assert index.refreshes == []
    assert index.budgets == [0.25]  # half of the patience is left to wait


def test_an_answer_waits_eighty_milliseconds_unless_told_otherwise():
    index = Recorded(Freshness())
    BackgroundRefresh(index).look()
    assert index.budgets == [0.04]


@pytest.mark.parametrize("seen", [Freshness(1), Freshness(certain=False)])
def test_an_index_that_may_be_behind_is_refreshed_without_asking_a_model_again(seen):
    index = Recorded(seen)
    assert not BackgroundRefresh(index, patience=10).look()
    assert index.refreshes == [{"retry_contexts": False}]


def test_an_index_whose_folder_is_gone_is_not_refreshed():
    index = Recorded(Freshness(2, certain=False, error="the folder is gone"))
    assert BackgroundRefresh(index, patience=10).look().error == "the folder is gone"
    assert index.refreshes == []


def test_the_folder_is_compared_at_most_once_a_second(clock):
    index = Recorded(Freshness(1))
    keeper = BackgroundRefresh(index, patience=10)
    keeper.look()
    clock.now += 0.9
    keeper.look()
    assert len(index.budgets) == 1
    clock.now += 0.2
    keeper.look()
    assert len(index.budgets) == 2


def test_never_only_compares():
    index = Recorded(Freshness(2))
    with BackgroundRefresh(index, "never", patience=3) as keeper:
        assert keeper.look() == Freshness(2)
    assert index.budgets == [3]
    assert index.refreshes == []


def test_a_refresh_is_not_started_twice():
    index = Recorded(Freshness(1))
    index.gate.clear()
    keeper = BackgroundRefresh(index, patience=0)
    keeper.start()
    keeper.start()
    assert keeper.refreshing
    assert is_refreshing()
    assert keeper.look() == Freshness(refreshing=True)
    index.gate.set()
    keeper.close()
    assert not keeper.refreshing
    assert len(index.refreshes) == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LockedError("locked"), "another process is writing it"),
        (StorageError("the disk is full"), "the disk is full"),
        (KeyError("a"), "KeyError: 'a'"),
    ],
)
def test_a_failure_is_told_until_a_refresh_succeeds(clock, error, words):
    index = Recorded(Freshness(1))
    index.error = error
    keeper = BackgroundRefresh(index, patience=10)
    assert keeper.look().error == words
    assert keeper.look().error == words
    index.error = None
    clock.now += 2
    assert not keeper.look()


def test_a_close_waits_no_longer_than_it_is_told():
    index = Recorded(Freshness(1))
    index.gate.clear()
    keeper = BackgroundRefresh(index, patience=0)
    keeper.start()
    keeper.close(wait=0)
    assert keeper.refreshing
    index.gate.set()
    keeper.start()
    keeper.close()


def test_a_patience_is_not_negative():
    with pytest.raises(SettingError, match="`patience` must be"):
        BackgroundRefresh(Recorded(Freshness()), patience=-1)
