"""The settings of contexts from a language model: checks, serialisation, and hidden keys."""

from __future__ import annotations

import pickle

import pytest
from fake_model import MODEL
from llama_index.core import Settings
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata, MockLLM
from llama_index.core.node_parser import TokenTextSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import Document
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.llms.openai_like import OpenAILike
from llm_runs import make_nodes, run

from llama_index_contextual.app.settings.models import NamedModel
from llama_index_contextual.context.generators.llm import LLMContextGenerator
from llama_index_contextual.context.postprocessor import ContextualNodePostprocessor
from llama_index_contextual.context.registry import resolve_generator
from llama_index_contextual.utils.errors import SettingError


def test_settings_llm_is_used_if_set_and_openai_is_never_guessed(monkeypatch):
    monkeypatch.setattr(Settings, "_llm", None)
    generator = LLMContextGenerator(cache=False)
    steps = [TokenTextSplitter(), ContextualNodePostprocessor(generator)]
    with pytest.raises(SettingError, match=r"^No language model is set\. .*Settings\.llm"):
        IngestionPipeline(transformations=steps).run(documents=[Document(text="Harbour log.")])
    monkeypatch.setattr(Settings, "_llm", MockLLM())
    assert LLMContextGenerator(cache=False).source.startswith("llm:MockLLM#")


