"""Every deliberate difference between a class of this package and the stock class that it may stand in for.

``scripts/compatibility_page.py`` writes the end of ``docs/reference/compatibility.md`` from this list.
A case in a ``test_*.py`` of this folder names the ``id`` of a row with ``differs=`` and shows both sides.
What no row names is the same in both.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """One row of the page.

    Attributes:
        id: What cases call it.
        stock: What the stock class does. It is the subject of the sentence.
        ours: What ours does instead.
        because: Why; one sentence.
    """

    id: str
    stock: str
    ours: str
    because: str


# By the pair of classes, as the page shows them: "stock class → ours".
DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "MarkdownNodeParser, SentenceSplitter → HeadingAwareMarkdownNodeParser": (
        Difference(
            "false-headings",
            "takes `#` in `~~~` fences and in comments for a heading, and misses underlined headings",
            "has the headings that CommonMark has, and `<h1>` to `<h6>` alone on a line",
            "a wrong heading becomes a wrong context",
        ),
        Difference(
            "front-matter",
            "makes a node of front matter",
            "reads it: title, date, tags and description are metadata, and the other words are for the keyword arm",
            "`layout: post` answers nothing",
        ),
        Difference(
            "header-path",
            "`/A/` above the heading `B`, and `/` without one",
            "`A > B`, with the chunk's own heading; none where there is none",
            "the innermost heading says most of a chunk",
        ),
        Difference(
            "bare-headings",
            "makes a node of a heading that has no text",
            "leaves it with the text that follows",
            "a heading alone answers nothing",
        ),
        Difference(
            "size",
            "has no limit for a section",
            "cuts at `chunk_size`",
            "an embedding reads no more",
        ),
        Difference(
            "lasting-ids",
            "random ids on each run",
            "ids that are hashes of the document's id and the text",
            "what is indexed twice is stored once",
        ),
        Difference(
            "id-func",
            "gives an `id_func` the number 0 for each section of a Markdown file",
            "gives it the number of the chunk in its document",
            "equal ids replace one another in a store",
        ),
        Difference(
            "shrinking-defaults",
            "refuses a `chunk_size` below its default overlap of 200",
            "takes a fifth of it for the overlap, and an eighth for the least size",
            "nobody had set these",
        ),
        Difference(
            "unknown-kinds",
            "raises `ValueError` for a class of documents that it does not know",
            "cuts its text, and lets a node without text pass",
            "pipelines may hold nodes of any kind",
        ),
        Difference(
            "links",
            "copies the metadata of a document into the link of each node",
            "links by id and hash; keys that are named as ours are in it",
            "a store keeps them once",
        ),
        Difference(
            "own-keys",
            "replaces a document's `header_path`",
            "keeps it; ours is then `contextual_header_path`",
            "what a document brought is the user's",
        ),
        Difference(
            "other-kinds",
            "drops an image without text, and makes text of an `IndexNode`",
            "keeps both as they are",
            "what is lost in silence is missed later",
        ),
        Difference(
            "from-dict",
            "`from_dict(to_dict())` fails on `id_func`",
            "gives the parser back; a function of your own is named in the error",
            "a pipeline that is written down has to come back",
        ),
        Difference(
            "metadata-size",
            "takes the length of the metadata off each chunk, and fails where it is longer than `chunk_size`",
            "counts the text alone; an index keeps room for the context",
            "one long value would cut every chunk of its document",
        ),
        Difference(
            "code-lines",
            "cuts in the middle of a line of code",
            "cuts between lines",
            "half a line is no code",
        ),
        Difference(
            "long-words",
            "cuts a word that is longer than `chunk_size`, between any two letters",
            "keeps one of up to twice `chunk_size`, and marks its chunk `overflow`",
            "half a path or an address finds nothing",
        ),
        Difference(
            "empty-node",
            "makes an empty node of an empty document",
            "makes none",
            "nothing to find is in it",
        ),
        Difference(
            "setting-errors",
            "lets an unknown setting pass",
            "names it, with those that there are",
            "a misspelt setting would do nothing",
        ),
    ),
    "VectorIndexRetriever → ContextualVectorRetriever": (
        Difference(
            "vector-top-k",
            "returns 2 nodes where nobody says how many",
            "returns 10",
            "a fusion and a reranker choose from what it finds",
        ),
        Difference(
            "vector-doc-ids",
            "ignores `doc_ids` on `SimpleVectorStore` and Chroma",
            "returns nodes of these documents only, on every store",
            "what is left out must not come back",
        ),
        Difference(
            "vector-async",
            "stops the event loop while a store without an async client of its own is asked",
            "asks it in a thread",
            "one question must not stop a server",
        ),
        Difference(
            "filters-in-text",
            "takes `IN` with a text for any part of it; on Qdrant for its comma-separated parts",
            "takes it for the whole text and its comma-separated parts, on every store",
            "`acme` is a part of `acme-corp`, and another tenant",
        ),
        Difference(
            "filters-nested",
            "refuses filters within filters on `SimpleVectorStore` and LanceDB",
            "evaluates them on every store",
            "both arms of a fusion must see the same nodes",
        ),
        Difference(
            "filters-types",
            'raises `TypeError` where metadata and filter are of different types, as in `"ten" > 3`',
            "takes such a comparison for false",
            "one odd note must not fail every question",
        ),
    ),
    "BM25Retriever → ContextualBM25Retriever": (
        Difference(
            "bm25-padding",
            "fills up to `similarity_top_k` with nodes of score 0",
            "returns only nodes that have a word of the question",
            "a node that does not match is not a hit",
        ),
        Difference(
            "bm25-empty",
            "raises `ValueError` for no nodes and for nodes without words",
            "is an empty index, to which nodes can be added",
            "a new folder is empty",
        ),
        Difference(
            "bm25-filters",
            "returns nodes that its filters leave out, with a score of 0",
            "returns what they admit",
            "what is left out must not come back",
        ),
        Difference(
            "bm25-chroma",
            "raises `ValueError` for an index on Chroma, which keeps its nodes itself",
            "reads the nodes from the store",
            "an index on a store is what people have",
        ),
        Difference(
            "bm25-identifiers",
            "takes `getUserName` for one word",
            "finds it by its parts, too",
            "people ask for the user's name",
        ),
        Difference(
            "bm25-images",
            "makes a text of an `ImageDocument`, and of a node of a class derived from `ImageNode`",
            "keeps the image",
            "a hit without its image is no hit",
        ),
        Difference(
            "bm25-settings",
            "takes `stemmer`, `language`, `token_pattern` and `skip_stemming`",
            "refuses them, with the reason",
            "each paragraph and each question has its own language",
        ),
    ),
    "QueryFusionRetriever → ContextualFusionRetriever": (
        Difference(
            "fusion-num-queries",
            "has a model write 3 variants of the question where nobody says otherwise",
            "asks no model",
            "no key and no network by default",
        ),
        Difference(
            "fusion-mode",
            "takes the highest score of any arm where nobody says otherwise",
            "fuses by rank, and by a learned model where our keyword arm meets another arm",
            "scores of different arms cannot be compared",
        ),
        Difference(
            "fusion-weights",
            "ignores `retriever_weights` in the mode `reciprocal_rerank`",
            "weighs ranks, too",
            "a weight that is given counts",
        ),
        Difference(
            "fusion-zeros",
            "gives credit to what a keyword arm scores 0",
            "gives none",
            "it holds no word of the question",
        ),
        Difference(
            "fusion-operators",
            'searches for `"a phrase"`, `path:` and `tag:` as words',
            "obeys these operators where an arm is a `ContextualBM25Retriever`, which alone takes them for words, too",
            "what is left out must be left out of every arm",
        ),
        Difference(
            "fusion-missing-scores",
            "raises `TypeError` where some hits of an arm have no score and scores are compared",
            "counts them after the others, in the arm's order",
            "any retriever may be an arm",
        ),
        Difference(
            "fusion-failing-arm",
            "fails with an arm",
            "answers from the others, with a warning",
            "half an answer is better than none",
        ),
    ),
    "FixedRecencyPostprocessor → RecencyPostprocessor": (
        Difference(
            "recency-relevance",
            "orders by date alone",
            "lets age take a share of the score",
            "the newest note is not the one that was asked for",
        ),
        Difference(
            "recency-top-k",
            "returns 1 node where nobody says how many",
            "returns all",
            "an engine cuts by itself",
        ),
        Difference(
            "recency-undated",
            "raises `KeyError` where a node has no date",
            "keeps its score",
            "most notes have no date",
        ),
        Difference(
            "recency-guesses",
            "reads `04/09/2026` as 9 April",
            "takes it for no date",
            "elsewhere it is 4 September",
        ),
    ),
    "a pipeline without it → ContextualNodePostprocessor": (
        Difference(
            "said-once",
            "embeds path, file name, title, header path and date of each node",
            "does not embed them again where the context says them",
            "words that all chunks of a document share make their vectors alike",
        ),
    ),
    "DocumentContextExtractor → ContextualNodePostprocessor": (
        Difference(
            "extractor-taken-key",
            "leaves a node alone that has a key of that name",
            "writes its context beside, as `contextual_context`",
            "a `context` that documents brought says nothing of where a chunk stands",
        ),
        Difference(
            "extractor-llm-view",
            "shows the context to the model that answers",
            "hides it there; `show_context_to_llm=True` shows it",
            "it is for finding, and the model sees path and headings anyway",
        ),
        Difference(
            "extractor-calls",
            "sends the document once for each chunk",
            "asks about eight chunks a call",
            "a document is read fewer times",
        ),
        Difference(
            "extractor-failure",
            "leaves a chunk without a context where a call fails, and a pipeline's cache makes that final",
            "writes a free context, warns, and asks again in the next run",
            "a failed call is no answer",
        ),
        Difference(
            "extractor-upsert",
            "raises where its model fails, and an upsert has deleted the document's vectors by then",
            "writes a free context and warns",
            "a model that is away must not lose a document",
        ),
        Difference(
            "extractor-docstore",
            "leaves chunks alone whose document is not in the docstore",
            "puts the document together from its chunks",
            "a pipeline writes its docstore after its steps",
        ),
        Difference(
            "extractor-no-llm",
            "raises `AssertionError` without `llm=`",
            "takes `Settings.llm`, and says what to give where that is not set",
            "that is where LlamaIndex keeps a default",
        ),
    ),
    "MetadataReplacementPostProcessor → ContextualNodePostprocessor": (
        Difference(
            "postprocessor-embed",
            "gives rerankers the hits as they are",
            "gives them copies whose EMBED view says where each chunk stands",
            "that is what it is for; the hits themselves stay as they are",
        ),
    ),
    "LLMRerank → RerankWithContext": (
        Difference(
            "rerank-contexts",
            "reads the LLM view, which hides contexts",
            "shows it the EMBED view, with contexts",
            "a context says what a chunk is about",
        ),
        Difference(
            "rerank-unnamed",
            "drops what the model does not name",
            "with `most=`, puts it after the others, in its order, with the score 0",
            "a small model forgets some",
        ),
        Difference(
            "rerank-no-question",
            "raises `ValueError` without a question",
            "raises `RetrievalError`",
            "errors of this package have one root",
        ),
    ),
}
