"""The features of the ranking. Each is a reason to rank a chunk higher or lower.

To add a feature, write a class with a ``name``, a ``weight`` and a ``values`` method, append it to
:data:`FEATURES`, and add a case to ``tests/retrievers/test_features.py``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from llama_index_contextual.retrievers import query_dates
from llama_index_contextual.retrievers.arrays import find_sorted
from llama_index_contextual.retrievers.bm25_index import term_number
from llama_index_contextual.retrievers.chunk_info import code_key, code_terms
from llama_index_contextual.retrievers.names import LONGEST_NAME, folded_name
from llama_index_contextual.retrievers.terms import language_of, query_groups
from llama_index_contextual.utils.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from llama_index_contextual.retrievers.arrays import Bools, Floats, Numbers
    from llama_index_contextual.retrievers.chunk_info import ChunkInfo, Chunks
    from llama_index_contextual.retrievers.terms import Group


@dataclass(frozen=True)
class Query:
    """A query in the form that features need.

    Attributes:
        text: The query without its operators.
        today: The day that "last week" is relative to.
        groups: The distinct terms of the query, each with its alternatives.
        idf: The rarity of each term. It is 0 without a keyword retriever.
    """

    text: str
    today: date
    groups: Sequence[Group]
    idf: Floats

    @cached_property
    def information(self) -> float:
        """Return the summed rarity of all terms. It is the upper limit of BM25 scores."""
        return float(sum(self.idf.tolist()))

    @cached_property
    def is_question(self) -> bool:
        """Return whether the query is a question in prose, with a question mark."""
        return "?" in self.text

    @cached_property
    def alternatives(self) -> tuple[Numbers, Bools]:
        """Return the sorted numbers of the alternatives of all terms, and a table of their terms.

        The table has the shape (alternatives, terms). It is true where an alternative belongs to a
        term.
        """
        numbers_of_terms = [frozenset(map(term_number, group)) for group in self.groups]
        ascending = sorted(frozenset().union(*numbers_of_terms))
        belongs = np.zeros((len(ascending), len(numbers_of_terms)), np.bool_)
        for column, numbers in enumerate(numbers_of_terms):
            belongs[:, column] = [number in numbers for number in ascending]
        return np.array(ascending, np.uint64), belongs

    @cached_property
    def code_terms(self) -> frozenset[str]:
        """Return the terms of the query, with names such as ``getUserName`` split into words."""
        return code_terms(self.text)

    @cached_property
    def code_names(self) -> Sequence[str]:
        """Return possible names of definitions: the whole query, and identifiers in it."""
        return [self.text, *_IDENTIFIER.findall(self.text), *_LAST_PART.findall(self.text)]


@dataclass
class Candidates:
    """The nodes that any retriever returned, one row per node.

    Without a keyword retriever, all values that come from its index are 0.

    Attributes:
        node_ids: The ids in row order.
        vector_scores: The weighted sum of the stretched scores of the vector retrievers, each
            multiplied by the trust in its embedding.
        keyword_scores: The same sum for the keyword retrievers.
        matched: The BM25 score as a share of the information of the query.
        term_counts: The number of occurrences of each term in each node, shape (rows, terms).
        nearness: How close together neighbouring terms of the query are, 0 to 1.
        chunks: The stored descriptions of the nodes.
        named: The id of the best chunk of each document that the query names, with the value of the
            name.
        matching_ids: The ids of the nodes that match the filters.
        cosines: The stretched scores of the vector retriever, 0 for a node that it did not return.
        scores: The sum of all previous features in log-odds. A feature can depend on the ranking by
            these features.
    """

    node_ids: Sequence[str]
    vector_scores: Floats
    keyword_scores: Floats
    matched: Floats
    term_counts: Floats
    nearness: Floats
    chunks: Chunks
    named: Mapping[str, float]
    matching_ids: Collection[str]
    cosines: Floats
    scores: Floats

    @cached_property
    def described(self) -> Sequence[tuple[int, ChunkInfo]]:
        """Return the row and the info of each known chunk."""
        rows = np.flatnonzero(self.chunks.is_known).tolist()
        return [(row, self.chunks.info(row)) for row in rows]

    @cached_property
    def code_files(self) -> Sequence[CodeFile]:
        """Return the source files among the candidates."""
        rows_of: dict[str, list[int]] = {}
        for row in np.flatnonzero(self.chunks.is_code).tolist():
            rows_of.setdefault(self.chunks.info(row).path, []).append(row)
        return [
            CodeFile(rows, [self.chunks.info(row) for row in rows], self.cosines[rows])
            for rows in rows_of.values()
        ]


class CodeFile(NamedTuple):
    """The chunks of a source file among the candidates.

    Attributes:
        rows: The rows of the chunks.
        infos: The stored info of each chunk.
        cosines: The stretched vector score of each chunk.
    """

    rows: Sequence[int]
    infos: Sequence[ChunkInfo]
    cosines: Floats


class Feature(Protocol):
    """A reason to rank a candidate higher or lower.

    Attributes:
        name: The name of the feature in explanations.
        weight: The log-odds that a value of 1 adds.
    """

    name: str
    weight: float

    def values(self, query: Query, candidates: Candidates) -> Floats:
        """Return one value per candidate, usually between 0 and 1."""


class VectorFeature:
    """The similarity of the vectors of the query and a chunk."""

    name = "vector"
    weight = 1.323

    def values(self, query: Query, candidates: Candidates) -> Floats:  # noqa: ARG002
        """Return the stretched cosine similarity, multiplied by the trust in the embedding."""
        return candidates.vector_scores


class KeywordFeature:
    """The BM25 score, relative to the scores of all candidates."""

    name = "keyword"
    weight = 1.049

    def values(self, query: Query, candidates: Candidates) -> Floats:  # noqa: ARG002
        """Return the stretched BM25 score."""
        return candidates.keyword_scores


class MatchFeature:
    """How much of the query a chunk contains."""

    name = "match"
    weight = 2.785

    def values(self, query: Query, candidates: Candidates) -> Floats:  # noqa: ARG002
        """Return BM25 as a share of the summed idf of the query."""
        return candidates.matched


class NearnessFeature:
    """How close together the words of the query are in a chunk."""

    name = "nearness"
    weight = 1.63

    def values(self, query: Query, candidates: Candidates) -> Floats:  # noqa: ARG002
        """Return 1 for the query as a phrase, and less if neighbouring words are further apart."""
        return candidates.nearness


class DateFeature:
    """How close the day of a chunk is to the days that the query names."""

    name = "date"
    weight = 1.0

    def values(self, query: Query, candidates: Candidates) -> Floats:
        """Return 1 on a named day, less during the week after it, and 0 on all other days."""
        closeness = np.zeros(len(candidates.node_ids))
        dated_rows = np.flatnonzero(candidates.chunks.days).tolist()
        if not dated_rows:
            return closeness
        lexicon = query_dates.lexicon_of(query.text)
        named_dates = query_dates.find_dates(query.text, query.today, lexicon)
        if named_dates:
            for row in dated_rows:
                day = date.fromordinal(candidates.chunks.days[row])
                closeness[row] = query_dates.closeness(day, named_dates)
        return closeness


class HeadingFeature:
    """How much of the query is in the text below a heading that the query names.

    Contexts add the name of a page to all of its chunks. Terms of the context are ignored here, so
    that the chunk right below the heading ranks first.
    """

    name = "heading"
    weight = 0.4

    def values(self, query: Query, candidates: Candidates) -> Floats:
        """Return the named share of the heading, times the share of the query in the text.

        The value is 0 for source code, which has no headings.
        """
        chunks = candidates.chunks
        size = len(candidates.node_ids)

        # Find the labels that are terms of the query.
        numbers, belongs = query.alternatives
        alternatives, labels = find_sorted(numbers, chunks.labels)
        rows = chunks.label_rows[labels]

        # The share of the heading that the query names, 1 directly below a document title.
        heading_sizes = np.bincount(chunks.label_rows, chunks.heading_labels, size)
        named_sizes = np.bincount(rows, chunks.heading_labels[labels], size)
        named_shares = np.ones(size)
        np.divide(named_sizes, heading_sizes, out=named_shares, where=heading_sizes > 0)

        # The share of the query that is in the text itself and not only in its contexts.
        places, columns = np.nonzero(belongs[alternatives])
        cells = rows[places] * len(query.groups) + columns
        counts = chunks.context_labels[labels][places]
        context_counts = np.bincount(cells, counts, candidates.term_counts.size)
        context_counts = context_counts.reshape(candidates.term_counts.shape)
        in_text = (candidates.term_counts > context_counts).astype(np.float64)
        query_shares = np.einsum("ij,j->i", in_text, query.idf) / (query.information or 1.0)
        values: Floats = query_shares * named_shares * chunks.is_prose
        return values


# A word that is not the first of a sentence.
_LATER_WORD = re.compile(r"(?<=[^.?!\s]\s)[^\W\d_]\w+")


class ProperNameFeature:
    """Whether a note mentions the people, places and products that a query names.

    In conversations and diaries, BM25 gives a name little weight, because the person is in many
    notes. In other documents, capitalised words are often technical terms, and this feature lost
    more than it gained. It is therefore only used if most candidates are dated notes.
    """

    name = "proper name"
    weight = 0.7

    def values(self, query: Query, candidates: Candidates) -> Floats:
        """Return the share of the query's capitalised words that a chunk contains.

        The first word of each sentence is ignored. The value is 0 for source code.
        """
        is_prose = candidates.chunks.is_prose
        is_dated_note = is_prose & (candidates.chunks.days > 0)
        shares: Floats = np.zeros(len(candidates.node_ids))
        if is_dated_note.sum() <= is_prose.sum() / 2:
            return shares
        names = [word for word in _LATER_WORD.findall(query.text) if word[0].isupper()]
        has_term = candidates.term_counts > 0
        has_name = []
        for name in names:
            groups = query_groups(name, language_of(query.text))
            columns = [column for column, group in enumerate(query.groups) if group in groups]
            if columns:
                has_name.append(has_term[:, columns].any(axis=1))
        if has_name:
            shares = np.mean(has_name, axis=0) * is_prose
        return shares


# Source code

_PROSE_FACTOR = 0.5  # a question in prose is about more than a name
_BEST_CHUNKS = 3  # chunks whose vector scores represent their file
_IDENTIFIER = re.compile(r"\b[A-Za-z_][^\WA-Z_]*[A-Z_]\w*")
# The last part of a qualified name: ``send`` of ``res.send``, ``Helpers`` of ``Sinatra::Helpers``.
_LAST_PART = re.compile(r"\w(?:::|->|[.#])(\w+)(?!\w|(?:::|->|[.#])\w)")
_COMMON_WORD_VALUE = 0.5  # of a word of a file name that is in most chunks; a rare one has 1
_TEST_FOLDERS = frozenset(
    ("benchmark", "benchmarks", "example", "examples", "fixtures", "spec", "specs", "test", "tests")
)
_TEST_ENDINGS = ("_test", ".test", "_spec", ".spec", "Test", "Tests")
_TEST_TERMS = code_terms(" ".join(_TEST_FOLDERS))


class CodeFeature(ABC):
    """A feature of source files. It is 0 for the chunks of all other files."""

    def values(self, query: Query, candidates: Candidates) -> Floats:
        """Return the value of its file for each chunk, halved if the query is a question."""
        values = np.zeros(len(candidates.node_ids))
        factor = _PROSE_FACTOR if query.is_question else 1.0
        for file in candidates.code_files:
            values[file.rows] = factor * self.file_value(query, file)
        return values

    @abstractmethod
    def file_value(self, query: Query, file: CodeFile) -> float:
        """Return the value of a file."""


class FileNameFeature(CodeFeature):
    """How much of a file's name the query contains."""

    name = "file name"
    weight = 4.2

    def file_value(self, query: Query, file: CodeFile) -> float:
        """Return the share of the name's words that the query contains, weighted by rarity."""
        file_terms = file.infos[0].file_terms
        if not file_terms:
            return 0.0
        rarity = {}
        for group, idf in zip(query.groups, query.idf.tolist(), strict=True):
            rarity.update(dict.fromkeys(group, idf / (query.idf.max() or 1.0)))
        value = 0.0
        for term in file_terms & query.code_terms:
            value += _COMMON_WORD_VALUE + (1 - _COMMON_WORD_VALUE) * rarity.get(term, 1.0)
        return value / len(file_terms)


