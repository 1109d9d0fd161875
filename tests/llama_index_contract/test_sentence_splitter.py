"""``HeadingAwareMarkdownNodeParser`` where ``SentenceSplitter`` stood. Many cases are LlamaIndex's own."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise

import pytest
import tiktoken
from llama_index.core import Document
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import ImageDocument, MediaResource, MetadataMode, Node
from side_by_side import Case, compare, refusal

from llama_index_contextual import HeadingAwareMarkdownNodeParser

FOO, BAR = " ".join(["foo"] * 15), " ".join(["bar"] * 15)
SENTENCES = " ".join(f"Sentence number {number} says something of its own." for number in range(40))
CODE = "".join(
    f"value_{number} = compute(number={number}, other='{number}')\n" for number in range(30)
)
CODE = f"```py\n{CODE}```"
CHINESE = "\u6240\u6709\u4eba\u90fd\u77e5\u9053\u8fd9\u4e2a\u3002" * 60


def parser_of(kind, size=50, overlap=0, **settings):
    return kind(chunk_size=size, chunk_overlap=overlap, **settings)


def nodes(parser, text, **given):
    return parser.get_nodes_from_documents([Document(text=text, **{"id_": "d", **given})])


def texts(parser, text, **given):
    return [node.text for node in nodes(parser, text, **given)]


def tokens(text):
    return len(tiktoken.get_encoding("cl100k_base").encode(text))


def fits(parser, text):
    """Whether there are several chunks, and none is larger than the size."""
    made = texts(parser, text)
    return len(made) > 1, max(map(tokens, made)) <= parser.chunk_size


def whole(parser, text):
    """Whether the chunks, one after the other, are the text."""
    return "".join("".join(texts(parser, text)).split()) == "".join(text.split())


def sentences(parser):
    """Whether each chunk begins and ends where a sentence does."""
    return {(one.startswith("Sentence"), one.endswith(".")) for one in texts(parser, SENTENCES)}


def slices(parser, text):
    return {
        text[node.start_char_idx : node.end_char_idx] == node.text for node in nodes(parser, text)
    }


def overlapping(kind):
    made = nodes(parser_of(kind, 60, 20), SENTENCES)
    return {after.start_char_idx < before.end_char_idx for before, after in pairwise(made)}


def in_batches(parser):
    at_once = parser.get_nodes_from_documents(
        [Document(text=SENTENCES, id_="a"), Document(text=FOO, id_="b")]
    )
    one_by_one = [*nodes(parser, SENTENCES, id_="a"), *nodes(parser, FOO, id_="b")]
    return [(n.ref_doc_id, n.text) for n in at_once] == [(n.ref_doc_id, n.text) for n in one_by_one]


def after_markdown(kind):
    """The chunks of a pipeline that cut by headings first."""
    first = MarkdownNodeParser()([Document(text=f"# A\n\n{FOO}\n\n# B\n\n{BAR}", id_="d")])
    return [node.text for node in parser_of(kind)(first)]


def many_with_a_tokenizer(kind):
    return len(texts(parser_of(kind, 20, tokenizer=str.split), SENTENCES)) > 10


def from_defaults(kind):
    return texts(kind.from_defaults(chunk_size=20, chunk_overlap=0), f"{FOO}. {BAR}")


def a_long_value(kind):
    return refusal(
        lambda: len(nodes(parser_of(kind, 50), FOO, metadata={"summary": "word " * 100}))
    )


def of_another_class(kind):
    given = Node(text_resource=MediaResource(text="Some words."))
    return refusal(
        lambda: [node.get_content(MetadataMode.NONE) for node in parser_of(kind)([given])]
    )


def image_and_text(kind):
    made = parser_of(kind)([ImageDocument(image="aGk=", text="A photo.")])
    return [(type(node).__name__, node.image, node.text) for node in made]


CASES = [
    Case(
        "a short text is one chunk",
        lambda kind: texts(parser_of(kind), "Hello! How are you? I am fine."),
    ),
    Case(
        "paragraphs are kept apart",
        lambda kind: texts(parser_of(kind, 20), f"{FOO}\n\n\n{BAR}"),
        gives=[FOO, BAR],
    ),
    Case(
        "sentences are kept apart",
        lambda kind: texts(parser_of(kind, 20), f"{FOO}. {BAR}"),
        gives=[f"{FOO}.", BAR],
    ),
    Case("chunks fit the size", lambda kind: fits(parser_of(kind), SENTENCES), gives=(True, True)),
    Case(
        "Chinese fits the size",
        lambda kind: fits(parser_of(kind, 100), CHINESE),
        gives=(True, True),
    ),
    Case(
        "a word that is longer than a chunk",
        lambda kind: fits(parser_of(kind, 100), "abcdefgh" * 200),
        stock=(True, True),
        gives=(False, False),
        differs="long-words",
    ),
    Case("nothing is lost", lambda kind: whole(parser_of(kind), SENTENCES), gives=True),
    Case(
        "nothing of one long word is lost",
        lambda kind: whole(parser_of(kind), "abcdefgh" * 200),
        gives=True,
    ),
    Case("sentences stay whole", lambda kind: sentences(parser_of(kind)), gives={(True, True)}),
    Case("chunks overlap where that is asked for", overlapping, gives={True}),
    Case("texts are where they say", lambda kind: slices(parser_of(kind), SENTENCES), gives={True}),
    Case(
        "repeated texts are where they say",
        lambda kind: slices(parser_of(kind), "Same. Other. " * 60),
        gives={True},
    ),
    Case("white space is no chunk", lambda kind: texts(parser_of(kind), " \n\n\t "), gives=[]),
    Case(
        "documents in one call are cut as one by one",
        lambda kind: in_batches(parser_of(kind)),
        gives=True,
    ),
    Case("it cuts what MarkdownNodeParser has cut", after_markdown),
    Case("a tokenizer of one's own counts", many_with_a_tokenizer, gives=True),
    Case(
        "too much overlap is refused",
        lambda kind: "Error" in refusal(lambda: parser_of(kind, 10, 20)),
        gives=True,
    ),
    Case("from_defaults makes it", from_defaults),
    Case(
        "it comes back from pickle",
        lambda kind: texts(pickle.loads(pickle.dumps(parser_of(kind))), FOO),  # noqa: S301
    ),
    Case("it is JSON", lambda kind: json.loads(parser_of(kind).to_json())["chunk_size"], gives=50),
    Case(
        "an image with a text stays an image",
        image_and_text,
        gives=[("ImageNode", "aGk=", "A photo.")],
    ),
    Case(
        "chunk_size alone",
        lambda kind: [
            refusal(lambda size=size: kind(chunk_size=size).chunk_size) for size in (64, 199)
        ],
        stock=["ValueError", "ValueError"],
        gives=["64", "199"],
        differs="shrinking-defaults",
    ),
    Case(
        "an empty document",
        lambda kind: texts(parser_of(kind), ""),
        stock=[""],
        gives=[],
        differs="empty-node",
    ),
    Case(
        "a long value of metadata",
        a_long_value,
        stock="ValueError",
        gives="1",
        differs="metadata-size",
    ),
    Case(
        "code",
        lambda kind: {
            one.splitlines()[-1] in CODE.splitlines() for one in texts(parser_of(kind, 100), CODE)
        },
        stock={True, False},
        gives={True},
        differs="code-lines",
    ),
    Case(
        "a misspelt setting is refused",
        lambda kind: "Error" in refusal(lambda: kind(chunk_sizee=10)),
        gives=True,
    ),
    Case(
        "another class",
        of_another_class,
        stock="ValueError",
        gives="['Some words.']",
        differs="unknown-kinds",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sentence_splitter(case):
    compare(case, SentenceSplitter, HeadingAwareMarkdownNodeParser)
