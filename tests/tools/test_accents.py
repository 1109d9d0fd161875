"""File names with combining accents, as macOS writes them, are found by composed letters.

The reverse works, too.
"""

from unicodedata import normalize

import pytest

from llama_index_contextual.app import ContextualIndex
from llama_index_contextual.retrievers.query import note_filters
from llama_index_contextual.tools.places import part_of


@pytest.fixture(params=[("NFD", "NFC"), ("NFC", "NFD")], ids=["from macOS", "to macOS"])
def forms(request):
    of_file, of_user = request.param
    return lambda text: normalize(of_file, text), lambda text: normalize(of_user, text)


def test_a_note_is_found_whatever_the_form_of_its_accents(tmp_path, forms):
    of_file, of_user = forms
    note = of_file("Café Übersicht.md")
    (tmp_path / note).write_text(
        of_file(
            "---\ntags: [küche]\naliases: [Kaffeeführer]\nort: Köln\n---\n# Größe\n\nDer "
            "Espresso.\n"
        ),
        "utf-8",
    )
    links = (
        "[[Café Übersicht]], [[Kaffeeführer]], [[Café Übersicht#Größe]], [x](Café%20Übersicht.md)"
    )
    (tmp_path / "links.md").write_text(of_user(f"---\nort: Köln\n---\n# L\n\n{links}\n"), "utf-8")
    with ContextualIndex.open(tmp_path, embed_model="none") as index:
        index.refresh()
        for name in (
            "Café Übersicht.md",
            "[[café übersicht]]",
            "[[Kaffeeführer]]",
            "Café Übersicht.md#L8",
        ):
            assert "Espresso" in part_of(index.notes, of_user(name)).text, name
        for narrowed in (note_filters(path=of_user("café")), note_filters(tag=of_user("küche"))):
            assert index.as_retriever(filters=narrowed).retrieve("Espresso"), narrowed
        for operator in ("path:Café", "tag:küche"):
            answer = index.as_retriever().explain(of_user(f"{operator} Espresso"))
            assert (len(answer.operators), len(answer.hits)) == (1, 1), operator
