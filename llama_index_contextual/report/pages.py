"""The chunks of a document and the hits of a question as HTML pages."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual import metadata
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from llama_index.core.schema import BaseNode

    from llama_index_contextual.keyword import Analyzer
    from llama_index_contextual.retrievers.explain import Explanation, Hit

_WORD: Final = re.compile(r"\w+|\W+")


def render(template: str, **values: object) -> str:
    """Return a page from one of this folder's templates; every value is escaped."""
    return _environment().get_template(template).render(**values)


def chunks_page(nodes: Iterable[BaseNode], *, title: str, budget: int | None = None, remark: str = "") -> str:
    """Return a page that shows chunks, their boundaries and overlaps, and four views of each.

    Args:
        nodes: The chunks of one document, in order.
        title: What the page is called, such as the document's path.
        budget: The most tokens of a chunk, as it was set. None leaves the bars out.
        remark: A sentence about all chunks.
    """
    return render("chunks.html", title=title, budget=budget, remark=remark, chunks=list(_chunks(nodes)))


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


def _chunks(nodes: Iterable[BaseNode]) -> Iterator[dict[str, Any]]:
    shown_to = 0
    for number, node in enumerate((node for node in nodes if isinstance(node, TextNode)), start=1):
        values = {key: metadata.value_of(node.metadata, key) for key in node.metadata}
        text = node.get_content(MetadataMode.NONE)
        overlap = max(0, shown_to - (node.start_char_idx or 0)) if node.start_char_idx is not None else 0
        shown_to = node.end_char_idx or 0
        tokens = int(values.get(metadata.TOKEN_COUNT, 0))
        source = metadata.value_of(values, metadata.CONTEXT_SOURCE)
        facts = [f"{tokens} tokens" if tokens else "", values.get(metadata.CONTENT_TYPE), values.get(metadata.DATE)]
        facts += [f"context: {source}" if source else ""]
        flags = ["over the budget" if values.get(metadata.OVERFLOW) else ""]
        flags += [f"continues {values[metadata.CONTINUES]}" if values.get(metadata.CONTINUES) else ""]
        yield {
            "number": number,
            "headings": values.get(metadata.HEADER_PATH, ""),
            "citation": metadata.citation_of(values)
            or metadata.citation("", values.get(metadata.START_LINE), values.get(metadata.END_LINE)),
            "tokens": tokens,
            "facts": [fact for fact in facts if fact],
            "flags": [flag for flag in flags if flag],
            "overlap": text[:overlap],
            "text": text[overlap:],
            "views": list(_views(node, text)),
        }


def _views(node: TextNode, text: str) -> Iterator[dict[str, str]]:
    """The four views; what is added to the text stands before it in all of them."""
    embedded = node.get_content(MetadataMode.EMBED).removesuffix(text)
    lexical = str(metadata.value_of(node.metadata, metadata.LEXICAL_CONTEXT) or "")
    front = str(node.metadata.get(metadata.FRONT_MATTER, ""))
    keywords = "\n".join(part for part in (embedded.strip(), lexical, front) if part)
    prompt = node.get_content(MetadataMode.LLM).removesuffix(text)
    for name, added in (("Displayed", ""), ("Embedded", embedded), ("Keywords", keywords), ("Language model", prompt)):
        yield {"name": name, "added": f"{added.strip()}\n\n" if added.strip() else "", "text": text}


def _hit(hit: Hit, most: dict[str, float], analyzer: Analyzer | None) -> dict[str, Any]:
    node, arms = hit.node.node, []
    for name, best in most.items():
        given = hit.credit(name)
        width = round(100 * given.credit / best, 1) if given and best else 0
        values = {"rank": given.rank, "score": given.score, "credit": given.credit} if given else {"rank": 0}
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
