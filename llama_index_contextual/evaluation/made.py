"""Questions that are made from the documents themselves, for somebody who has none."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.llms import ChatMessage

from llama_index_contextual.checks import whole
from llama_index_contextual.context import LLMContextGenerator
from llama_index_contextual.context.llm.model import model_name, without_credentials
from llama_index_contextual.errors import SettingError
from llama_index_contextual.evaluation.questions import Passage, Question
from llama_index_contextual.identity import short_hash
from llama_index_contextual.index import ContextualIndex
from llama_index_contextual.index.database import DatabaseKVStore
from llama_index_contextual.index.sources import readable_documents
from llama_index_contextual.metadata import path_of, place_of
from llama_index_contextual.text import counted, sentence_starts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from llama_index.core.llms import LLM
    from llama_index.core.schema import BaseNode
    from llama_index.core.storage.kvstore.types import BaseKVStore

MOST: Final = 100
WORD: Final = re.compile(r"\w[\w'’-]*")
_SHORTEST, _LONGEST = 6, 30  # words of a sentence
_QUOTED: Final = 4  # words in a row, which are a quotation
_CHARACTERS: Final = 300  # of a question
_COLLECTION: Final = "questions"
_PROMPT: Final = (
    "Place: {place}\n\n<text>\n{text}\n</text>\n\n"
    "Write one question that this text answers, as somebody would ask it who knows the subject and has not read the "
    "text. Use your own words: do not repeat more than three words of the text in a row, and do not mention the text. "
    "Answer with the question alone."
)


def make_questions(
    folder: str | Path,
    llm: str | LLM,
    *,
    most: int = MOST,
    say: Callable[[str], object] | None = None,
    **options: Any,
) -> list[Question]:
    """Have a language model make questions from the documents of a folder.

    docs/evaluation.md says what such questions can and cannot tell. What the model writes is kept in the folder's
    ``.contextual``, so that it is paid for once.

    Args:
        folder: The documents.
        llm: The model, as a name or as LlamaIndex's.
        most: How many chunks are asked about at most.
        say: Called with an estimate before the model is asked.
        **options: More of :meth:`ContextualIndex.open`, such as ``config=``.

    Raises:
        SettingError: A setting is wrong, no question can be made, or the model cannot be asked.
        ContextError: The model's key is missing or refused.
    """
    most, name = whole("most", most), without_credentials(llm) if isinstance(llm, str) else model_name(llm)
    settings = ContextualIndex.open(folder, **{**options, "reindex": "ignore"}).settings
    generator = LLMContextGenerator(llm, cache=False)
    generator.require_key()
    documents = readable_documents(settings)
    nodes = [node for one in documents for node in settings.pipeline.parser.get_nodes_from_documents([one])]
    cache = DatabaseKVStore(settings.database)
    return questions_by_llm(nodes, generator.llm, model=name, cache=cache, most=most, say=say)


def questions_by_llm(
    nodes: Sequence[BaseNode],
    llm: LLM,
    *,
    model: str,
    cache: BaseKVStore | None = None,
    most: int = MOST,
    say: Callable[[str], object] | None = None,
) -> list[Question]:
    """Have a language model write one question for each of some chunks.

    A question that repeats four words of the text in a row, that is asked twice, or that is no single line, is left
    out. What the model said is kept in the cache, so that it is paid for once.

    Args:
        nodes: All chunks of an index.
        llm: The model.
        model: Its name, which answers are kept under.
        cache: A key-value store of LlamaIndex.
        most: How many chunks are asked about; they are drawn with a fixed seed.
        say: Called with an estimate before the first call.

    Raises:
        SettingError: The model cannot be asked, or no question of it can be used.
    """
    chosen = [(node, next(sentences(node.get_content()), "")) for node in drawn(nodes)]
    chosen = [(node, sentence) for node, sentence in chosen if sentence][:most]
    asked = [_PROMPT.format(place=place_of(node.metadata), text=node.get_content()) for node, _ in chosen]
    keys = [short_hash([model, prompt]) for prompt in asked]
    kept = {key: cache.get(key, collection=_COLLECTION) if cache else None for key in keys}
    if say is not None:
        new = [prompt for key, prompt in zip(keys, asked, strict=True) if not kept[key]]
        say(f"Questions by {model}: {counted(len(new), 'call')}, about {sum(map(len, new)) // 4:,} tokens in")
    made: dict[str, Question] = {}
    for (node, sentence), prompt, key in zip(chosen, asked, keys, strict=True):
        answer = kept[key] or {"text": _answer(llm, prompt, model)}
        if cache and not kept[key]:
            cache.put(key, answer, collection=_COLLECTION)
        text = _usable(answer["text"], node.get_content())
        if text:
            made.setdefault(text.casefold(), Question(text, (passage(node, sentence),)))
    if not made:
        raise SettingError(f"{model} wrote no usable question. Cure: a larger model, or questions of your own.")
    return list(made.values())


def _answer(llm: LLM, prompt: str, model: str) -> str:
    try:
        return str(llm.chat([ChatMessage(content=prompt)]).message.content or "")
    except Exception as error:  # any integration's own
        raise SettingError(
            f"{model} cannot be asked for questions ({type(error).__name__}: {error}). Cure: see that it answers; "
            "what it wrote before is kept."
        ) from error


def _usable(answer: str, text: str) -> str:
    """Return a model's question, or nothing: where it is no question, or quotes the text."""
    lines = [line.strip(' \t"“”*') for line in answer.strip().splitlines() if line.strip()]
    if len(lines) != 1 or not lines[0].endswith(("?", "？")) or len(lines[0]) > _CHARACTERS:
        return ""
    words, own = _words(lines[0]), _words(text)
    quotations = {tuple(own[at : at + _QUOTED]) for at in range(len(own) - _QUOTED + 1)}
    quotes = any(tuple(words[at : at + _QUOTED]) in quotations for at in range(len(words) - _QUOTED + 1))
    return "" if quotes or len(words) < 3 else lines[0]  # noqa: PLR2004  shorter asks for nothing


def _words(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]


def drawn(nodes: Sequence[BaseNode]) -> list[BaseNode]:
    """Return nodes in an order that chance made once, and that does not hang on theirs."""
    ordered = sorted(nodes, key=lambda node: node.node_id)
    random.Random(0).shuffle(ordered)  # noqa: S311  no secret
    return ordered


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a chunk; headings, and what is too short or too long, are left out."""
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        ends = [*sentence_starts(line, 0, len(line)), len(line)]
        starts = [0, *ends[:-1]]
        for start, end in zip(starts, ends, strict=True):
            sentence = line[start:end].strip()
            if _SHORTEST <= len(WORD.findall(sentence)) <= _LONGEST:
                yield sentence


def passage(node: BaseNode, sentence: str) -> Passage:
    """Return where a chunk says a sentence."""
    return Passage(path_of(node.metadata) or node.ref_doc_id, text=sentence)
