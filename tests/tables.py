"""Tables of fused candidates as lists."""

from types import SimpleNamespace


def ranked(table):
    """The candidates of a table, best first, with their reasons."""
    return [
        SimpleNamespace(
            node_id=one,
            score=score,
            raw=table.raw[table.row_of[one]],
            credits=table.credits_of(one),
        )
        for one, score in table.ranked().items()
    ]
