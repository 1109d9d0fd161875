"""Questions that a language model writes from the documents, for somebody who has none."""

from __future__ import annotations

import random
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from llama_index.core.llms import ChatMessage

from llama_index_contextual.checks import whole
from llama_index_contextual.context import LLMContextGenerator
from llama_index_contextual.context.llm.model import model_name, without_credentials
from llama_index_contextual.documents.sources import readable_documents
from llama_index_contextual.errors import SettingError
from llama_index_contextual.evaluation.questions import Passage, Question
from llama_index_contextual.identity import short_hash
from llama_index_contextual.index import ContextualIndex
from llama_index_contextual.index.database import DatabaseKVStore
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
_QUOTATION: Final = 4  # words in a row
_FEWEST_WORDS, _MOST_CHARACTERS = 3, 300  # of a question
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
    most, model = whole("most", most), without_credentials(llm) if isinstance(llm, str) else model_name(llm)
    settings = ContextualIndex.open(folder, **{**options, "reindex": "ignore"}).settings
    generator = LLMContextGenerator(llm, cache=False)
    generator.require_key()
    nodes = settings.pipeline.parse(readable_documents(settings.reading))
    cache = DatabaseKVStore(settings.database)
    return questions_by_llm(nodes, generator.llm, model=model, cache=cache, most=most, say=say)


def questions_by_llm(
    nodes: Sequence[BaseNode],
    llm: LLM,
    *,
    model: str,
    cache: BaseKVStore,
    most: int = MOST,
    say: Callable[[str], object] | None = None,
) -> list[Question]:
    """Have a language model write one question for each of some chunks, which are drawn with a fixed seed.

    A question that repeats four words of the text in a row, that is asked twice, or that is no single line, is left
    out. ``model`` is the name under which the cache keeps all answers. See :func:`make_questions`.
    """
    candidates = ((node, next(sentences(node.get_content()), "")) for node in shuffled(nodes))
    sources = list(islice(((node, sentence) for node, sentence in candidates if sentence), most))
    prompts = [_PROMPT.format(place=place_of(node.metadata), text=node.get_content()) for node, _ in sources]
    answers = {prompt: cache.get(short_hash([model, prompt]), collection=_COLLECTION) for prompt in prompts}
    if say is not None:
        new = [prompt for prompt in prompts if not answers[prompt]]
        say(f"Questions by {model}: {counted(len(new), 'call')}, about {sum(map(len, new)) // 4:,} tokens in")
    questions: dict[str, Question] = {}
    for (node, sentence), prompt in zip(sources, prompts, strict=True):
        answer = answers[prompt] or {"text": _answer(llm, prompt, model)}
        if not answers[prompt]:
            cache.put(short_hash([model, prompt]), answer, collection=_COLLECTION)
        if text := _question(answer["text"], node.get_content()):
            questions.setdefault(text.casefold(), Question(text, (passage(node, sentence),)))
    if not questions:
        raise SettingError(f"{model} wrote no usable question. Cure: a larger model, or questions of your own.")
    return list(questions.values())


def _answer(llm: LLM, prompt: str, model: str) -> str:
    try:
        return str(llm.chat([ChatMessage(content=prompt)]).message.content or "")
    except Exception as error:  # any integration's own
        raise SettingError(
            f"{model} cannot be asked for questions ({type(error).__name__}: {error}). Cure: see that it answers; "
            "what it wrote before is kept."
        ) from error


def _question(answer: str, text: str) -> str:
    """Return a model's question; "" where it is no question, or quotes the text."""
    lines = [line.strip(' \t"“”*') for line in answer.strip().splitlines() if line.strip()]
    if len(lines) != 1 or not lines[0].endswith(("?", "？")) or len(lines[0]) > _MOST_CHARACTERS:
        return ""
    quotes = not _sequences(lines[0]).isdisjoint(_sequences(text))
    return "" if quotes or len(WORD.findall(lines[0])) < _FEWEST_WORDS else lines[0]


def _sequences(text: str) -> set[tuple[str, ...]]:
    """Return all runs of words that would be a quotation."""
    words = WORD.findall(text.casefold())
    return {tuple(words[start : start + _QUOTATION]) for start in range(len(words) - _QUOTATION + 1)}


def shuffled(nodes: Sequence[BaseNode]) -> list[BaseNode]:
    """Return nodes in an order that is the same for the same nodes, in whatever order they come."""
    ordered = sorted(nodes, key=lambda node: node.node_id)
    random.Random(0).shuffle(ordered)  # noqa: S311  no secret
    return ordered


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a chunk; headings, and what is too short or too long, are left out."""
    for line in text.splitlines():
        starts = [] if line.lstrip().startswith("#") else [0, *sentence_starts(line, 0, len(line))]
        for start, end in zip(starts, [*starts[1:], len(line)], strict=False):
            sentence = line[start:end].strip()
            if _SHORTEST <= len(WORD.findall(sentence)) <= _LONGEST:
                yield sentence


def passage(node: BaseNode, sentence: str) -> Passage:
    """Return where a chunk says a sentence."""
    return Passage(path_of(node.metadata) or node.ref_doc_id, text=sentence)
