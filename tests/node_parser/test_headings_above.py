"""A chunk has the headings that are open at its first character, and no others."""

import pytest
from llama_index.core import Document
from llama_index.core.schema import MetadataMode

from llama_index_contextual import ContextualNodePostprocessor, HeadingAwareMarkdownNodeParser
from llama_index_contextual.node_parser.node_metadata import headings_of
from llama_index_contextual.utils.metadata import CONTEXT

LONG = "These words fill a section until it is large enough to stand alone. " * 4


def paths(text, path="a.md", **settings):
    parser = HeadingAwareMarkdownNodeParser(**{"chunk_size": 200, "min_chunk_size": 1} | settings)
    nodes = parser([Document(text=text, metadata={"path": path})])
    assert all(text[node.start_char_idx : node.end_char_idx] == node.text for node in nodes)
    return [(node.metadata["header_path"], node.text.split("\n")[0][:20]) for node in nodes]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("One paragraph.\n\nAnother one.\n\n## Recipes\n\nLeek soup.\n", ""),
        ("# A\n\nText.\n\n## References\n\nLinks.\n", "A"),
        ("# T\n\n## A\n\nText.\n\n## B\n\nText.\n", "T"),
        (
            "# T\n\n## A\n\nText.\n",
            "T > A",
        ),  # only its parent heading stands above A
        ("# A\n\nText.\n\n## B\n", "A"),  # an empty heading has no text that could stand under it
        ("# A\n\n# B\n\nText.\n", "B"),
        ("## A\n\nText.\n\n## B\n\nText.\n", ""),
        ("", None),
    ],
)
def test_the_header_path_of_one_chunk(text, path):
    assert [header_path for header_path, _ in paths(text, min_section_size=100)] == (
        [] if path is None else [path]
    )


def test_the_context_names_no_heading_below_the_text():
    [node] = ContextualNodePostprocessor()(
        HeadingAwareMarkdownNodeParser(min_section_size=50)(
            [Document(text="One.\n\n## Recipes\n\nLeek.\n", metadata={"path": "a.md"})]
        )
    )
    assert node.metadata[CONTEXT] == "Document: a.md"


@pytest.mark.parametrize("document", [{}, {"path": "1234.md"}, {"path": "a.md"}])
def test_the_context_is_always_stored_and_is_shown_unless_it_is_empty(document):
    [node] = ContextualNodePostprocessor()(
        HeadingAwareMarkdownNodeParser()([Document(text="No heading.", metadata=document)])
    )
    assert node.metadata[CONTEXT] == ("Document: a.md" if document.get("path") == "a.md" else "")
    assert ("context:" in node.get_content(MetadataMode.EMBED)) == bool(node.metadata[CONTEXT])
    assert "context:" not in node.get_content(MetadataMode.LLM)


@pytest.mark.parametrize(
    ("text", "headings"),
    [
        (
            f"# Log\n\n## 2024-01-02\n\n{LONG}\n\n### Ideas\n\n{LONG}",
            ["Log > 2024-01-02", "Log > 2024-01-02 > Ideas"],
        ),
        (f"# A\n\n## A\n\n{LONG}", ["A > A"]),
        (f"## Log\n\n### May\n\n{LONG}\n\n### June\n\n{LONG}", ["Log > May", "Log > June"]),
    ],
)
def test_a_chunk_that_is_split_again_names_each_heading_once(text, headings):
    whole = HeadingAwareMarkdownNodeParser(chunk_size=2000)([Document(text=text)])
    chunks = HeadingAwareMarkdownNodeParser(chunk_size=20, min_chunk_size=1)(whole)
    assert list(dict.fromkeys(node.metadata["header_path"] for node in chunks)) == headings


def test_the_header_path_of_a_piece_that_begins_inside_a_section():
    text = f"# T\n\n## A\n\n{LONG * 4}\n\n## Small\n\nTail.\n"
    chunks = paths(text, chunk_overlap=0, min_section_size=60, min_chunk_size=60)
    assert chunks[0] == ("T > A", "# T")
    assert chunks[-1][0] == "T > A"
    assert chunks[-1][1].startswith("These words")


