"""Documents without a file: they are kept with what was paid for, so that they outlive an index and its settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from llama_index.core.schema import Document

from llama_index_contextual.app.folder.sources import Source, SourceContent
from llama_index_contextual.app.store.paid import DOCUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from llama_index_contextual.app.index.settings import IndexSettings
    from llama_index_contextual.app.store.paid import PaidStore
    from llama_index_contextual.app.store.schema import DocumentRow


def missing_documents(settings: IndexSettings, indexed: Mapping[str, DocumentRow], files: set[str]) -> list[Source]:
    """Documents that were given by hand and are not indexed, as after the loss of an index, or with other settings."""
    paid, made_with = settings.paid, settings.made_with
    keys = paid.keys(DOCUMENTS)
    for key in keys & files:  # a file of the folder has taken its place
        paid.delete(key, DOCUMENTS)
    stale = {
        key
        for key in keys - files
        if (one := indexed.get(key)) is None
        or not one.sha256
        or (settings.reindex != "ignore" and one.made_with != made_with(key))
    }
    sources = []
    for key, value in sorted(paid.get_many(stale, DOCUMENTS).items()) if stale else ():
        documents = [Document.model_validate(one) for one in value["documents"]]
        load = partial(SourceContent, documents, value["sha256"], value["size"])
        sources.append(Source(key, value["sha256"], "document", load))
    return sources


def keep_documents(paid: PaidStore, group: Iterable[tuple[Source, SourceContent, Any]]) -> None:
    """Keep those of some sources that no file has."""
    contents = {
        source.id: {
            "documents": [document.model_dump(mode="json") for document in content.documents],
            "sha256": content.sha256,
            "size": content.size,
        }
        for source, content, _ in group
        if source.kind == "document"
    }
    if contents:
        paid.write(contents, DOCUMENTS)