WRONG = [
    ({"llm": "ollama:qwen3:0.6b"}, "`llm` must be .*got 'ollama:qwen3:0.6b'"),
    ({"llm": 3}, "`llm` must be .*got 3"),
    ({"batch_size": 0}, r"`batch_size` must be .*got 0"),
    ({"batch_size": "x"}, r"`batch_size` must be .*got 'x'"),
    ({"batch_size": 2.5}, r"`batch_size` must be .*got 2.5"),
    ({"num_workers": 1.5}, r"`num_workers` must be .*got 1.5"),
    ({"max_calls": "some"}, r"`max_calls` must be .*got 'some'"),
    ({"max_calls": -1}, r"`max_calls` must be .*got -1"),
    ({"cache": 3}, "`cache` must be .*got 3"),
    ({"cache": ""}, "`cache` must be .*got ''"),
    ({"prompt": PromptTemplate("{chunks}")}, "must contain {document}"),
    ({"prompt": PromptTemplate("{document} {chunks} {author}")}, r"unknown fields \['author'\]"),
    ({"prompt": PromptTemplate("{chunks} {document}")}, "and, after it, {chunks}"),
    ({"fallback": "guess"}, "`fallback` must be .*got 'guess'"),
    ({"fallback": 5}, "`fallback` must be .*got 5"),
    ({"fallback": ["headings"]}, r"`fallback` must be .*got \['headings'\]"),
    ({"colour": 1}, "does not take colour"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_setting_is_named(options, message):
    with pytest.raises(SettingError, match=message):
        resolve_generator("llm", **options)


class Told(CustomLLM):
    """A model that has a name only in its metadata, or none."""

    called: str = "unknown"
    style: str = "plain"
    calls: int = 0

    @property
    def metadata(self):
        return LLMMetadata(model_name=self.called)

    def complete(self, prompt, formatted=False, **_):
        self.calls += 1
        return CompletionResponse(text="1: Explains matters of this very treatise.")

    def stream_complete(self, prompt, formatted=False, **_):
        raise NotImplementedError


def fingerprint(**settings):
    return ContextualNodePostprocessor("llm", llm=Told(**settings), cache=False).fingerprint


def test_models_of_one_class_are_distinguished_by_their_metadata_or_settings():
    assert fingerprint(called="one") != fingerprint(called="two")
    assert fingerprint(called="one").startswith("llm:one+pattern@")
    assert fingerprint(style="terse") != fingerprint()
    assert fingerprint(style="terse") == fingerprint(style="terse")


@pytest.mark.parametrize("states", [("x", "y"), (["x"], ["x", "y"])])
def test_models_without_a_name_are_distinguished_by_their_attributes(states):
    def marked(state):
        llm = Told()
        object.__setattr__(llm, "_held", state)
        return ContextualNodePostprocessor("llm", llm=llm, cache=False).fingerprint

    assert len({*map(marked, states)} | {fingerprint()}) == 3
    assert marked(states[0]) == marked(states[0])


def test_a_model_without_a_name_that_contains_an_object_is_an_error():
    llm = Told()
    object.__setattr__(llm, "_held", object())
    with pytest.raises(SettingError, match=r"`llm` 'Told' has no name.*Give it a model_name"):
        LLMContextGenerator(llm, cache=False)


def test_a_model_that_counts_its_calls_stays_the_same():
    llm = Told()
    postprocessor = ContextualNodePostprocessor("llm", llm=llm, cache=False)
    before = postprocessor.fingerprint
    postprocessor(make_nodes(2))
    assert (
        postprocessor.fingerprint
        == before
        == ContextualNodePostprocessor("llm", llm=Told(), cache=False).fingerprint
    )
    assert pickle.loads(pickle.dumps(postprocessor)).fingerprint == before  # noqa: S301


def test_an_api_key_is_never_exposed(step, fake_model, tmp_path, caplog):
    caplog.set_level("DEBUG")
    key = "sk-very-secret"
    url = fake_model.llm.partition("@")[2]
    postprocessor = step(llm=OpenAILike(model=MODEL, api_base=url, api_key=key, is_chat_model=True))
    run(postprocessor, make_nodes(2))
    assert fake_model.requests[0].headers["Authorization"] == f"Bearer {key}"
    postprocessor.close()
    for place in (
        repr(postprocessor),
        str(postprocessor),
        repr(postprocessor.generator),
        postprocessor.to_json(),
        postprocessor.fingerprint,
        caplog.text,
    ):
        assert key not in place
    assert all(key.encode() not in file.read_bytes() for file in tmp_path.iterdir())
    given = OpenAILike(model="m", api_base="http://127.0.0.1:1/v1", api_key=key)
    assert key not in ContextualNodePostprocessor("llm", llm=given, cache=False).to_json()


def test_a_pickled_generator_works_and_the_original_is_unchanged(fake_model, tmp_path):
    llm = OpenAILike(
        model=MODEL,
        api_base=fake_model.llm.partition("@")[2],
        api_key="k",
        is_chat_model=True,
        max_retries=0,
    )
    postprocessor = ContextualNodePostprocessor("llm", llm=llm, cache=tmp_path / "c.sqlite")
    run(postprocessor, make_nodes(2))
    copy = pickle.loads(pickle.dumps(postprocessor))  # noqa: S301
    run(copy, make_nodes(2))
    run(postprocessor, make_nodes(3))
    assert copy.fingerprint == postprocessor.fingerprint
    assert len(fake_model.requests) == 2


def test_an_llm_object_is_not_serialised_and_can_be_passed_again():
    prompt = "{document} and {chunks}"
    step = ContextualNodePostprocessor(
        "llm", llm=MockLLM(), cache=False, prompt=prompt, batch_size=3, max_calls=5
    )
    with pytest.raises(
        SettingError, match="contain only the model's name, so pass the model again"
    ):
        ContextualNodePostprocessor.from_dict(step.to_dict())
    copy = ContextualNodePostprocessor.from_dict(step.to_dict(), llm=MockLLM())
    assert copy.to_dict() == step.to_dict()
    assert (copy.generator.batch_size, copy.generator.prompts) == (3, (prompt,))
    assert copy.generator.cache.store is None
    assert copy.fingerprint == step.fingerprint


def test_an_option_that_is_passed_again_overrides_the_saved_one():
    step = ContextualNodePostprocessor("llm", llm=MockLLM(), cache=False, batch_size=3)
    copy = ContextualNodePostprocessor.from_dict(step.to_dict(), llm=MockLLM(), batch_size=5)
    assert copy.generator.batch_size == 5


def test_a_store_object_is_not_serialised_and_can_be_passed_again():
    store = SimpleKVStore()
    step = ContextualNodePostprocessor("llm", llm=MockLLM(), cache=store)
    with pytest.raises(SettingError, match="`cache` must be the path"):
        ContextualNodePostprocessor.from_dict(step.to_dict(), llm=MockLLM())
    copy = ContextualNodePostprocessor.from_dict(step.to_dict(), llm=MockLLM(), cache=store)
    assert copy.generator.cache.store is store


@pytest.mark.parametrize(
    "spec", ["ollama:m@localhost:11434", "openai:m@myhost/v1", "openai:m@http://"]
)
def test_an_address_without_http_is_not_part_of_the_name(spec, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with pytest.raises(SettingError, match=r"`llm` must be .*'openai:MODEL@http://HOST/v1'"):
        NamedModel(spec, 800)


def test_a_password_in_a_url_is_never_serialised(fake_model, tmp_path):
    url = fake_model.llm.partition("@")[2].replace("://", "://ana:secret@")
    postprocessor = ContextualNodePostprocessor(
        "llm", llm=NamedModel(f"openai:{MODEL}@{url}", 800), cache=tmp_path / "c.sqlite"
    )
    run(postprocessor, make_nodes(1))
    assert fake_model.requests[0].headers["Authorization"].startswith("Basic ")
    postprocessor.close()
    for place in (
        postprocessor.to_json(),
        repr(postprocessor),
        postprocessor.fingerprint,
        *(str(file.read_bytes()) for file in tmp_path.iterdir()),
    ):
        assert "secret" not in place
    for scheme in ("http", "HTTPS"):
        with pytest.raises(SettingError) as refused:
            NamedModel(f"openia:m@{scheme}://ana:secret@host/v1", 800)
        assert "secret" not in str(refused.value)
