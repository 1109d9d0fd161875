"""Indexes in the tests' own data directory."""

import shutil

from llama_index_contextual.app.index.storage import content_file, default_storage


def storage_of(folder):
    """Return the place of the index of a folder."""
    return default_storage(folder)


def copy_indexed(folder, target):
    """Copy a folder with its index."""
    shutil.copytree(folder, target)
    shutil.copytree(storage_of(folder), storage_of(target))
    return target


__all__ = ["content_file", "copy_indexed", "storage_of"]
