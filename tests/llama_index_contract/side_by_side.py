"""Run a call with a stock class of LlamaIndex and with ours, and compare the results."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

THE_SAME: Final = object()


def comparison(stock_class: Any, our_class: Any) -> Callable[..., Any]:
    """Return a decorator that turns a function of a class into a test of both classes.

    The function gets the stock class, and ours, as its first argument, and returns plain data: what
    a user would notice. Its other arguments are fixtures and parameters. See :func:`compare` for
    the decorator's arguments.
    """

    def compared(**expected: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
        def decorate(run: Callable[..., Any]) -> Callable[..., None]:
            def test(**fixtures: Any) -> None:
                compare(lambda kind: run(kind, **fixtures), stock_class, our_class, **expected)

            signature = inspect.signature(run)
            test.__signature__ = signature.replace(  # type: ignore[attr-defined]
                parameters=list(signature.parameters.values())[1:], return_annotation=None
            )
            test.__name__ = run.__name__
            test.__doc__ = run.__doc__
            test.__module__ = run.__module__
            return test

        return decorate

    return compared


def compare(
    run: Callable[[Any], Any],
    stock_class: Any,
    our_class: Any,
    *,
    gives: Any = THE_SAME,
    stock: Any = THE_SAME,
    ours: Any = THE_SAME,
    differs: str = "",
) -> None:
    """Run a call with both classes and compare what they give.

    Args:
        run: What is done with a class.
        stock_class: The stock class, or whatever ``run`` takes in its place (a function that makes
            a part of it).
        our_class: Our class, or what ``run`` takes in its place.
        gives: What both give. Without it they give the same, which must be something.
        stock: What the stock class gives, where ours gives something else.
        ours: What ours gives then.
        differs: The id of the row in ``differences.py`` that says why.
    """
    from_stock = run(stock_class)
    from_ours = run(our_class)
    if differs:
        assert from_stock == stock, "LlamaIndex no longer does what differences.py says of it"
        assert from_ours == ours
        assert from_stock != from_ours, (
            "they no longer differ: take `differs` away, and the row if no other test has it"
        )
        return
    assert from_stock == from_ours
    if gives is THE_SAME:
        assert from_ours, "nothing was compared: say what it `gives`"
    else:
        assert from_ours == gives


def refusal(call: Callable[[], Any]) -> str:
    """Return the result of a call as text, or the name of the error that it raises."""
    try:
        return repr(call())
    except Exception as error:  # noqa: BLE001  the kind of error is compared
        return type(error).__name__