class DefinesFeature(CodeFeature):
    """How much of a name that is defined in a file the query contains."""

    name = "defines"
    weight = 2.2

    def file_value(self, query: Query, file: CodeFile) -> float:
        """Return the share for the best name, halved if only one of several words is shared."""
        best = 0.0
        for info in file.infos:
            for defined in info.definitions:
                shared = len(defined.terms & query.code_terms)
                if shared:
                    certainty = min(1.0, shared / min(2, len(query.code_terms)))
                    best = max(best, shared / len(defined.terms) * certainty)
        return best


class FileVectorFeature(CodeFeature):
    """The mean similarity of the best chunks of a file."""

    name = "file vector"
    weight = 1.7

    def file_value(self, query: Query, file: CodeFile) -> float:  # noqa: ARG002
        """Return the mean of the three best vector scores. Missing scores are 0."""
        best = sorted(file.cosines.tolist(), reverse=True)[:_BEST_CHUNKS]
        return float(sum(best)) / _BEST_CHUNKS


class TestsFeature(CodeFeature):
    """Whether a file contains tests, examples or benchmarks, which repeat the words of the code."""

    name = "tests"
    weight = -1.0

    def file_value(self, query: Query, file: CodeFile) -> float:
        """Return 1 for such a file, unless the query asks for tests or examples."""
        if _TEST_TERMS & query.code_terms:
            return 0.0
        return float(_is_test_path(PurePosixPath(file.infos[0].path)))


