"""``HeadingAwareMarkdownNodeParser`` in place of ``SentenceSplitter``.

Many cases are LlamaIndex's own.
"""

from __future__ import annotations

import json
import pickle
from itertools import pairwise

import tiktoken
from llama_index.core import Document
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import ImageDocument, MediaResource, MetadataMode, Node
from side_by_side import comparison, refusal

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
    """Return whether there are several chunks, and whether all of them fit the size."""
    made = texts(parser, text)
    return len(made) > 1, max(map(tokens, made)) <= parser.chunk_size


def whole(parser, text):
    """Return whether the chunks in order make up the text."""
    return "".join("".join(texts(parser, text)).split()) == "".join(text.split())


def sentences(parser):
    """Return whether each chunk begins and ends where a sentence does."""
    return {
        (chunk.startswith("Sentence"), chunk.endswith(".")) for chunk in texts(parser, SENTENCES)
    }


def slices(parser, text):
    return {
        text[node.start_char_idx : node.end_char_idx] == node.text for node in nodes(parser, text)
    }


def in_batches(parser):
    at_once = parser.get_nodes_from_documents(
        [Document(text=SENTENCES, id_="a"), Document(text=FOO, id_="b")]
    )
    one_by_one = [*nodes(parser, SENTENCES, id_="a"), *nodes(parser, FOO, id_="b")]
    return [(n.ref_doc_id, n.text) for n in at_once] == [(n.ref_doc_id, n.text) for n in one_by_one]


def from_defaults(kind):
    return texts(kind.from_defaults(chunk_size=20, chunk_overlap=0), f"{FOO}. {BAR}")


compared = comparison(SentenceSplitter, HeadingAwareMarkdownNodeParser)


@compared()
def test_a_short_text_is_one_chunk(kind):
    return texts(parser_of(kind), "Hello! How are you? I am fine.")


@compared(gives=[FOO, BAR])
def test_paragraphs_are_kept_apart(kind):
    return texts(parser_of(kind, 20), f"{FOO}\n\n\n{BAR}")


@compared(gives=[f"{FOO}.", BAR])
def test_sentences_are_kept_apart(kind):
    return texts(parser_of(kind, 20), f"{FOO}. {BAR}")


@compared(gives=(True, True))
def test_chunks_fit_the_size(kind):
    return fits(parser_of(kind), SENTENCES)


@compared(gives=(True, True))
def test_chinese_fits_the_size(kind):
    return fits(parser_of(kind, 100), CHINESE)


@compared(stock=(True, True), ours=(False, False), differs="long-words")
def test_a_word_that_is_longer_than_a_chunk(kind):
    return fits(parser_of(kind, 100), "abcdefgh" * 200)


@compared(gives=True)
def test_nothing_is_lost(kind):
    return whole(parser_of(kind), SENTENCES)


@compared(gives=True)
def test_nothing_of_one_long_word_is_lost(kind):
    return whole(parser_of(kind), "abcdefgh" * 200)


@compared(gives={(True, True)})
def test_sentences_stay_whole(kind):
    return sentences(parser_of(kind))


@compared(gives={True})
def test_chunks_overlap_if_requested(kind):
    made = nodes(parser_of(kind, 60, 20), SENTENCES)
    return {after.start_char_idx < before.end_char_idx for before, after in pairwise(made)}


@compared(gives={True})
def test_texts_are_at_their_offsets(kind):
    return slices(parser_of(kind), SENTENCES)


@compared(gives={True})
def test_repeated_texts_are_at_their_offsets(kind):
    return slices(parser_of(kind), "Same. Other. " * 60)


@compared(gives=[])
def test_white_space_is_not_a_chunk(kind):
    return texts(parser_of(kind), " \n\n\t ")


@compared(gives=True)
def test_documents_in_one_call_are_split_as_if_one_by_one(kind):
    return in_batches(parser_of(kind))


@compared()
def test_it_splits_nodes_of_markdownnodeparser(kind):
    """Return the chunks of a pipeline that splits by headings first."""
    first = MarkdownNodeParser()([Document(text=f"# A\n\n{FOO}\n\n# B\n\n{BAR}", id_="d")])
    return [node.text for node in parser_of(kind)(first)]


@compared(gives=True)
def test_a_custom_tokenizer_is_used(kind):
    return len(texts(parser_of(kind, 20, tokenizer=str.split), SENTENCES)) > 10


@compared(gives=True)
def test_too_much_overlap_is_refused(kind):
    return "Error" in refusal(lambda: parser_of(kind, 10, 20))


@compared()
def test_from_defaults_creates_it(kind):
    return from_defaults(kind)


@compared()
def test_it_can_be_unpickled(kind):
    return texts(pickle.loads(pickle.dumps(parser_of(kind))), FOO)  # noqa: S301


@compared(gives=50)
def test_it_can_be_serialized_as_json(kind):
    return json.loads(parser_of(kind).to_json())["chunk_size"]


@compared(gives=[("ImageNode", "aGk=", "A photo.")])
def test_an_image_with_a_text_stays_an_image(kind):
    made = parser_of(kind)([ImageDocument(image="aGk=", text="A photo.")])
    return [(type(node).__name__, node.image, node.text) for node in made]


@compared(stock=["ValueError", "ValueError"], ours=["64", "199"], differs="shrinking-defaults")
def test_chunk_size_alone(kind):
    return [refusal(lambda size=size: kind(chunk_size=size).chunk_size) for size in (64, 199)]


@compared(stock=[""], ours=[], differs="empty-node")
def test_an_empty_document(kind):
    return texts(parser_of(kind), "")


@compared(stock="ValueError", ours="1", differs="metadata-size")
def test_a_long_value_of_metadata(kind):
    return refusal(
        lambda: len(nodes(parser_of(kind, 50), FOO, metadata={"summary": "word " * 100}))
    )


@compared(stock={True, False}, ours={True}, differs="code-lines")
def test_code(kind):
    return {
        chunk.splitlines()[-1] in CODE.splitlines() for chunk in texts(parser_of(kind, 100), CODE)
    }


@compared(gives=True)
def test_a_misspelt_setting_is_refused(kind):
    return "Error" in refusal(lambda: kind(chunk_sizee=10))


@compared(stock="ValueError", ours="['Some words.']", differs="unknown-kinds")
def test_another_class(kind):
    given = Node(text_resource=MediaResource(text="Some words."))
    return refusal(
        lambda: [node.get_content(MetadataMode.NONE) for node in parser_of(kind)([given])]
    )