@pytest.mark.parametrize(
    ("opening", "closing", "path"),
    [
        ("{/*", "*/}", "guide.mdx"),
        ("{% comment %}", "{% endcomment %}", "guide.md"),
        ("{%- comment -%}", "{%- endcomment -%}", "guide.md"),
        ("%%", "%%", "guide.md"),
        ("{\n  /*", "  */\n}", "guide.mdx"),
        ("<!--", "-->", "guide.md"),
        ("Words, <!--\n", "-->", "guide.md"),
        ("{#", "#}", "guide.md"),
        ("{#- Old:", "-#}", "guide.md"),
        ("{{/*", "*/}}", "guide.md"),
        ("{{- /*", "*/ -}}", "guide.md"),
        ("{{< comment >}}", "{{< /comment >}}", "guide.md"),
        ("{{!--", "--}}", "guide.md"),
        ("<%#", "%>", "guide.md"),
        ("<%--", "--%>", "guide.md"),
        ("<#--", "-->", "guide.md"),
        ("{{--", "--}}", "guide.md"),
        ("{{! Old:", "}}", "guide.md"),
        ("<%doc>", "</%doc>", "guide.md"),
        ("Words. {{!-- Old:", "--}}", "guide.md"),
        ("- <%# Old:", "%>", "guide.md"),
        ("\\[", "\\]", "guide.md"),
        ("\\begin{comment}", "\\end{comment}", "guide.md"),
        ("Words. %% begin", "end %%", "guide.md"),
        ("{% highlight md %}", "{% endhighlight %}", "guide.md"),
        ("$$ a", "$$", "guide.md"),
    ],
)
def test_a_heading_in_a_comment_is_ignored(opening, closing, path):
    blank = "" if opening in {"$$ a", "\\["} else "\n"  # which ends a formula
    text = (
        f"# Guide\n\nIntro.\n\n{opening}\n## Old\n{blank}```\nx\n{closing}\n\nReal text.\n\n"
        "## New\n\nMore.\n"
    )
    assert [header_path for header_path, _ in paths(text, path)] == ["Guide", "Guide > New"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("\\[The speaker pauses.", "And then.\\]"),
        ("\\[ a = b", "\\]"),
        ("#**Bold**", "b *#1 item*"),
        ("{*a*", "*}"),
        ("@*all*", "see *@me"),
    ],
)
def test_a_heading_between_comment_marks_in_text_is_a_heading(before, after):
    text = f"# Guide\n\n{before}\n\n## Next\n\nWords. {after}\n\n{after}\n\n## Last\n\nMore.\n"
    assert [header_path for header_path, _ in paths(text, "guide.md")] == [
        "Guide",
        "Guide > Next",
        "Guide > Last",
    ]


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("::: {.callout-note}", ":::"),
        (":::note[Title]", ":::"),
        ("<TabItem value='a'>", "</TabItem>"),
        ("<details open>", "</details>"),
        ('{{< callout type="note" >}}', "{{< /callout >}}"),
        ("{{% tab %}}", "{{% /tab %}}"),
        ('{% hint style="info" %}', "{% endhint %}"),
    ],
)
def test_a_heading_in_a_callout_does_not_apply_to_the_text_after_it(opening, closing):
    text = f"# Guide\n\n{opening}\n\n## Mind\n\nInside.\n\n{closing}\n\nAfter.\n"
    assert [header_path for header_path, _ in paths(text)][-2:] == ["Guide > Mind", "Guide"]


@pytest.mark.parametrize(
    ("opening", "closing"), [("{% if a %}", "{% endif %}"), ("<div>", "</div>")]
)
def test_a_condition_or_a_division_is_not_a_callout(opening, closing):
    text = f"# Guide\n\n{opening}\n\n## Mind\n\nInside.\n\n{closing}\n\nAfter.\n"
    assert [header_path for header_path, _ in paths(text)][-1] == "Guide > Mind"


@pytest.mark.parametrize(
    "lead",
    [
        "<!-- about it -->",
        "<!--\nabout\n\n# it\n-->\n\n<!-- more -->\n",
        '<a id="part"></a>\n',
        "(part)=",
        "{/* about it */}\n",
        "{: .wide }",
        "%% about it %%\n",
        '<!-- about it -->\n\n<a name="part"></a>\n',
    ],
)
def test_comments_and_anchors_right_above_a_heading_belong_to_it(lead):
    chunks = paths(f"# Guide\n\nIntro.\n\n{lead}\n## Part\n\nWords.\n")
    assert chunks == [("Guide", "# Guide"), ("Guide > Part", lead.split("\n")[0][:20])]


def test_a_shortcode_above_a_heading_stays_in_the_section_before_it():
    chunks = paths("# Guide\n\nIntro.\n\n{{< figure src='a.png' >}}\n\n## Part\n\nWords.\n")
    assert chunks == [("Guide", "# Guide"), ("Guide > Part", "## Part")]


