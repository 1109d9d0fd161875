"""Choose settings by questions, and measure the gain on questions that did not choose."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tomlkit

from llama_index_contextual.app.evaluation.comparison import RANK_DEPTH, TOP_K, check_asking, measure
from llama_index_contextual.app.evaluation.folder import CONTEXTS, Experiment
from llama_index_contextual.app.evaluation.metrics import interval
from llama_index_contextual.app.index import chosen_postprocessors
from llama_index_contextual.durable import write_atomically
from llama_index_contextual.errors import SettingError
from llama_index_contextual.retrieval import POOL
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from llama_index.core.base.embeddings.base import BaseEmbedding

    from llama_index_contextual.app.evaluation.metrics import Interval, Recalls
    from llama_index_contextual.app.evaluation.questions import Question
    from llama_index_contextual.app.index import ContextualIndex
    from llama_index_contextual.retrieval import ContextualFusionRetriever

_FOLDS: Final = 5
_FEWEST: Final = 30  # questions; with fewer a choice is mostly chance
NOW: Final = "as it is now"
_FUSIONS: Final = (  # with the weight of the keywords, where there is one
    ("learned", None),
    ("dist_based_score", None),
    *(("reciprocal_rerank", weight) for weight in (0.2, 0.4, 0.6, 0.8)),
)
_PER_FILE: Final = (None, 2)
_SHOWN: Final = 5


@dataclass(frozen=True)
class Tuning:
    """The settings that tuning chose. It prints itself.

    Attributes:
        settings: The best settings by all questions, by key of the configuration; empty for the present ones.
        scores: Each setting's mean recall over the numbers of hits, 0 to 1, best first.
        gain: What a choice by four fifths of the questions gains on the other fifth, in points of that recall: mean,
            and the ends of its 95 % interval.
        questions: How many questions there were.
        top_k: The numbers of hits that were counted.
    """

    settings: Mapping[str, Any]
    scores: Mapping[str, float]
    gain: Interval
    questions: int
    top_k: tuple[int, ...]

    @property
    def is_more_than_chance(self) -> bool:
        """Whether there are enough questions, and the whole interval of the gain is above 0."""
        return bool(self.settings) and self.questions >= _FEWEST and self.gain[1] > 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; recalls and gains are shares from 0 to 1."""
        return {
            "settings": dict(self.settings),
            "scores": dict(self.scores),
            "gain": [points / 100 for points in self.gain],
            "is_more_than_chance": self.is_more_than_chance,
            "questions": self.questions,
            "top_k": list(self.top_k),
        }

    def write(self, file: str | Path) -> None:
        """Write the settings into a configuration file; what else it says, and its comments, stay.

        Raises:
            SettingError: The gain may be chance.
        """
        if not self.is_more_than_chance:
            raise SettingError(f"nothing is written: {self._verdict()}")
        path = Path(file)
        document = tomlkit.parse(path.read_text("utf-8-sig") if path.exists() else "")
        for key, value in self.settings.items():
            section, _, name = key.rpartition(".")
            table: Any = document.setdefault(section, tomlkit.table()) if section else document
            if value is None:
                table.pop(name, None)
            else:
                table[name] = value
        write_atomically(path, tomlkit.dumps(document).encode())

    def __str__(self) -> str:
        counts = f"{counted(self.questions, 'question')}, {counted(len(self.scores), 'setting')}"
        ranking = [f"{100 * score:5.1f}  {name}" for name, score in self.scores.items()]
        places = [place for place, name in enumerate(self.scores) if place < _SHOWN or name == NOW]
        mean, low, high = self.gain
        lines = [
            f"mean recall in the first {', '.join(map(str, self.top_k))} hits, %, {counts}",
            *(ranking[place] for place in places),
            f"A choice gains {mean:+.1f} points [{low:+.1f}, {high:+.1f}] on questions that did not choose.",
            self._verdict(),
        ]
        return "\n".join(lines)

    def _verdict(self) -> str:
        if not self.settings:
            return "The present settings are the best of these."
        if self.questions < _FEWEST:
            are = "is" if self.questions == 1 else "are"
            return f"{counted(self.questions, 'question')} {are} too few to choose by. Cure: {_FEWEST} or more"
        if self.gain[1] <= 0:
            return "The gain may be chance: its interval reaches 0. Cure: more questions, or stay with what you have"
        return "More than chance: " + ", ".join(f"{key} = {value}" for key, value in self.settings.items())


