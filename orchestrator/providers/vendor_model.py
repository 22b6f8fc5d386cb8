"""Common base of the models behind a vendor's library: their checks, the life of their clients, masked secrets."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

from pydantic import SecretStr

from orchestrator.errors import LLMError
from orchestrator.llm.content_part import KINDS, PartKind
from orchestrator.llm.message import Request, Response
from orchestrator.providers.history import PLAIN_ID, repaired
from orchestrator.providers.loop_client import LoopClients
from orchestrator.providers.readable_part import refuse_unreadable
from orchestrator.providers.reading import is_reported, storable
from orchestrator.providers.secret_mask import SecretMask, secrets_of_environment


class VendorModel(ABC):
    """A model. Each event loop has its own client, closed with the loop; `aclose()` closes it earlier."""

    model: str
    reads: tuple[PartKind, ...] = KINDS
    """Kinds of content parts that the model reads."""
    call_id: re.Pattern[str] = PLAIN_ID
    """Ids of calls that the vendor accepts."""
    total_timeout: float | None = None
    """Seconds that one request may take in all; None leaves it to the run."""
    _key: SecretStr
    _clients: LoopClients[Any]

    @abstractmethod
    def check_params(self, params: Mapping[str, Any]) -> None:
        """Raise ConfigError for a parameter that the model does not have."""

    @abstractmethod
    async def _answered(self, request: Request) -> Response:
        """Answer one request. Raises LLMError, ConfigError."""

    async def complete(self, request: Request) -> Response:
        """Answer one request; stream the pieces if it has an `on_delta`. Raises LLMError, ConfigError."""
        refuse_unreadable(self.model, self.reads, request.messages)
        self.check_params(request.params)
        offered = [offer.name for offer in request.tools]
        request = replace(request, messages=repaired(request.messages, offered, self.call_id))
        try:
            async with asyncio.timeout(self.total_timeout) as limit:
                response = storable(await self._answered(request))
        except TimeoutError as error:
            if not limit.expired():
                raise
            why = f"model {self.model!r} gave no answer within {self.total_timeout:g} s in all"
            raise LLMError(why, kind="timeout") from error
        except LLMError as error:  # from every source: servers repeat the key in answers of any status
            self._mask.mask(error)
            raise
        return response if is_reported(response) else replace(response, usage=None)

    def _secrets(self) -> Iterator[str]:
        """Yield the secrets that an error of the server may repeat."""
        yield self._key.get_secret_value()
        yield from secrets_of_environment()  # where a library found a key by itself

    @cached_property
    def _mask(self) -> SecretMask:
        return SecretMask(self._secrets())

    async def aclose(self) -> None:
        """Close the client of the running loop. The model stays usable: a new request opens a new one."""
        await self._clients.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.aclose()
