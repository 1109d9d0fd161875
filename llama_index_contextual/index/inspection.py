"""Looking at an index: what it holds, whether its parts agree, and all of it as JSON lines."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from llama_index.core.schema import MetadataMode
from llama_index.core.utils import iter_batch

from llama_index_contextual import metadata as names
from llama_index_contextual.embedding import EmbeddingEstimate, estimate_embedding, model_id
from llama_index_contextual.index.files import Problem
from llama_index_contextual.index.manifest import nodes_digest
from llama_index_contextual.index.plan import Plan, is_spared, make_plan
from llama_index_contextual.index.settings import plain_settings
from llama_index_contextual.index.sources import read_all
from llama_index_contextual.index.store import Row, store_metadata, to_node
from llama_index_contextual.index.vector_cache import fault_of, kept_hashes
from llama_index_contextual.index.vectors import see_documents
from llama_index_contextual.retrievers.recall import ENOUGH, TOP, found_share, made_questions
from llama_index_contextual.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from llama_index_contextual.index.manifest import Manifest
    from llama_index_contextual.index.settings import IndexSettings
    from llama_index_contextual.index.sources import Source
    from llama_index_contextual.index.state import Layout
    from llama_index_contextual.index.store import NodeStore, Stored
    from llama_index_contextual.retrievers.search import DenseSearch, KeywordSearch


_NAMED: Final = 20  # files that differ; --json names all
_AT_ONCE: Final = 500  # documents that the store is asked about
_SAMPLE: Final = 1000  # vectors that verify looks at
_COMPARED: Final = 500  # chunks that are compared with all
_NEIGHBOURS: Final = 5
_ASKED: Final = 64  # chunks, and documents, that questions are made of


@dataclass(frozen=True, slots=True)
class Pending:
    """What the next refresh of the whole folder would do, in documents."""

    added: int = 0
    changed: int = 0
    outdated: int = 0
    deleted: int = 0
    unreadable: int = 0

    @classmethod
    def of(cls, plan: Plan, failed: Sequence[Problem]) -> Pending:
        """Count what is planned, and the files that cannot be indexed."""
        return cls(len(plan.added), len(plan.changed), len(plan.outdated), len(plan.deleted), len(failed))

    @property
    def any(self) -> bool:
        """Whether the index is behind the folder or its settings."""
        return bool(self.added or self.changed or self.outdated or self.deleted)

    def __str__(self) -> str:
        return ", ".join(f"{value} {key}" for key, value in asdict(self).items() if value) or "nothing"


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """What an index holds.

    Attributes:
        folder: The documents.
        storage: Where the index lives.
        store: Where its nodes are kept, as ``vector_store=`` says it.
        documents: How many documents.
        chunks: How many nodes.
        contexts: Nodes by what made their context; "" counts those without.
        stand_ins: Nodes whose free context stands in for a language model's, or that have none of it yet.
        bytes_on_disk: Size of each part of the storage folder.
        settings: What the index was made with, ``section.key`` to value.
        differences: Settings that are given otherwise now.
        pending: What a refresh would do.
        complete: False while a refresh is at work, or after one was killed: the next one finishes it.
        generation: How many writes there have been.
    """

    folder: str
    storage: str
    store: str
    documents: int
    chunks: int
    contexts: dict[str, int]
    stand_ins: int
    bytes_on_disk: dict[str, int]
    settings: dict[str, Any]
    differences: list[str]
    pending: Pending
    complete: bool
    generation: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return asdict(self)

    def __str__(self) -> str:
        size = sum(self.bytes_on_disk.values()) / 1e6
        contexts = ", ".join(f"{number} {source or 'none'}" for source, number in self.contexts.items()) or "none"
        contexts += f" ({self.stand_ins} without the model's; index asks for them again)" if self.stand_ins else ""
        lines = [
            f"folder      {self.folder}",
            f"storage     {self.storage} ({size:.1f} MB)",
            f"store       {self.store}",
            f"documents   {self.documents} in {counted(self.chunks, 'chunk')}",
            f"contexts    {contexts}",
            f"to refresh  {self.pending}",
            f"state       {'complete' if self.complete else 'a refresh is at work or was killed; refresh to finish'}",
            *(f"setting     {key} = {value}" for key, value in self.settings.items()),
            *(f"differs     {difference}" for difference in self.differences),
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether the folder and the parts of its index agree.

    Attributes:
        problems: What does not within the index, a sentence each; the cure of all is a refresh with ``reindex="all"``.
        files: Files of the folder that the index does not have as they are now, a sentence each; a refresh mends it.
        pending: What a refresh would do. Documents that only settings made outdated are no disagreement.
        documents: How many were checked.
        chunks: How many were checked.
        recall: The share of the ten nearest chunks that a question finds, 0 to 1, for questions made of a sample of the
            chunks; less than 0.98 is a finding. None where vectors are lost, or there are none.
    """

    problems: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    pending: Pending = field(default_factory=Pending)
    documents: int = 0
    chunks: int = 0
    recall: float | None = None

    @property
    def ok(self) -> bool:
        """Whether everything agrees, and what is near is found."""
        return not self.problems and not self.files and not self.loses

    @property
    def loses(self) -> bool:
        """Whether the store's graph loses too much of what is near."""
        return self.recall is not None and self.recall < ENOUGH

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        checked = f"{counted(self.documents, 'document')}, {counted(self.chunks, 'chunk')}"
        found = "" if self.recall is None else f"{self.recall:.1%} of the ten nearest chunks are found"
        if self.ok:
            found = found and f"; {found}"
            return f"ok: {checked} agree with the files, in manifest, vector store and keyword index{found}"
        lost = (
            f"Only {found}, by a sample: the store's graph loses the others. Cure: [store] exact_limit = {self.chunks} "
            "or more, so that a question is compared with every vector; then refresh."
        )
        if not self.problems and not self.files:
            return f"{lost}\nchecked {checked}"
        more = len(self.files) - _NAMED
        files = [*self.files[:_NAMED], *([f"… and {counted(more, 'file')} more."] if more > 0 else [])]
        cure = "refresh; if that is not enough, with reindex='all'" if self.problems else "refresh"
        return "\n".join([*self.problems, *files, *([lost] if self.loses else []), f"checked {checked}. Cure: {cure}"])


