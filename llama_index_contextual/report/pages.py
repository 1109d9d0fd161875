"""HTML pages from templates, and that of the hits of a question."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from llama_index.core.schema import MetadataMode

from llama_index_contextual import metadata
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_index_contextual.keyword import Analyzer
    from llama_index_contextual.retrievers.explain import Explanation, Hit

_WORD: Final = re.compile(r"\w+|\W+")


def render(template: str, **values: object) -> str:
    """Return a page from one of this folder's templates; every value is escaped."""
    return _environment().get_template(template).render(**values)


def hits_page(explanation: Explanation, analyzer: Analyzer | None = None) -> str:
    """Return a page that shows the hits of a question: what each arm gave, matched words, what followed.

    Args:
        explanation: As :meth:`ContextualFusionRetriever.explain` gives it.
        analyzer: What splits texts into the words of the keyword arm. With None no word is highlighted.
    """
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in explanation.arms.items())
    fusion = explanation.mode if explanation.learned else f"{explanation.mode}; weights {weights}"
    most = {
        arm: max((c.credit for hit in explanation if (c := hit.credit(arm))), default=0.0) for arm in explanation.arms
    }
    return render(
        "hits.html",
        title=explanation.queries[0],
        summary=f"Fusion: {fusion}; {counted(explanation.pool_size, 'chunk')} proposed by the arms.",
        warnings=explanation.warnings,
        hits=[_hit(hit, most, analyzer) for hit in explanation],
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    loader = PackageLoader("llama_index_contextual", "report/templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _hit(hit: Hit, most: dict[str, float], analyzer: Analyzer | None) -> dict[str, Any]:
    node, arms = hit.node.node, []
    for name, best in most.items():
        credit = hit.credit(name)
        width = round(100 * credit.credit / best, 1) if credit and best else 0
        values = {"rank": credit.rank, "score": credit.score, "credit": credit.credit} if credit else {"rank": 0}
        arms.append({"name": name, "width": width, **values})
    steps = [f"{one.name}: {one.before:.3f} → {one.after:.3f}" for one in hit.steps if one.before != one.after]
    if hit.fused and hit.fused.boost != 1:
        steps.insert(0, f"agreement of queries: x{hit.fused.boost:.2f}")
    terms = {term.term for term in hit.terms}
    return {
        "rank": hit.rank,
        "headings": metadata.value_of(node.metadata, metadata.HEADER_PATH) or "",
        "source": hit.source,
        "score": hit.score,
        "arms": arms,
        "steps": steps,
        "terms": [{"word": term.term, "documents": term.document_frequency} for term in hit.terms],
        "context": list(_pieces(metadata.context_of(node.metadata), terms, analyzer)),
        "pieces": list(_pieces(node.get_content(MetadataMode.NONE), terms, analyzer)),
    }


def _pieces(text: str, terms: set[str], analyzer: Analyzer | None) -> Iterator[dict[str, Any]]:
    """Split a text into runs of matched and other words."""
    if analyzer is None or not terms:
        if text:
            yield {"matched": False, "text": text}
        return
    words: Sequence[str] = _WORD.findall(text)
    matched = {word: bool(terms.intersection(analyzer.tokens(word))) for word in set(words)}
    for is_match, run in groupby(words, key=matched.__getitem__):
        yield {"matched": is_match, "text": "".join(run)}
