"""No test of a provider opens a socket but to the endpoints it configured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.providers.endpoint import GUARD, Guard


@pytest.fixture(autouse=True)
def guard(request: pytest.FixtureRequest) -> Iterator[Guard]:
    """Servers of MCP are processes that choose their ports themselves: their tests may connect to this machine."""
    with GUARD.watching(local=request.path.name.startswith("test_mcp")):
        yield GUARD