def planned(
    settings: IndexSettings, manifest: Manifest, sources: Sequence[Source], failed: Sequence[Problem]
) -> tuple[Plan, list[Problem]]:
    """Compare the manifest with the folder as it is: what a refresh would do, and which files cannot be indexed."""
    failed = [
        *failed,
        *(Problem(one.id, "") for one in sources if one.stamp and manifest.failed.get(one.id) == one.stamp),
    ]
    unread = {problem.path for problem in failed}
    plan = make_plan(
        manifest.documents,
        {source.id: source.sha256 for source in sources if source.id not in unread},
        made_with=settings.fingerprint.nodes_hash,
        covered="",
        blocked=unread,
    )
    return plan, failed


def embedding_work(
    settings: IndexSettings,
    manifest: Manifest,
    sources: Sequence[Source],
    failed: list[Problem],
    stored: Callable[[list[str]], Mapping[str, Sequence[Stored]]],
) -> EmbeddingEstimate:
    """Say what a refresh would embed: only texts of documents that it indexes, and whose vectors are nowhere kept.

    Args:
        settings: Whose contexts cost nothing.
        manifest: What is indexed, by the embedding of today.
        sources: The folder.
        failed: What cannot be read.
        stored: Returns what the store has of some documents.
    """
    plan, _ = planned(settings, manifest, sources, failed)
    wanted, pipeline = set(plan.to_index), settings.pipeline
    read = read_all((source for source in sources if source.id in wanted), failed)
    cut = [(source, pipeline.parse(documents), documents) for source, documents in read]
    pipeline.contextualize([one for _, nodes, _ in cut for one in nodes], [one for *_, given in cut for one in given])
    rows: list[Row] = []
    for part in iter_batch(cut, _AT_ONCE):
        held = stored([source.id for source, *_ in part])
        for source, nodes, _ in part:
            known = {item.id: item for item in held.get(source.id, [])}
            made = [Row(one, store_metadata(one, source.id, source.kind), known.get(one.node_id)) for one in nodes]
            see_documents(settings.embedding, made)
            rows += made
    fresh = {row.embed_hash: row for row in rows if row.is_fresh}
    kept = kept_hashes(settings.layout.cache, model_id(settings.embedding), list(fresh))
    missing = [row.node.get_content(metadata_mode=MetadataMode.EMBED) for key, row in fresh.items() if key not in kept]
    before = sum(manifest.documents[key].nodes for key in plan.unchanged)
    known_now = before + sum(not row.is_fresh or row.embed_hash in kept for row in rows)
    return replace(estimate_embedding(settings.embedding, missing), chunks=before + len(rows), known=known_now)


