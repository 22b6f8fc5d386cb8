"""One client for each event loop: connections cannot be used from another loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

ClientT = TypeVar("ClientT")


class LoopClients(Generic[ClientT]):
    """Clients by event loop. Each is closed with its loop, or earlier by `aclose`.

    Args:
        new: Returns a new client.
        close: Closes one.
        spare: The client of the first loop, if it exists already.
    """

    def __init__(
        self,
        new: Callable[[], ClientT],
        close: Callable[[ClientT], Awaitable[object]],
        spare: ClientT | None = None,
    ) -> None:
        self._new = new
        self._close = close
        self._spare = spare
        self._own: dict[asyncio.AbstractEventLoop, _Own[ClientT]] = {}

    async def get(self) -> ClientT:
        """Return the client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._own:
            for over in [one for one in self._own if one.is_closed()]:
                del self._own[over]
            client, self._spare = self._spare or self._new(), None
            self._own[loop] = _Own(client, self._kept(client))
            await anext(self._own[loop].lifetime)
        return self._own[loop].client

    async def aclose(self) -> None:
        """Close the client of the running loop; a later `get` opens a new one."""
        if (own := self._own.pop(asyncio.get_running_loop(), None)) is not None:
            await own.lifetime.aclose()

    def __len__(self) -> int:
        return len(self._own)

    async def _kept(self, client: ClientT) -> AsyncGenerator[None, None]:
        """Keep a client open until the generator is closed: by us, or by the loop, which closes its generators."""
        try:
            yield
        finally:
            await self._close(client)


class _Own(NamedTuple, Generic[ClientT]):
    """The client of a loop, and the generator that closes it."""

    client: ClientT
    lifetime: AsyncGenerator[None, None]
