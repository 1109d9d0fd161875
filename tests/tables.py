"""Tables of fused candidates as lists."""

from types import SimpleNamespace


def ranked(table):
    """Return the candidates of a table, best first, with their reasons."""
    raw = dict(zip(table.node_ids, table.raw.tolist(), strict=True))
    return [
        SimpleNamespace(
            node_id=node_id, score=score, raw=raw[node_id], credits=table.credits_of(node_id)
        )
        for node_id, score in table.best_first.items()
    ]