def _is_test_path(path: PurePosixPath) -> bool:
    """Return whether the name of the file or of a folder is typical of tests or examples."""
    if path.name.startswith("test_") or path.stem.endswith(_TEST_ENDINGS):
        return True
    return any(folder.strip("_") in _TEST_FOLDERS for folder in path.parts[:-1])


class ExactFeature:
    """Whether a chunk defines a name that the query contains."""

    name = "exact"
    weight = 2.0

    def values(self, query: Query, candidates: Candidates) -> Floats:
        """Return 1 for chunks that define the name in the same spelling.

        If no chunk does, return 1 for chunks that define it in any spelling.
        """
        grades = np.zeros(len(candidates.node_ids))
        for file in candidates.code_files:
            for row, info in zip(file.rows, file.infos, strict=True):
                if info.definitions:
                    grades[row] = definition_grade(query, info)
        factor = _PROSE_FACTOR if query.is_question else 1.0
        values: Floats = factor * ((grades > 0) & (grades == grades.max(initial=0)))
        return values


def definition_grade(query: Query, info: ChunkInfo) -> int:
    """Return the best spelling grade of all names in a query."""
    return max(spelling_grade(name, info) for name in query.code_names)


def spelling_grade(name: str, info: ChunkInfo) -> int:
    """Return 2 if a chunk defines a name in the same spelling, 1 in another spelling, else 0."""
    written = name.strip(" ()")
    key = code_key(name)
    grades = (
        2 if defined.name == written else int(defined.key == key) for defined in info.definitions
    )
    return max(grades, default=0)