def tune(
    folder: str | Path,
    questions: Sequence[Question],
    *,
    contexts: Iterable[str] = CONTEXTS,
    embed_model: str | BaseEmbedding | None = None,
    top_k: Iterable[int] = TOP_K,
    say: Callable[[str], object] | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Tuning:
    """Try contexts, ways of fusion with weights, and grouping by file; return the best and what it gains.

    The questions are dealt into five parts. Four of them choose a setting, and the fifth measures it against the
    present one. So each question measures once what it did not choose. The folder's own index is not touched.

    Args:
        folder: The documents.
        questions: Questions and the places of their answers.
        contexts: The kinds of context to try.
        embed_model: As for :func:`evaluate`.
        top_k: Numbers of hits; the mean of their recalls is what is compared.
        say: Called with a line before each index is made.
        show_progress: Whether to draw progress bars on stderr.
        **options: As for :func:`evaluate`.

    Raises:
        SettingError: A setting is wrong, or there are no documents or questions.
    """
    depths = check_asking(questions, top_k)
    scores: dict[str, Recalls] = {}
    settings: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        experiment = Experiment(folder, None, {"embed_model": embed_model, **options}, stack)
        experiment.open(NOW)
        for kind in dict.fromkeys(contexts):
            experiment.open_context(kind)
        for name in experiment.indexes:
            if say is not None:
                say(f"Indexing and asking {folder}: {name}")
            index = experiment.fill(name, show_progress=show_progress)
            for title, choice, retriever in _candidates(name, index, max(*depths, RANK_DEPTH)):
                scores[title] = measure(title, retriever, questions, depths).recalls.mean(axis=1)
                settings[title] = choice
    return _choose(scores, settings, depths)


def _candidates(
    name: str, index: ContextualIndex, depth: int
) -> Iterable[tuple[str, dict[str, Any], ContextualFusionRetriever]]:
    """Yield name, settings and retriever of everything that one index can be asked by."""
    if name == NOW:
        yield NOW, {}, index.as_retriever(depth)
        return
    configuration = index.settings.configuration
    for (fusion, weight), per_file in product(_FUSIONS, _PER_FILE):
        retrieval = configuration.retrieval.model_copy(update={"per_file": per_file})  # recency and reranker stay
        steps = chosen_postprocessors(retrieval, pool=max(POOL, depth), llm=configuration.context_options.llm)
        weights: dict[str, Any] = {} if weight is None else {"retriever_weights": [1 - weight, weight]}
        settings = {
            "context": index.settings.pipeline.contexts.context,
            "retrieval.mode": fusion,
            "retrieval.keyword_weight": weight,
            "retrieval.per_file": per_file,
        }
        parts = [name, fusion, f"keywords {weight}" if weight else "", f"{per_file} a file" if per_file else ""]
        retriever = index.as_retriever(depth, mode=fusion, node_postprocessors=steps, **weights)
        yield ", ".join(filter(None, parts)), settings, retriever


def _choose(scores: Mapping[str, Recalls], settings: Mapping[str, dict[str, Any]], top_k: tuple[int, ...]) -> Tuning:
    """Choose by all questions, and measure by cross-validation what a choice gains.

    Args:
        scores: Of each setting the recall of each question. The present setting is the first, and wins ties.
        settings: The same settings by key of the configuration.
        top_k: The numbers of hits that the recall is the mean of.
    """
    names, recalls = list(scores), np.stack(list(scores.values()))
    now, count = names.index(NOW), recalls.shape[1]
    gains = np.zeros(count)
    order = np.random.default_rng(0).permutation(count)
    for part in np.array_split(order, min(_FOLDS, count)):
        others = np.setdiff1d(order, part)
        best = recalls[:, others].mean(axis=1).argmax() if len(others) else now
        gains[part] = recalls[best, part] - recalls[now, part]
    [gain] = interval(100 * gains[:, None])
    means = recalls.mean(axis=1).tolist()
    ranking = dict(sorted(zip(names, means, strict=True), key=lambda score: -score[1]))
    return Tuning(settings[next(iter(ranking))], ranking, gain, count, top_k)
