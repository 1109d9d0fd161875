"""Skip tests that compare with what LlamaIndex does only from some version on."""

from importlib.metadata import version

import pytest
from packaging.version import Version

CORE = Version(version("llama-index-core"))


def needs_core(lowest: str, reason: str) -> pytest.MarkDecorator:
    """Return the mark of a test that skips it on versions of llama-index-core below `lowest`."""
    return pytest.mark.skipif(
        Version(lowest) > CORE, reason=f"llama-index-core {CORE} is below {lowest}: {reason}"
    )
