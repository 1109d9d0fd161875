"""Encoded bytes in a text are kept in the slice, but not embedded, searched or counted."""

import base64
import random
import uuid

import pytest
from llama_index.core import Document
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualNodePostprocessor,
    HeadingAwareMarkdownNodeParser,
)
from llama_index_contextual.retrievers.node_index import lexical_text
from llama_index_contextual.utils.text import encoded_runs, readable
from llama_index_contextual.utils.tokens import count_cl100k

RANDOM = random.Random(1)  # noqa: S311
BYTES = base64.b64encode(RANDOM.randbytes(30_000)).decode()
LINES = "\n".join(BYTES[start : start + 76] for start in range(0, 4000, 76))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"![chart](data:image/png;base64,{BYTES})", "![chart](…)"),
        (f"![a][p]\n\n[p]: data:image/png;base64,{BYTES}\n", "![a][p]\n\n[p]: …\n"),
        (f'<img alt="x" src="data:image/gif;base64,{BYTES}">', '<img alt="x" src="…">'),
        ("url(\"data:image/svg+xml,%3csvg xmlns='a' viewBox='0 0 16 16'%3e\") red", 'url("…") red'),
        (f'"image/png": "{BYTES}\\n"', '"image/png": "…"'),
        (f"Signed.\n\n{LINES}\n\nBye", "Signed.\n\n…\n\nBye"),
        (f"Signed.\n\n{LINES}\nBye".replace("\n", "\n> "), "Signed.\n> \n> …\n> Bye"),
        ('"image/png": "' + LINES.replace("\n", "\\n") + '\\n",', '"image/png": "…",'),
        (
            '"image/png": [\n  "' + LINES.replace("\n", '\\n",\n  "') + '"\n]',
            '"image/png": [\n  "…"\n]',
        ),
        ('x = "' + LINES.replace("\n", '" +\n  "') + '"', 'x = "…"'),
        ('{"image": "' + BYTES.replace("/", "\\/") + '"}', '{"image": "…"}'),
        ("x = {" + ", ".join(f"0x{byte:02x}" for byte in RANDOM.randbytes(200)) + "};", "x = {…};"),
        ('x = b"' + "".join(f"\\x{byte:02x}" for byte in RANDOM.randbytes(200)) + '"', 'x = b"…"'),
        (
            "![a](data:," + "".join(f"%{byte:02X}" for byte in RANDOM.randbytes(200)) + ")",
            "![a](…)",
        ),
        ("key " + RANDOM.randbytes(100).hex(), "key …"),
        (
            "Modulus:\n    " + RANDOM.randbytes(256).hex(":").replace(":0", ":\n    0") + "\n",
            "Modulus:\n    …\n",
        ),
        ("secret: " + base64.b32encode(RANDOM.randbytes(200)).decode(), "secret: …"),
    ],
)
def test_encoded_bytes_of_each_form_are_replaced(text, shown):
    assert readable(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "A paragraph of words, as long as you like. " * 20,
        "https://example.com/"
        + "How-To-Write-A-Very-Long-Address/In-Many-Words/2024/And_More_Of_Them/" * 3,
        "ACGT" * 100,
        "a" * 1000,
        "=" * 500,
        "3" * 500,
        "漢字" * 500,
        "getUserNameFromTheRequestOfTheVeryLongTestThatSaysEverythingItDoesInItsName" * 2,
        "data:text/plain,short",
        "SHA-512: " + RANDOM.randbytes(64).hex(),
        "SHA-512: " + RANDOM.randbytes(64).hex(":"),
        "\n".join(RANDOM.randbytes(6).hex(":") for _ in range(99)),
        "\n".join(RANDOM.randbytes(4).hex() for _ in range(99)),
        "10 11 12 13 " * 99,
        "0x10, 0x11, 0x12, 0x13, " * 9,
        ", ".join(RANDOM.randbytes(32).hex() for _ in range(9)),
        "/usr/lib/python3/site-packages/some-name/And_More_Of_Them/2024\n" * 9,
        "PROTEINSEQVENCES" * 20,
        "acgt" * 50 + "2",
        "/".join(f"item{number}" for number in range(30)),
        "".join(f"MAX_A{number}_B{number}_" for number in range(30)),
        "-".join(str(uuid.UUID(bytes=RANDOM.randbytes(16))) for _ in range(5)),
        "\n".join("test_" + "a1_b2_c3_" * 8 for _ in range(3)),
    ],
)
def test_text_is_text(text):
    assert readable(text) == text