def status(settings: IndexSettings, manifest: Manifest, store: NodeStore, waiting: Pending) -> IndexStatus:
    """Gather what there is to say about an index."""
    contexts, paid = manifest.context_sources(), settings.pipeline.paid_source
    return IndexStatus(
        folder=str(settings.folder),
        storage=str(settings.layout.root),
        store=settings.place.name or "an object that was given as vector_store=",
        documents=len(manifest.documents),
        chunks=store.count(),
        contexts=contexts,
        stand_ins=sum(number for source, number in contexts.items() if paid and source != paid),
        bytes_on_disk=sizes(settings.layout),
        settings=plain_settings(manifest.fingerprint),
        differences=[str(difference) for difference in settings.differences(manifest)],
        pending=waiting,
        complete=manifest.complete,
        generation=manifest.generation,
    )


def sizes(layout: Layout) -> dict[str, int]:
    """Bytes of each thing in a storage folder."""
    found: dict[str, int] = {}
    for path in layout.root.iterdir() if layout.root.is_dir() else ():
        files = (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        found[path.name] = sum(file.stat().st_size for file in files)
    return dict(sorted(found.items()))


def verify(
    folder: Path,
    manifest: Manifest,
    store: NodeStore,
    keywords: KeywordSearch,
    dense: DenseSearch | None,
    plan: Plan,
    failed: Sequence[Problem],
) -> Verification:
    """Compare the folder, manifest, vector store and keyword index; ask for what is near; nothing is changed."""
    nodes: dict[str, list[Stored]] = {}
    for stored in store.all():
        nodes.setdefault(stored.entry, []).append(stored)
    ids = {item.id for items in nodes.values() for item in items}
    problems = [] if manifest.complete else ["A refresh was interrupted."]
    problems += _disagreements(manifest, nodes)
    faults = list(_vectors(store))
    problems += faults
    recall = None if dense is None or faults else _recall(store, dense, list(nodes.values()))
    keyword = set(keywords.selected_ids())
    if keyword != ids:
        problems.append(
            f"The keyword index lacks {counted(len(ids - keyword), 'chunk')} and has {len(keyword - ids)} too many."
        )
    files = sorted(_files(folder, manifest, plan, failed))
    waiting = Pending.of(plan, failed)
    return Verification(problems, files, waiting, len(manifest.documents), len(ids), recall)


def _recall(store: NodeStore, dense: DenseSearch, documents: Sequence[Sequence[Stored]]) -> float | None:
    """Return which share of the ten nearest is found for questions made of chunks: of any, and of any document."""
    rng = np.random.default_rng(0)
    every = [item.id for items in documents for item in items]
    chosen = {every[row] for row in rng.permutation(len(every))[:_ASKED].tolist()}
    for number in rng.permutation(len(documents))[:_ASKED].tolist():
        chosen.add(documents[number][int(rng.integers(len(documents[number])))].id)
    pages = [vectors for _, vectors in store.vectors(sorted(chosen))]
    if not pages:
        return None
    questions = made_questions(np.concatenate(pages))
    answers = [[one.node_id for one in dense.dense_query(question.tolist(), TOP)] for question in questions]
    return found_share(store.vectors(), questions, answers)


def _files(folder: Path, manifest: Manifest, plan: Plan, failed: Sequence[Problem]) -> Iterator[str]:
    before = dict(plan.renamed)
    moved = set(before.values())
    seen = [key for key in plan.changed if manifest.documents[key].sha256]  # nodes of a migration came from elsewhere
    yield from (f"{key}: edited since it was indexed." for key in seen)
    for key in set(plan.deleted) - moved:
        there = os.path.lexists(folder / key)
        yield f"{key}: {'left out by the settings now' if there else 'deleted since it was indexed'}."
    reads_files = any(entry.kind == "file" for entry in manifest.documents.values())  # else all were given by hand
    for key in plan.added if reads_files else ():
        yield f"{key}: {f'moved from {before[key]} since that was indexed' if key in before else 'not indexed yet'}."
    for problem in failed:
        if problem.reason and any(is_spared(key, (problem.path,)) for key in manifest.documents):
            yield f"{problem} What is indexed of it may be old."


def _disagreements(manifest: Manifest, nodes: dict[str, list[Stored]]) -> Iterator[str]:
    for key, entry in manifest.documents.items():
        held = nodes.get(key, [])
        if len(held) != entry.nodes:
            yield f"{key}: the manifest says {counted(entry.nodes, 'chunk')}, the store has {len(held)}."
        elif nodes_digest({item.id: item.embed_hash for item in held}) != entry.digest:
            yield f"{key}: the store holds other chunks than the manifest says."
    for key in sorted(set(nodes) - set(manifest.documents)):
        yield f"{key}: {counted(len(nodes[key]), 'chunk')} in the store that the manifest does not know."


def _vectors(store: NodeStore) -> Iterator[str]:
    lost = store.without_vectors()
    if lost:
        yield f"{counted(len(lost), 'chunk')} without a vector, which was lost, e.g. {lost[0]}."
        return
    _, read = next(store.vectors(), ([], np.empty(0)))
    sample: Any = read[:_SAMPLE]
    faults = [fault for vector in sample if (fault := fault_of(vector))]
    if faults:
        yield f"{len(faults)} of {len(sample)} vectors that were read cannot be used: {faults[0]}."


class Likeness(NamedTuple):
    """How alike the chunks of an index are.

    Contexts of phrases that all chunks share push the mean up and the spread down, until nothing can be told from
    anything.

    Attributes:
        mean: Mean cosine of the vectors of two different chunks, -1 to 1; 0 where there are fewer than two.
        spread: Standard deviation of that cosine.
        shared: The share of a chunk's five nearest chunks that have the same context, 0 to 1; an empty context is none.
    """

    mean: float
    spread: float
    shared: float


def likeness(store: NodeStore) -> Likeness:
    """See :meth:`ContextualIndex.likeness`. The mean is of all chunks, the rest of 500 of them against all."""
    pages = [vectors for _, vectors in store.vectors()]
    vectors = np.concatenate(pages) if pages else np.zeros((0, 1))
    count = len(vectors)
    if count < 2:  # noqa: PLR2004
        return Likeness(0.0, 0.0, 0.0)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(lengths == 0, 1, lengths)
    total = units.sum(axis=0)
    mean = float((total @ total - count) / (count * (count - 1)))
    nodes = (to_node(stored, text) for stored, text in store.all_with_text())
    contexts = np.array([names.context_of(node.metadata) for node in nodes], object)
    chosen = np.random.default_rng(0).permutation(count)[:_COMPARED]
    cosines = units[chosen] @ units.T
    own = (np.arange(len(chosen)), chosen)
    rest = np.delete(cosines.ravel(), own[0] * count + own[1])  # without each chunk's cosine to itself
    cosines[own] = -np.inf
    near = np.argsort(-cosines, axis=1)[:, : min(_NEIGHBOURS, count - 1)]
    same = (contexts[near] == contexts[chosen][:, None]) & (contexts[chosen] != "")[:, None]
    return Likeness(mean, float(rest.std()), float(same.mean()))


def exported(store: NodeStore) -> list[dict[str, Any]]:
    """Every node as plain data, sorted by document and place.

    Keys: ``id``, ``document``, ``text`` and ``context`` (what is embedded is the context, a blank line, and the text),
    ``metadata`` (everything else that the node carries).
    """
    lines = sorted(_exported(store.all_with_text()), key=lambda line: (line["document"], line["place"], line["id"]))
    return [{key: value for key, value in line.items() if key != "place"} for line in lines]


def export(nodes: Sequence[dict[str, Any]], target: IO[str]) -> int:
    """Write nodes as one JSON object a line; returns how many."""
    for node in nodes:
        target.write(json.dumps(node, ensure_ascii=False) + "\n")
    return len(nodes)


def _exported(stored: Iterable[tuple[Stored, str]]) -> Iterator[dict[str, Any]]:
    for item, text in stored:
        metadata = dict(to_node(item, text).metadata)
        context = names.context_of(metadata)
        metadata.pop(own if (own := names.own_name(names.CONTEXT)) in metadata else names.CONTEXT, None)
        place = names.value_of(metadata, names.START_LINE)
        yield {
            "id": item.id,
            "document": item.entry,
            "text": text,
            "context": context,
            "metadata": metadata,
            "place": place if isinstance(place, int) else 0,
        }