def test_a_formula_contains_no_heading():
    assert {
        header_path for header_path, _ in paths("# Guide\n\n$$\nE(x)\n=\nmc^2\n$$\n\nWords.\n")
    } == {"Guide"}
    assert {header_path for header_path, _ in paths("# Guide\n\n$$\na\n\n# b\n$$\n\nWords.\n")} == {
        "Guide"
    }


def test_a_code_comment_in_braces_is_not_an_mdx_comment():
    text = (
        "# Guide\n\n    f() {\n      /* one */\n    }\n\n## Real\n\nWords.\n\n    { /* two */ }\n"
    )
    assert [header_path for header_path, _ in paths(text)] == ["Guide", "Guide > Real"]


def test_link_definitions_are_split_between_lines():
    text = "# Guide\n\n" + "".join(
        f"[link {n} of many]: https://example.org/{n}\n" for n in range(40)
    )
    assert {start[:5] for _, start in paths(text, chunk_size=100, chunk_overlap=0)} == {
        "# Gui",
        "[link",
    }


@pytest.mark.parametrize(
    ("heading", "title"),
    [
        ("## Real {#real}  ", "Real"),
        ("## Real {#real} ##", "Real"),
        ("## C# {#c-sharp}", "C#"),
        ("## Real {: .wide}", "Real"),
        ("## Real {: #real .wide}", "Real"),
        ("## Real {-}", "Real"),
        ("## Real {/*real-one*/}", "Real"),
        ("## Real {number=5}", "Real"),
        ("## Real {.wide width=50%}", "Real"),
        ("## Real {#real .wide key=value}", "Real"),
        ('## Real {background-color="aquamarine"}', "Real"),
        ('## Real {data-link="Two words" .wide}', "Real"),
        ("Real {#real}\n---", "Real"),
        ("## Real {#real}{.wide}", "Real"),
        ("## Real {#real} {.wide}", "Real"),
        ("## Real {tabset .wide}", "Real"),
        ("## Real {.slide auto-animate}", "Real"),
        ('## Real {#real text="a } b"}', "Real"),
        ("## Real \\{#id}", "Real {#id}"),
        ("Real {#real data-x='a b'}\n-----", "Real"),
        ("Learn C #\n---", "Learn C #"),
        ("## Real<br>title", "Real title"),
        ("## GET /users/{id}", "GET /users/{id}"),
        ("## Set {1, 2, 3}", "Set {1, 2, 3}"),
        ("## Set {-1, 1}", "Set {-1, 1}"),
        ("## The ${HOME}", "The ${HOME}"),
        ("## \\newcommand{x}", "\\newcommand{x}"),
        ("## Keep {braces} here {id}", "Keep {braces} here {id}"),
        ("## {name} of a user", "{name} of a user"),
        ("## Use `{#id}`", "Use {#id}"),
        ("## {a=1} in the middle", "{a=1} in the middle"),
    ],
)
def test_attributes_are_not_part_of_a_title_but_other_braces_are(heading, title):
    document = Document(text=f"{heading}\n\nWords.\n", metadata={"path": "slides.qmd"})
    [node] = ContextualNodePostprocessor()(HeadingAwareMarkdownNodeParser()([document]))
    assert node.metadata["header_path"] == title
    assert node.metadata[CONTEXT] == f"Document: slides.qmd > {title}"


@pytest.mark.parametrize(
    ("opening", "closing"), [("{/*", "*/}"), ("{% comment %}", "{% endcomment %}"), ("%%", "%%")]
)
def test_a_code_span_does_not_start_a_comment(opening, closing):
    text = f"# Guide\n\n`{opening}` begins one.\n\n## Real\n\nWords.\n\n`{closing}` ends it.\n"
    assert [header_path for header_path, _ in paths(text)] == ["Guide", "Guide > Real"]