TEXT = (
    f"# Report\n\nIntro about pumps.\n\n![chart](data:image/png;base64,{BYTES})\n\nThe "
    f"{{pump}} is red.\n"
)


def parsed(text, **settings):
    document = Document(text=text, id_="a", metadata={"path": "a.md"})
    nodes = HeadingAwareMarkdownNodeParser(**settings)([document])
    assert all(text[node.start_char_idx : node.end_char_idx] == node.text for node in nodes)
    return nodes


@pytest.mark.parametrize("contextual", [False, True])
def test_a_picture_is_in_the_slice_but_in_no_view(contextual):
    [node] = parsed(TEXT)
    if contextual:
        [node] = ContextualNodePostprocessor()([node])
    assert BYTES in node.text
    assert node.metadata["encoded_chars"] == len(f"data:image/png;base64,{BYTES}") - 1
    assert node.metadata["token_count"] == count_cl100k(readable(TEXT).strip())
    for restored in (node, metadata_dict_to_node(node_to_metadata_dict(node), text=node.text)):
        for mode in (MetadataMode.EMBED, MetadataMode.LLM):
            shown = restored.get_content(mode)
            assert "![chart](…)" in shown
            assert "The {pump} is red." in shown
            assert BYTES[:50] not in shown


def test_a_chunk_without_other_metadata_hides_it_too():
    [node] = HeadingAwareMarkdownNodeParser()(
        [Document(text=f"Pump. ![](data:image/png;base64,{BYTES})")]
    )
    assert node.get_content(MetadataMode.EMBED).endswith("Pump. ![](…)")


def test_its_letters_are_not_indexed_as_words():
    foreign = TextNode(text=TEXT, metadata={"path": "a.md"})  # from another parser
    for node in (*parsed(TEXT), foreign):
        assert BYTES[:50] not in lexical_text(node)
        assert ContextualBM25Retriever([node]).retrieve("pump")[0].score


@pytest.mark.parametrize(
    "block", [f"![](data:image/png;base64,{BYTES})", f"```\n{LINES}\n```", LINES]
)
def test_encoded_bytes_alone_are_not_a_chunk(block):
    assert parsed(block) == []
    nodes = parsed(f"# A\n\n{'Many words stand here. ' * 60}\n\n{block}\n", chunk_size=150)
    assert all(readable(node.text).strip("…!()[]`\n ") for node in nodes)


def test_no_chunk_begins_or_ends_inside_encoded_lines():
    text = f"```\n{LINES}\n" + "Words stand after it.\n" * 40 + "```\n"
    [(start, end)] = encoded_runs(text)
    nodes = parsed(text, chunk_size=30)
    assert len(nodes) > 3
    edges = [edge for node in nodes for edge in (node.start_char_idx, node.end_char_idx)]
    assert not [edge for edge in edges if start < edge < end]


def test_encoded_bytes_are_never_split_and_cost_one_character():
    words = "Words stand before it. " * 30
    text = f"{words}![x](data:image/png;base64,{BYTES}) {words}\n\n```\n{LINES}\n{words}\n```\n"
    nodes = parsed(text, chunk_size=100)
    assert len(nodes) < 15
    assert max(node.metadata["token_count"] for node in nodes) <= 200
    assert (
        sum(BYTES[:100] in node.text for node in nodes) <= 3
    )  # whole, in the paragraph and in the fence
    assert not [node for node in nodes if count_cl100k(readable(node.text)) > 200]
