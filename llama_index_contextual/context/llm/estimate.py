"""What a run would cost: its calls are planned and added up, and the model is not asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from llama_index_contextual.context.llm.model import is_local, model_name
from llama_index_contextual.context.llm.prompt import Question, batches, count_tokens
from llama_index_contextual.context.llm.run import todo_of
from llama_index_contextual.context.usage import PRICES_OF, ContextEstimate, Prices, Tokens, list_prices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_index_contextual.context.base import DocumentChunks
    from llama_index_contextual.context.llm.run import RunSettings

_CONTEXT_TOKENS: Final = 40  # of a usual context with its number
_LOCAL_WRITING: Final = 20.0  # tokens a second that a model on this machine writes
_REMOTE_READING, _REMOTE_WRITING = 5000.0, 60.0


def estimate(
    settings: RunSettings, documents: Sequence[DocumentChunks], prices: Prices | None = None
) -> ContextEstimate:
    """Plan the calls of a run and add them up, without asking the model.

    Args:
        settings: The run's.
        documents: What it would be about.
        prices: Per million tokens.
    """
    settings.divide_window()
    budget, total, calls = settings.budget, Tokens(), 0
    todo = [todo_of(settings, batch) for batch in documents]
    for one in todo:
        before, prompt = "", settings.prompts.of(one.document)
        missing = [one.nodes[index] for index in one.missing]
        for group in batches(missing, one.document, budget.size, budget.window) if missing else ():
            question = Question.about(group, one.document, one.nodes, budget.window, prompt)
            again = count_tokens(question.document) if question.document == before else 0
            total += Tokens(question.tokens, again, len(group) * min(_CONTEXT_TOKENS, settings.max_output_tokens))
            before, calls = question.document, calls + 1
    local, model = is_local(settings.llm), model_name(settings.llm)
    price, priced_by = _price(total, prices, model, local=local)
    return ContextEstimate(
        chunks=sum(len(one.missing) for one in todo),
        from_cache=sum(text is not None for one in todo for text in one.found),
        calls=calls,
        tokens=total,
        seconds=_seconds(settings, total, local=local),
        price=price,
        priced_by=priced_by,
        model=model,
        local=local,
    )


def _seconds(settings: RunSettings, tokens: Tokens, *, local: bool) -> float:
    """Return how long reading and writing takes: a server here does one call after the other, another several."""
    reading, writing = (settings.patience.reading_rate, _LOCAL_WRITING) if local else (_REMOTE_READING, _REMOTE_WRITING)
    alone = (tokens.prompt - tokens.cached) / reading + tokens.completion / writing
    return alone if local else alone / settings.num_workers


def _price(tokens: Tokens, given: Prices | None, model: str, *, local: bool) -> tuple[float | None, str]:
    if given is not None:
        return given.of(tokens), "given"
    if local:
        return 0.0, "local"
    listed = list_prices(model)
    return (None, "") if listed is None else (listed.of(tokens), f"list of {PRICES_OF}")