@pytest.mark.parametrize(
    "head",
    [
        '<h1 align="center">\n  <br>\n  Gu<b>i</b>de\n</h1>',
        '<div align="center"><h1>Guide</h1></div>',
        '<div align="center">\n\n<h1>Guide</h1>\n\n</div>',
        '<div align="center">\n  <h1>Guide</h1>\n</div>',
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_html_heading_can_span_lines_or_be_in_a_block(head, newline):
    text = f"{head}\n\nWords.\n\n## Install\n\nLike this.\n".replace("\n", newline)
    assert [header_path for header_path, _ in paths(text)][-1] == "Guide > Install"
    whole = f"{head}\n\nWords.\n".replace("\n", newline)
    assert [header_path for header_path, _ in paths(whole, min_chunk_size=50)] == ["Guide"]
    code = f"```html\n{head}\n```\n\nWords.\n\n## Install\n\nLike this.\n"
    assert [header_path for header_path, _ in paths(code)][-1] == "Install"


@pytest.mark.parametrize("before", ["1. one\n   ```", "- item\n   ~~~ x", "<div>\n  ```\n  text\n"])
def test_code_that_ends_with_its_item_or_block_hides_no_html_heading(before):
    assert [title for title, _, _ in headings_of(f"{before}\n<h2>Title</h2>\n\nWords.\n")] == [
        "Title"
    ]


@pytest.mark.parametrize(
    "text", ["<table>\n<tr><td>\n<h3>Cell</h3>\n</td></tr>\n</table>", "<!--\n<h1>Old</h1>\n-->"]
)
def test_text_that_is_not_an_html_heading(text):
    assert {header_path for header_path, _ in paths(f"# Guide\n\n{text}\n\nWords.\n")} == {"Guide"}


def test_code_starts_no_comment_and_an_unclosed_comment_is_ignored():
    text = "# Guide\n\n```jsx\n{/*\n```\n\n## Part\n\n{/* never closed\n\n## Rest\n\nWords.\n"
    assert [header_path for header_path, _ in paths(text)] == [
        "Guide",
        "Guide > Part",
        "Guide > Rest",
    ]


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("::: {.callout-note}", ":::"),
        (":::note", "\n:::"),
        ("::::tip Title", "::::"),
        ("<Note>\n", "\n</Note>"),
        ("<details open>\n", "\n</details>"),
        ("<blockquote>\n", "\n</blockquote>"),
        ('<Card\n  title="x"\n  href="/y"\n>\n', "\n</Card>"),
        ("<details><summary>More</summary>\n<p>\n", "</p>\n</details>"),
    ],
)
def test_text_after_a_callout_is_not_under_its_title(opening, closing):
    callout = f"{opening}\n## Mind the gap\n\nBody.\n{closing}\n\n"
    text = f"# Guide\n\n## Part\n\nText.\n\n{callout}It waits.\n\n### Sub\n\nEnd.\n"
    path_by_start = {start: path for path, start in paths(text)}
    assert path_by_start["## Mind the gap"] == "Guide > Mind the gap"
    assert path_by_start["It waits."] == "Guide > Part"
    assert path_by_start["### Sub"] == "Guide > Part > Sub"


def test_a_rule_after_a_callout_is_not_a_chunk():
    text = (
        f"# A\n\n{LONG * 2}\n\n<Note>\n\n## B\n\n{LONG * 2}\n\n</Note>\n\n---\n\n# C\n\n"
        f"{LONG * 2}\n"
    )
    assert [header_path for header_path, _ in paths(text)] == ["A", "A > B", "C"]


def test_a_container_in_code_or_without_an_end_is_ignored():
    text = "# A\n\n```\n:::note\n```\n\n## B\n\nText.\n\n:::note\n\n## C\n\nText.\n"
    assert [header_path for header_path, _ in paths(text)][-1] == "A > C"


def test_a_shortcode_is_replaced_by_its_quoted_text():
    text = '# {{< tip id="Real" >}}\n\nText.\n'
    [node] = HeadingAwareMarkdownNodeParser()([Document(text=text, metadata={"path": "a.md"})])
    assert node.metadata["header_path"] == "Real"


@pytest.mark.parametrize("text", ["Use %%time{}, or %%html.", "Print ${{# a}}{} and ${{x#}}."])
def test_comment_marks_within_sentences_hide_no_heading(text):
    text = "# A\n\n" + text.format("\n\n## B\n\nWords.\n\n") + "\n"
    assert ("A > B", "## B") in paths(text, chunk_size=20, chunk_overlap=0)


def test_an_element_without_an_end_does_not_keep_a_callout_open():
    text = "# Guide\n\n<Note>\n\n<Image>\n\n## Inside\n\nText.\n\n</Note>\n\nAfter.\n"
    assert paths(text)[-1] == ("Guide", "After.")


def test_the_end_of_another_element_does_not_end_a_callout():
    text = "# Guide\n\n<Note>\n\n## Inside\n\nText.\n\n</Tab>\n\nMore.\n\n</Note>\n"
    assert [path for path, _ in paths(text)] == ["Guide", "Guide > Inside"]


def test_a_byte_order_mark_between_two_files_hides_no_heading():
    text = "# One\n\nText.\n\n\ufeff# Two\n\nText.\n"
    assert [path for path, _ in paths(text)] == ["One", "Two"]
