"""The exact pattern contexts of code in several languages, and of pages with headings."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode

from llama_index_contextual.context.base import SourceDocument
from llama_index_contextual.context.generators.pattern import PatternContextGenerator
from llama_index_contextual.context.registry import resolve_generator
from llama_index_contextual.context.source_code import definitions_of, is_code

PYTHON = '''\
# Copyright 2026 Nobody. All rights reserved.

"""Search in notes. It is fast."""

import os


class Engine:
    """Finds notes."""

    def search(self, query):
        """Give the notes that answer a query.

        More words.
        """
        "def not_a_function(): class NotAClass"
        """
        def shown(): in an example
        class of things.
        """
        return lookup(query)

    async def close(self):
        pass
'''

GO = """\
// F.
func (e *Engine) Search(q string) error {
	found := sort(rest, func(a, b Hit) Order {
		return a
	})
	copyAll(rest)
	if len(rest) > 0 {
	}
}
func (s *Stack[T]) Push(T) {
}
type Engine struct {}
"""
RUST = """\
impl<T: Clone> Foo<T> {
    fn bar(&self) -> Y { baz() }
}
struct S;
"""
JAVA = """\
@Deprecated(x)
public class A {
  List<B> find(C c) throws D {
    run(() -> { go(); });
  }
}
"""
C = """\
struct node { int value; };
static const char *names[] = {"a"};
struct node *next(struct node *node)
{
  struct node *other = node;
  if (other)
    for (;;) { run(other); }
}
size_t size_of(struct node *node,
               int depth)
{
}
"""
CPP = """\
namespace n {
A::A(int x) : y_(x), z(1) {}
int A::f(std::vector<int> v) const {
  g(v, [](int i) { return i; });
  if (h(x)) { q(); }
}
}
"""
TYPESCRIPT = "export function add(x) { return f(x) }\nclass A {\n  run() {}\n}\ninterface B {}"

SYMBOLS = {
    "a.py": (PYTHON, ["class Engine", "function search", "function close"]),
    "a.go": (GO, ["function Engine.Search", "function Stack.Push", "type Engine"]),
    "a.rs": (RUST, ["impl Foo", "function bar", "struct S"]),
    "a.java": (JAVA, ["class A", "function find"]),
    "a.cpp": (CPP, ["namespace n", "function A::A", "function A::f"]),
    "a.h": (
        "class API_B Be : public B {\n  void run() override { go(); }\n};",
        ["class Be", "function run"],
    ),
    "a.c": (C, ["struct node", "function next", "function size_of"]),
    "a.ts": (TYPESCRIPT, ["function add", "class A", "function run", "interface B"]),
    "a.rb": ("class A\n  def x; end\nend", ["class A", "function x"]),
    "a.kt": ("fun foo(x: Int) = 1\nobject B", ["function foo", "object B"]),
    "a.php": ("<?php\nfunction foo() {}", ["function foo"]),
}


@pytest.mark.parametrize(("path", "case"), SYMBOLS.items(), ids=SYMBOLS)
def test_definitions_in_code(path, case):
    text, expected = case
    [context] = contexts(text, [text], path)
    assert context.text == f"From file: {path}. Defines: {', '.join(expected)}."


@pytest.mark.parametrize("path", ["notes.md", "notes.txt", "LICENSE", "data.json", "page.html", ""])
def test_other_files_are_not_code(path):
    assert not is_code(path)
    [context] = contexts("class A: pass", ["class A: pass"], path)
    assert "Defines" not in context.text


def contexts(text, chunks, path="search/engine.py", **settings):
    nodes = []
    for chunk in chunks:
        start = text.index(chunk)
        nodes.append(TextNode(text=chunk, start_char_idx=start, end_char_idx=start + len(chunk)))
    return PatternContextGenerator(**settings).generate(
        nodes, SourceDocument(id="1", path=path, text=text)
    )


def test_the_context_names_the_file_and_the_enclosing_and_own_definitions():
    head, method = contexts(
        PYTHON, ["class Engine:", "        return lookup(query)\n\n    async def close(self):"]
    )
    assert head.text == "From file: search/engine.py. Defines: class Engine."
    assert method.text == (
        "From file: search/engine.py. In: class Engine, function search. Defines: function close."
    )


def test_a_definition_is_in_the_chunk_that_it_starts_in():
    text = "def a(): pass\ndef b(): pass\n"
    described = contexts(text, ["def a(): pass\n", "def b(): pass\n"])
    assert [context.text for context in described] == [
        "From file: search/engine.py. Defines: function a.",
        "From file: search/engine.py. Defines: function b.",
    ]


def test_a_definition_beside_another_does_not_enclose_it():
    [method] = contexts(PYTHON, ["    async def close(self):"])
    assert method.text == "From file: search/engine.py. In: class Engine. Defines: function close."


def test_a_tab_is_as_wide_as_four_spaces():
    [outer, inner] = definitions_of("class A:\n\tdef f(): pass\n", "a.py")
    assert (outer.indent, inner.indent) == (0, 4)


@pytest.mark.parametrize(("width", "defined"), [(270, ["f"]), (310, [])])
def test_only_the_first_300_characters_of_a_line_are_searched(width, defined):
    line = f"{'x;' * (width // 2)} f = function() {{}}"
    assert [definition.name for definition in definitions_of(line, "a.js")] == defined


def test_the_keyword_retriever_gets_all_names_of_a_file_once():
    first, method = contexts(
        PYTHON,
        [
            PYTHON[:40],
            '    def search(self, query):\n        """Give the notes that answer a query.',
        ],
    )
    assert first.lexical == "Engine search close"
    assert method.lexical == ""


def test_long_lists_end_in_an_ellipsis():
    text = "\n".join(f"def f{number}(): pass" for number in range(900))
    [context] = contexts(text, [text])
    assert context.text.endswith("function f10, function f11, ….")
    assert len(context.lexical) == 2000


def test_a_chunk_of_an_unknown_text_is_read_by_itself():
    node = TextNode(text="def lonely(): pass")
    [context] = PatternContextGenerator().generate(
        [node], SourceDocument(id="1", path="a.py", text="x = 1")
    )
    assert context.text == "From file: a.py. Defines: function lonely."


def test_pages_get_headings_and_the_keyword_retriever_all_of_them():
    nodes = [
        TextNode(text="t", metadata={"header_path": path}) for path in ("Guide", "Guide > Install")
    ]
    document = SourceDocument(id="1", path="guide.md", text="Read this first. Then that.")
    _, second = resolve_generator("pattern").generate(nodes, document)
    assert second.text == "Document: guide.md > Guide > Install"


@given(
    st.text(max_size=400),
    st.sampled_from(["a.py", "a.rs", "a.cpp", "a.java", "a.js", "a.go"]),
    st.integers(0, 400),
)
def test_any_text_gives_a_context(text, path, position):
    for chunk in filter(None, (text[:position], text[position:])):
        contexts(text, [chunk], path)
    definitions = definitions_of(text, path)
    starts = [definition.start for definition in definitions]
    assert all(text[start : start + 1].strip() for start in starts)
    assert starts == sorted(set(starts))


def test_real_code(data):
    rows = [
        json.loads(line) for line in (data("codebases") / "documents.jsonl").open(encoding="utf-8")
    ]
    texts_with_definitions = [
        (row["text"], definitions_of(row["text"], row["path"])) for row in rows[:30]
    ]
    assert sum(bool(definitions) for _, definitions in texts_with_definitions) >= 27
    for text, definitions in texts_with_definitions:
        for definition in definitions:
            beginning = text[definition.start : definition.start + 600]
            assert definition.name.rpartition(".")[2] in beginning
