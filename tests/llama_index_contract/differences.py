"""Every deliberate difference between a class of this package and the LlamaIndex class that it can
replace.

``scripts/compatibility_page.py`` writes the end of ``docs/reference/compatibility.md`` from this
list. For each row, a test in this folder names its ``id`` with ``differs=`` and shows both
behaviours. Everything else is the same in both.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """One row of the page.

    Attributes:
        id: The name by which a test refers to the row.
        stock: What the class of LlamaIndex does: a sentence without its subject.
        ours: What the class of this package does.
        because: The reason, as one sentence.
    """

    id: str
    stock: str
    ours: str
    because: str


# The keys are "LlamaIndex's class → ours".
DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "MarkdownNodeParser, SentenceSplitter → HeadingAwareMarkdownNodeParser": (
        Difference(
            "false-headings",
            "reads `#` in `~~~` fences and in comments as a heading, and misses "
            "underlined headings",
            "finds the headings that CommonMark defines, and `<h1>` to `<h6>` alone on a line",
            "A wrong heading gives a wrong context.",
        ),
        Difference(
            "front-matter",
            "turns front matter into a node",
            "writes title, date, tags and description into metadata; the other words are "
            "indexed for keyword search",
            "`layout: post` answers no question.",
        ),
        Difference(
            "header-path",
            "writes `/A/` for the heading `B` below `A`, and `/` if there is no heading",
            "writes `A > B`, including the chunk's own heading; writes nothing if there "
            "is no heading",
            "The innermost heading says most about a chunk.",
        ),
        Difference(
            "bare-headings",
            "turns a heading without text into a node",
            "keeps the heading with the text that follows",
            "A heading alone answers no question.",
        ),
        Difference(
            "size",
            "has no size limit for a section",
            "cuts at `chunk_size`",
            "An embedding reads only so many tokens.",
        ),
        Difference(
            "lasting-ids",
            "gives random ids on each run",
            "gives ids that are hashes of the document's id and the text",
            "A second run stores nothing twice.",
        ),
        Difference(
            "id-func",
            "passes 0 to `id_func` for every section of a Markdown file",
            "passes the number of the chunk in its document",
            "Nodes with equal ids replace each other in a store.",
        ),
        Difference(
            "shrinking-defaults",
            "refuses a `chunk_size` below its default overlap of 200",
            "uses a fifth of `chunk_size` as the overlap, and an eighth as the smallest size",
            "You did not set these values.",
        ),
        Difference(
            "unknown-kinds",
            "raises `ValueError` for a document class that it does not know",
            "cuts its text; a node without text passes unchanged",
            "A pipeline may contain nodes of any class.",
        ),
        Difference(
            "links",
            "copies the metadata of the document into each node's link to it",
            "stores the id and hash, and of the metadata only keys that this package also writes",
            "A store keeps the metadata once.",
        ),
        Difference(
            "own-keys",
            "replaces `header_path` of a document",
            "keeps it, and writes `contextual_header_path`",
            "Your metadata stays as it is.",
        ),
        Difference(
            "other-kinds",
            "drops an image without text, and turns an `IndexNode` into text",
            "keeps both unchanged",
            "No data is lost silently.",
        ),
        Difference(
            "from-dict",
            "fails in `from_dict(to_dict())` because of `id_func`",
            "restores the parser; an error names a function that cannot be stored",
            "A saved pipeline can be loaded.",
        ),
        Difference(
            "metadata-size",
            "subtracts the metadata from the size of each chunk, and fails if it is "
            "longer than `chunk_size`",
            "counts the text only; a folder index reserves tokens for the context",
            "One long value would shorten every chunk of its document.",
        ),
        Difference(
            "code-lines",
            "cuts within a line of code",
            "cuts between lines",
            "Half a line is not code.",
        ),
        Difference(
            "long-words",
            "cuts a word that is longer than `chunk_size` between any two letters",
            "keeps a word of up to twice `chunk_size`, and marks its chunk with `overflow`",
            "Half a path or address cannot be found.",
        ),
        Difference(
            "empty-node",
            "returns an empty node for an empty document",
            "returns no node",
            "There is nothing to find.",
        ),
        Difference(
            "setting-errors",
            "accepts an unknown setting",
            "raises an error that lists the settings",
            "A misspelt setting would have no effect.",
        ),
    ),
    "VectorIndexRetriever → ContextualVectorRetriever": (
        Difference(
            "vector-top-k",
            "returns 2 nodes by default",
            "returns 10",
            "A fusion or a reranker needs candidates.",
        ),
        Difference(
            "vector-doc-ids",
            "ignores `doc_ids` on `SimpleVectorStore` and Chroma",
            "returns only nodes of these documents, on every store",
            "A filter must hold.",
        ),
        Difference(
            "vector-async",
            "blocks the event loop while it queries a store that has no asynchronous client",
            "queries it in a thread",
            "One question must not stop a server.",
        ),
        Difference(
            "filters-in-text",
            "reads `IN` with a text as any part of that text; on Qdrant, as its "
            "comma-separated parts",
            "reads it as the whole text and its comma-separated parts, on every store",
            "`acme` is a part of `acme-corp`, which is another tenant.",
        ),
        Difference(
            "filters-nested",
            "refuses nested filters on `SimpleVectorStore` and LanceDB",
            "evaluates them on every store",
            "All retrievers of a fusion must see the same nodes.",
        ),
        Difference(
            "filters-types",
            "raises `TypeError` if the metadata and the filter have different types, as "
            'in `"ten" > 3`',
            "treats such a comparison as false",
            "One odd note must not make every question fail.",
        ),
    ),
    "BM25Retriever → ContextualBM25Retriever": (
        Difference(
            "bm25-padding",
            "fills the result up to `similarity_top_k` with nodes that have a score of 0",
            "returns only nodes that contain a word of the question",
            "A node without a match is not a hit.",
        ),
        Difference(
            "bm25-empty",
            "raises `ValueError` without nodes, or if no node contains a word",
            "is an empty index to which you can add nodes",
            "A new folder is empty.",
        ),
        Difference(
            "bm25-filters",
            "returns nodes that do not match its filters, with a score of 0",
            "returns only nodes that match",
            "A filter must hold.",
        ),
        Difference(
            "bm25-chroma",
            "raises `ValueError` for an index on Chroma",
            "reads the nodes from the store",
            "Many indexes are on a store that keeps its own nodes.",
        ),
        Difference(
            "bm25-identifiers",
            "treats `getUserName` as one word",
            "also finds it by its parts",
            "People search for *user name*.",
        ),
        Difference(
            "bm25-images",
            "turns an `ImageDocument`, and a node of a subclass of `ImageNode`, into text",
            "keeps the image",
            "A hit without its image is not useful.",
        ),
        Difference(
            "bm25-settings",
            "accepts `stemmer`, `language`, `token_pattern` and `skip_stemming`",
            "refuses them, with the reason",
            "The language is found for each text and each question.",
        ),
    ),
    "QueryFusionRetriever → ContextualFusionRetriever": (
        Difference(
            "fusion-num-queries",
            "has a language model write 3 more queries by default",
            "calls no model",
            "There is no key and no network by default.",
        ),
        Difference(
            "fusion-mode",
            "takes the highest score of any retriever by default",
            "combines ranks, or learned features if a `ContextualBM25Retriever` and "
            "another retriever take part",
            "Scores of different retrievers cannot be compared.",
        ),
        Difference(
            "fusion-weights",
            "ignores `retriever_weights` in the mode `reciprocal_rerank`",
            "multiplies ranks by them",
            "A weight that you set must count.",
        ),
        Difference(
            "fusion-zeros",
            "gives credit for nodes to which a keyword retriever gives a score of 0",
            "gives no credit",
            "Such a node contains no word of the question.",
        ),
        Difference(
            "fusion-operators",
            'searches for `"a phrase"`, `path:` and `tag:` as words',
            "applies these operators if a `ContextualBM25Retriever` takes part; used "
            "alone, it searches for them",
            "An excluded node must be excluded from every retriever.",
        ),
        Difference(
            "fusion-missing-scores",
            "raises `TypeError` if some hits of a retriever have no score and it has to "
            "compare scores",
            "ranks them after the others, in the order of the retriever",
            "Any retriever may take part.",
        ),
        Difference(
            "fusion-failing-retriever",
            "fails if a retriever fails",
            "returns the results of the other retrievers, with a warning",
            "Half a result is better than none.",
        ),
    ),
    "FixedRecencyPostprocessor → RecencyPostprocessor": (
        Difference(
            "recency-relevance",
            "orders by date alone",
            "reduces each score a little by age",
            "The newest note is often not the relevant one.",
        ),
        Difference(
            "recency-top-k",
            "returns 1 node by default",
            "returns all nodes",
            "An engine makes its own selection.",
        ),
        Difference(
            "recency-undated",
            "raises `KeyError` if a node has no date",
            "keeps its score",
            "Many notes have no date.",
        ),
        Difference(
            "recency-guesses",
            "reads `04/09/2026` as 9 April",
            "reads no date from it",
            "In other countries it is 4 September.",
        ),
    ),
    "a pipeline without it → ContextualNodePostprocessor": (
        Difference(
            "said-once",
            "embeds path, file name, title, header path and date of each node",
            "does not embed them a second time if the context contains them",
            "Words that all chunks share make their vectors alike.",
        ),
    ),
    "DocumentContextExtractor → ContextualNodePostprocessor": (
        Difference(
            "extractor-taken-key",
            "skips a node that already has the key",
            "writes its context to `contextual_context`",
            "A key `context` of yours does not say where a chunk comes from.",
        ),
        Difference(
            "extractor-llm-view",
            "shows the context to the model that answers",
            "hides it; `show_context_to_llm=True` shows it",
            "The context is for retrieval, and the model sees path and headings anyway.",
        ),
        Difference(
            "extractor-calls",
            "sends the document once per chunk",
            "generates eight contexts per call",
            "The model reads the document fewer times.",
        ),
        Difference(
            "extractor-failure",
            "leaves a chunk without a context if a call fails, and a pipeline's cache keeps it so",
            "writes a context without a model, warns, and tries again in the next run",
            "A failed call is not a result.",
        ),
        Difference(
            "extractor-upsert",
            "raises an error if its model fails; an upsert has deleted the document's "
            "vectors by then",
            "writes a context without a model, and warns",
            "You must not lose a document because a model is unavailable.",
        ),
        Difference(
            "extractor-docstore",
            "skips chunks whose document is not in the docstore",
            "rebuilds the document from its chunks",
            "A pipeline fills its docstore after its transformations.",
        ),
        Difference(
            "extractor-no-llm",
            "raises `AssertionError` without `llm=`",
            "uses `Settings.llm`; if that is not set, the error says what to pass",
            "`Settings.llm` is LlamaIndex's place for a default.",
        ),
    ),
    "MetadataReplacementPostProcessor → ContextualNodePostprocessor": (
        Difference(
            "postprocessor-embed",
            "passes the hits unchanged to a reranker",
            "passes copies whose EMBED view contains the context",
            "The reranker sees contexts, and your hits stay unchanged.",
        ),
    ),
    "LLMRerank → RerankWithContext": (
        Difference(
            "rerank-contexts",
            "reads the LLM view, which hides contexts",
            "passes the EMBED view, which contains them",
            "A context says what a chunk is about.",
        ),
        Difference(
            "rerank-no-question",
            "raises `ValueError` without a question",
            "raises `RetrievalError`",
            "All errors of this package have one base class.",
        ),
    ),
}
