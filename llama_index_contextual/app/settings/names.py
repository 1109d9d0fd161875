"""Names of embeddings and language models, such as ``"ollama:qwen3:0.6b"``."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import urlsplit

from llama_index_contextual.utils.errors import without_credentials

LOCAL_EMBEDDINGS = ("local", "e5", "none")
_EMBEDDINGS = ("ollama", "openai", "huggingface")
_LANGUAGE_MODELS = ("ollama", "openai")
EMBEDDING_FORMS = (
    "'local', 'e5', 'none', 'ollama:MODEL', 'ollama:MODEL@http://host:port', 'openai:MODEL', "
    "'openai:MODEL@http://host/v1', 'huggingface:MODEL', or any LlamaIndex embedding object"
)
_LANGUAGE_MODEL_FORMS = (
    "'ollama:MODEL', 'openai:MODEL', 'openai:MODEL@http://HOST/v1', or any LlamaIndex LLM object"
)
# KIND:MODEL, followed by @ADDRESS for another server. The name of a model may contain an @.
_NAME = re.compile(
    r"(\w+):(?!@(?i:https?)://)(@?[^\s@](?:[^@\n]*[^\s@])?)(?:@((?i:https?)://[^\s/]\S*))?"
)


class ModelName(NamedTuple):
    """The parts of a model's name. ``url`` is "" for this machine or the usual server."""

    kind: str
    model: str = ""
    url: str = ""


def embedding_name(spec: object) -> ModelName:
    """Return the parts of the name of an embedding.

    Raises:
        ValueError: This is not such a name.
    """
    if spec in LOCAL_EMBEDDINGS:
        return ModelName(str(spec))
    return _parsed(spec, _EMBEDDINGS, EMBEDDING_FORMS)


def language_model_name(spec: object) -> ModelName:
    """Return the parts of the name of a language model.

    Raises:
        ValueError: This is not such a name.
    """
    return _parsed(spec, _LANGUAGE_MODELS, _LANGUAGE_MODEL_FORMS)


def _parsed(spec: object, kinds: Collection[str], forms: str) -> ModelName:
    """Return the parts of a model's name.

    Everything after ``@http://`` or ``@https://`` is an address. If it were read as a part of the
    model's name, requests for another server would go to the usual one.
    """
    match = _NAME.fullmatch(str(spec))
    if match is None or match[1] not in kinds:
        raise ValueError(f"Input should be {forms}")
    name = ModelName(match[1], match[2], match[3] or "")
    if name.url and not _is_address(name.url):
        raise ValueError(
            "Input should have an address such as http://HOST:PORT/v1, with a port from 1 to 65535,"
            f" after the @, not {without_credentials(name.url)}"
        )
    return name


def _is_address(url: str) -> bool:
    """Return whether a URL has a host, and a port that can exist."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port above 65535, or half of an IPv6 address
        return False
