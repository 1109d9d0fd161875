"""Fifty kills at random moments: nothing is lost, nothing doubled, nothing paid twice.

More of the same rounds are run by ``benchmarks/crash.py``, whose results the repository keeps. They
run in an interpreter of their own, because threads do not survive a fork.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kill

ROOT = Path(__file__).resolve().parents[3]
RUN = """
import json, sys
from pathlib import Path
sys.path.insert(0, "benchmarks")
import crash
crash.SECTIONS = {"large": 300, "large llm": 50}  # smaller pages, for time
crash.EXPECTED_SECONDS |= {"large": 1.0, "large llm": 1.0}
done = crash.run(Path(sys.argv[1]), int(sys.argv[2]))
print(json.dumps([[o.round, o.action, o.was_killed, o.problems] for o in done]))
print(json.dumps(crash.totals(done)))
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="the test forks")
def test_fifty_kills_lose_and_repeat_nothing(tmp_path):
    ended = subprocess.run(  # noqa: S603  our own script
        [sys.executable, "-c", RUN, str(tmp_path), "50"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    rounds, totals = map(json.loads, ended.stdout.splitlines())
    assert [row for row in rounds if row[3]] == []
    assert sum(killed for _, _, killed, _ in rounds) >= 25, "most rounds end in a kill"
    # A kill may lose the calls in flight (two workers) and the batch being embedded (256 or more),
    # and no other.
    assert totals["LLM calls repeated"] <= 2 * sum(action == "llm" for _, action, _, _ in rounds)
    assert totals["texts embedded twice"] <= 2 * 256