# Features that depend on the ranking so far

_MAX_REPEATS = 3
_BETWEEN_PARTS = re.compile(
    r"[,;/&+、]|\b(?:and|or|vs|versus|und|oder|et|ou|y|e|и|или)\b", re.IGNORECASE
)
_MIN_PART = 0.15  # share of the question's information that a part must have
_MIN_COVERAGE = 0.6  # share of a part's information that a chunk about it contains
_WHOLE_PART = 10.0  # log-odds
_FIXED_HITS = 3  # hits that always stay before the best chunk of a part
_STEP = 1e-6  # log-odds between a lifted chunk and the hit before it


class NamedChunk(NamedTuple):
    """A chunk of a document that the query names. The best of several chunks is the greatest.

    Attributes:
        value: The value of the name.
        grade: The value of the heading in the chunk, or for code the grade of the spelling.
        score: The log-odds by the features before.
        negated_row: The row, negated so that the first of equal chunks is the best.
    """

    value: float
    grade: float
    score: float
    negated_row: int


class NameFeature:
    """Whether the query is the name of a document: its file, title, alias or heading."""

    name = "names"
    weight = 8.0

    def values(self, query: Query, candidates: Candidates) -> Floats:
        """Return the value of the name for the best chunk of each document, else 0.

        The best chunk has a heading with that name, or defines the name. If it does not match the
        filters, the best chunk that does gets the value, too.
        """
        values = np.zeros(len(candidates.node_ids))
        name = folded_name(query.text) if len(query.text) <= LONGEST_NAME else ""
        if not name:
            return values
        heading_values = candidates.chunks.name_values(name)
        if not candidates.named and not heading_values.any():
            return values

        # Read which documents the query names.
        document_values = {}
        for row, info in candidates.described:
            node_id = candidates.node_ids[row]
            if node_id in candidates.named:
                document_values[info.path or node_id] = candidates.named[node_id]

        # Find the best chunk of each document, among those that match the filters and the others.
        best: dict[tuple[str, bool], NamedChunk] = {}
        for row, info in candidates.described:
            node_id = candidates.node_ids[row]
            document = info.path or node_id
            heading_value = float(heading_values[row])
            value = max(document_values.get(document, 0.0), heading_value)
            if value:
                is_code = candidates.chunks.is_code[row]
                grade = definition_grade(query, info) if is_code else heading_value
                chunk = NamedChunk(value, grade, float(candidates.scores[row]), -row)
                key = (document, node_id in candidates.matching_ids)
                best[key] = max(best.get(key, chunk), chunk)
        for chunk in best.values():
            values[-chunk.negated_row] = chunk.value
        return values


