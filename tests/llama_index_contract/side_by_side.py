"""A case: one thing that a pipeline does, done with the stock class and with ours, and what both gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

THE_SAME: Final = object()


class Case(NamedTuple):
    """What is done with both classes.

    Attributes:
        name: What a user expects, as a sentence. It is the test's id.
        run: Called with the stock class, and with ours. It returns plain data: what a user would notice.
        gives: What ours gives. Without it: what the stock class gives, which must be something.
        stock: What the stock class gives, where that is something else. Then ``differs`` says why.
        differs: The id of a row in ``differences.py``.
    """

    name: str
    run: Callable[[Any], Any]
    gives: Any = THE_SAME
    stock: Any = THE_SAME
    differs: str = ""

    def __str__(self) -> str:
        return self.name


def compare(case: Case, stock: Any, ours: Any) -> None:
    """Run a case with both and compare what they give.

    Args:
        case: What is done.
        stock: The stock class, or whatever the case's ``run`` takes in its place (a function that makes a part of it).
        ours: The same of ours.
    """
    theirs, own = case.run(stock), case.run(ours)
    if case.differs:
        assert theirs == case.stock, "LlamaIndex no longer does what differences.py says of it"
        assert own == case.gives
        assert theirs != own, (
            "they no longer differ: take `differs` away, and the row if no other case has it"
        )
    else:
        assert theirs == own
        if case.gives is THE_SAME:
            assert own, "nothing was compared: say what it `gives`"
        else:
            assert own == case.gives


def refusal(call: Callable[[], Any]) -> str:
    """Return ``"ValueError"`` or the like where a call raises, and what it returned otherwise, as text."""
    try:
        return repr(call())
    except Exception as error:  # noqa: BLE001  which one is what is compared
        return type(error).__name__
