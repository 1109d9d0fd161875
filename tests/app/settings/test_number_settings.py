"""Every numeric setting of every public class and function.

A value that cannot work is refused by name when it is given, not when it is used.
"""

from __future__ import annotations

import inspect
import math
import pickle
import re

import numpy as np
import pytest
from llama_index.core.schema import TextNode

from llama_index_contextual import (
    ContextualBM25Retriever,
    ContextualFusionRetriever,
    ContextualNodePostprocessor,
    ContextualVectorRetriever,
    GroupingPostprocessor,
    HeadingAwareMarkdownNodeParser,
    MemoryContext,
    RecencyPostprocessor,
)
from llama_index_contextual.app import ContextualIndex, LocalEmbedding
from llama_index_contextual.app.folder.walk import FileRules
from llama_index_contextual.context.generators.headings import HeadingContextGenerator
from llama_index_contextual.context.generators.llm import LLMContextGenerator
from llama_index_contextual.context.generators.pattern import PatternContextGenerator
from llama_index_contextual.memory.settings import MemorySettings
from llama_index_contextual.utils.errors import SettingError, whole

KEYWORD = ContextualBM25Retriever([TextNode(text="carrots", id_="a")])
_FRACTION = {
    "weight",
    "min_score",
    "recency_weight",
    "min_relevance",
    "b",
    "alpha",
}


def fused(**settings):
    return ContextualFusionRetriever([KEYWORD], **settings)


def over_a_store(**settings):
    from llama_index.core.vector_stores import SimpleVectorStore

    class TextStore(SimpleVectorStore):
        stores_text: bool = True

    return ContextualVectorRetriever(TextStore(), **settings)


MAKERS = {
    HeadingAwareMarkdownNodeParser: HeadingAwareMarkdownNodeParser,
    RecencyPostprocessor: RecencyPostprocessor,
    GroupingPostprocessor: GroupingPostprocessor,
    LocalEmbedding: LocalEmbedding,
    ContextualBM25Retriever: ContextualBM25Retriever,
    ContextualVectorRetriever: over_a_store,
    ContextualFusionRetriever: fused,
    LLMContextGenerator: LLMContextGenerator,
    PatternContextGenerator: PatternContextGenerator,
    HeadingContextGenerator: HeadingContextGenerator,
    MemorySettings: MemorySettings,
    FileRules: FileRules,
}


def numbers_of(cls):
    """Return the names of the settings whose type in the signature is a number.

    So no new setting is forgotten.
    """
    inherited = (
        {"num_workers"} if cls is LocalEmbedding else set()
    )  # LlamaIndex's, which takes anything
    if hasattr(cls, "model_fields"):
        types = {name: field.annotation for name, field in cls.model_fields.items()}
    else:
        types = {
            name: parameter.annotation
            for name, parameter in inspect.signature(cls).parameters.items()
        }
    plain = {
        name: re.sub(r"\w+\.Annotated\[(\w+),.*\]\]", r"\1]", _name(type_))
        for name, type_ in types.items()
    }
    numeric = (
        "int",
        "float",
        "int | None",
        "float | None",
        "Optional[int]",
        "typing.Optional[int]",
        "Reach",
    )
    return sorted(
        name for name, type_ in plain.items() if type_ in numeric and name not in inherited
    )


def _name(type_):
    return str(type_ if "Annotated" in str(type_) else getattr(type_, "__name__", type_))


SETTINGS = [(cls, name) for cls in MAKERS for name in numbers_of(cls)]
WRONG = [math.nan, math.inf, -math.inf, -1, -0.5, "many", [1], True]


def test_the_settings_are_found():
    assert len(SETTINGS) >= 25
    for expected in [
        (RecencyPostprocessor, "top_k"),
        (LLMContextGenerator, "max_calls"),
        (LocalEmbedding, "threads"),
    ]:
        assert expected in SETTINGS


@pytest.mark.parametrize("value", WRONG, ids=str)
@pytest.mark.parametrize(
    ("cls", "name"), SETTINGS, ids=lambda argument: getattr(argument, "__name__", argument)
)
def test_a_number_that_cannot_work_is_refused_by_name(cls, name, value):
    if value is True and hasattr(cls, "model_fields"):  # pydantic reads it as 1
        return
    with pytest.raises(SettingError, match=rf"`{name}` (must be|is not valid)") as refused:
        MAKERS[cls](**{name: value})
    assert pickle.loads(pickle.dumps(refused.value)).args == refused.value.args  # noqa: S301


@pytest.mark.parametrize(
    ("cls", "name"),
    [(cls, name) for cls, name in SETTINGS if name not in _FRACTION],
    ids=lambda argument: getattr(argument, "__name__", argument),
)
def test_a_whole_float_is_the_number_that_it_is(cls, name):
    given = {
        "chunk_size": 1e3,
        "max_tokens": 256.0,
        "candidate_pool": 100.0,
        "max_results": 4.0,
    }.get(name, 10.0)
    kept = getattr(
        MAKERS[cls](**{name: given}), name, int(given)
    )  # Args that are not kept under their name
    assert kept == given
    default = MAKERS[cls]().__dict__.get(name) if hasattr(MAKERS[cls](), "__dict__") else None
    if isinstance(default, int):
        assert isinstance(kept, int), "what counts is an int, whatever it was given as"


@pytest.mark.parametrize("value", [np.int64(3), np.float32(3), 3.0, 3])
def test_a_count_may_be_any_kind_of_whole_number(value):
    count = whole("k", value)
    assert (count, type(count)) == (3, int)
    assert len(fused(similarity_top_k=value).retrieve("carrots")) == 1


def test_a_million_calls_may_be_written_as_1e6():
    assert repr(LLMContextGenerator(cache=False, max_calls=1e6).max_calls) == "1000000"
    with pytest.raises(SettingError, match=r"`max_calls` must be a whole number .*got 1\.5"):
        LLMContextGenerator(cache=False, max_calls=1.5)


@pytest.mark.parametrize("weights", [[math.nan, 1], [math.inf, 1], [-1, 1], [0, 0], ["x", 1], [1]])
def test_weights_that_cannot_work(weights):
    with pytest.raises(SettingError, match="`retriever_weights` must "):
        ContextualFusionRetriever([KEYWORD, KEYWORD], retriever_weights=weights)


@pytest.mark.parametrize("value", [math.nan, -1, "many", 1.5])
def test_numbers_of_methods_are_checked_as_those_of_classes(tmp_path, value):
    with pytest.raises(SettingError, match="`max_results` must be "):
        MemoryContext(fused()).search("carrots", max_results=value)
    with (
        ContextualIndex.open(tmp_path) as index,
        pytest.raises(SettingError, match="`similarity_top_k` must be "),
    ):
        index.as_retriever(value)


@pytest.mark.parametrize(
    "make",
    [
        HeadingAwareMarkdownNodeParser,
        RecencyPostprocessor,
        LocalEmbedding,
        ContextualNodePostprocessor,
    ],
)
def test_a_setting_that_nobody_reads_is_refused_everywhere_alike(make):
    with pytest.raises(
        SettingError, match=r"does not take colour\. It takes (\w+.*|no options)\.$"
    ):
        make(colour=1)


def test_a_wrong_setting_of_a_pydantic_class_is_a_setting_error():
    with pytest.raises(SettingError, match=r"`embed_batch_size` must be greater than 0"):
        LocalEmbedding(embed_batch_size=0)
    with pytest.raises(SettingError, match=r"`show_context_to_llm` must be .*got 'perhaps'"):
        ContextualNodePostprocessor(show_context_to_llm="perhaps")