class FurtherChunkFeature:
    """How many chunks of the same source file rank higher.

    A query of keywords looks for different places in the code. A question can be answered by
    several chunks of one file.
    """

    name = "further chunk"
    weight = -9.0

    def values(self, query: Query, candidates: Candidates) -> Floats:
        """Return the number of better chunks of the same file, at most 3; 0 for a question."""
        repeats = np.zeros(len(candidates.node_ids))
        if query.is_question:
            return repeats
        for file in candidates.code_files:
            best_first = sorted(file.rows, key=lambda row: (-candidates.scores[row], row))
            for number, row in enumerate(best_first):
                repeats[row] = min(number, _MAX_REPEATS)
        return repeats


class PartFeature:
    """Lifts the best chunk for each part of a question to a rank after the first three hits.

    ``retries and the timeout`` has two parts. The first three hits stay, because two parts of a
    question often have the same answer.
    """

    name = "part"
    weight = 1.0

    def values(self, query: Query, candidates: Candidates) -> Floats:
        """Return the lifts in log-odds. A part that a higher hit is about needs no lift."""
        scores = candidates.scores
        lifts = np.zeros(len(scores))
        parts = _parts_of(query)
        if len(parts) < 2 or not len(scores):  # noqa: PLR2004
            return lifts
        shown = np.argsort(-scores, kind="stable")[:_FIXED_HITS].tolist()
        last_score = float(scores[shown[-1]])
        has_term = candidates.term_counts > 0
        for columns in parts:
            idf = query.idf[columns]
            shares = has_term[:, columns] @ idf / idf.sum()
            covers = shares >= _MIN_COVERAGE
            if covers.any() and not covers[shown].any():
                row = int(np.where(covers, scores + _WHOLE_PART * shares, -np.inf).argmax())
                last_score = max(float(scores[row]), last_score - _STEP)
                lifts[row] = last_score - scores[row]
                shown.append(row)
        return lifts


def _parts_of(query: Query) -> list[list[int]]:
    """Return the columns of the terms of each part of a question, without uninformative parts."""
    column_of = {group: column for column, group in enumerate(query.groups)}
    texts = _BETWEEN_PARTS.split(query.text)
    if len(texts) == 1:
        return []
    language = language_of(query.text)
    parts = []
    for text in texts:
        groups = query_groups(text, language)
        columns = sorted({column_of[group] for group in groups if group in column_of})
        if query.idf[columns].sum() > _MIN_PART * query.information:
            parts.append(columns)
    return parts


FEATURES: tuple[Feature, ...] = (
    VectorFeature(),
    KeywordFeature(),
    MatchFeature(),
    NearnessFeature(),
    DateFeature(),
    HeadingFeature(),
    ProperNameFeature(),
    FileNameFeature(),
    DefinesFeature(),
    ExactFeature(),
    FileVectorFeature(),
    TestsFeature(),
    # These features depend on the ranking by all features before them.
    NameFeature(),
    FurtherChunkFeature(),
    PartFeature(),
)


def checked_features(features: Sequence[Feature]) -> tuple[Feature, ...]:
    """Return the features as a tuple.

    Raises:
        SettingError: Two features have the same name, or a feature lacks an attribute.
    """
    names: list[str] = []
    for feature in features:
        missing = [part for part in ("name", "weight", "values") if not hasattr(feature, part)]
        if missing:
            raise SettingError(
                f"`features` must be objects with a name, a weight and a method values() "
                f"(got {feature!r}, without {', '.join(missing)})."
            )
        if feature.name in names:
            raise SettingError(
                f"`features` must have different names (got {feature.name!r} twice)."
            )
        names.append(feature.name)
    return tuple(features)
