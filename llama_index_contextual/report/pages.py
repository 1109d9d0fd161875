"""HTML pages from templates, and the hits of a question: as a page, and as a part of another."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from llama_index.core.schema import MetadataMode

from llama_index_contextual import metadata
from llama_index_contextual.report.markdown import Marker, rendered
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.keyword import Analyzer
    from llama_index_contextual.retrievers.explain import Explanation, Hit


def render(template: str, **values: object) -> str:
    """Return a page from one of this folder's templates; every value is escaped."""
    return _environment().get_template(template).render(**values)


def hits_page(explanation: Explanation, analyzer: Analyzer | None = None, folder: Path | None = None) -> str:
    """Return a page that shows the hits of a question: their texts with matched words, and why each is one.

    Args:
        explanation: As :meth:`ContextualFusionRetriever.explain` gives it.
        analyzer: What splits texts into the words of the keyword arm. With None no word is marked.
        folder: Of the documents, so that sources open. With None they do not.
    """
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in explanation.arms.items())
    fusion = explanation.mode if explanation.learned else f"{explanation.mode}; weights {weights}"
    proposed = f"{counted(explanation.pool_size, 'chunk')} proposed by the arms"
    return render(
        "hits.html",
        title=explanation.queries[0],
        summary=f"{counted(len(explanation), 'hit')}. Fusion: {fusion}; {proposed}.",
        warnings=explanation.said,
        hits=list(hit_views(explanation, analyzer, file_address(folder))),
    )


def file_address(folder: Path | None) -> Callable[[str], str]:
    """Return what gives the address of a file of a folder by its path; "" where there is no such file or folder."""

    def address(path: str) -> str:
        file = None if folder is None else folder.absolute() / path
        return file.as_uri() if file is not None and file.is_file() else ""

    return address


def hit_views(
    explanation: Explanation, analyzer: Analyzer | None, address: Callable[[str], str]
) -> Iterable[dict[str, Any]]:
    """Yield what the templates show of each hit.

    Args:
        explanation: The hits.
        analyzer: Tells which words are matched; None marks none.
        address: Gives the link to a document by its path; "" for none.
    """
    most = {
        arm: max((c.credit for hit in explanation if (c := hit.credit(arm))), default=0.0) for arm in explanation.arms
    }
    return (_hit(hit, most, Marker({term.term for term in hit.terms}, analyzer), address) for hit in explanation)


def node_html(node: BaseNode, marker: Marker, address: Callable[[str], str], text: str | None = None) -> str:
    """Return a chunk as HTML that nothing of it can leave; ``text`` replaces its own."""
    values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
    return rendered(node.get_content(MetadataMode.NONE) if text is None else text, values, marker, address)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    loader = PackageLoader("llama_index_contextual", "report/templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _hit(hit: Hit, most: dict[str, float], marker: Marker, address: Callable[[str], str]) -> dict[str, Any]:
    node, arms = hit.node.node, []
    for name, best in most.items():
        credit = hit.credit(name)
        share = round(100 * credit.credit / best, 1) if credit and best else 0
        values = {"rank": credit.rank, "score": credit.score, "credit": credit.credit} if credit else {"rank": 0}
        arms.append({"name": name, "share": share, **values})
    steps = [f"{one.name}: {one.before:.3f} → {one.after:.3f}" for one in hit.steps if one.before != one.after]
    if hit.fused and hit.fused.boost != 1:
        steps.insert(0, f"agreement of queries: x{hit.fused.boost:.2f}")
    html, context = node_html(node, marker, address), marker.html(metadata.context_of(node.metadata))
    path = metadata.path_of(node.metadata)
    return {
        "id": hit.node_id,
        "path": path,
        "first": metadata.value_of(node.metadata, metadata.START_LINE),
        "last": metadata.value_of(node.metadata, metadata.END_LINE),
        "rank": hit.rank,
        "title": marker.html(" / ".join(metadata.heading_titles(node.metadata)) or hit.source),
        "source": hit.source,
        "address": address(path) if path else "",
        "html": html,
        "context": context,
        "terms": [(marker.words.get(term.term, term.term), term.document_frequency) for term in hit.terms],
        "arms": arms,
        "steps": steps,
        "score": hit.score,
        "relevance": hit.relevance,
    }
