"""The TLS context that the clients of a process share: loading the certificates is nearly all that a new client costs.

They may share it, because a connection sets only its protocols in it, and all clients speak HTTP/1.1.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import ssl

_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that name the certificates."""


def shared_context(client: type) -> ssl.SSLContext:
    """Return the context of a class of clients: `AsyncClient` of httpx or httpx2, or a subclass.

    The certificates are loaded again if one of the variables changes, but not if a file changes.
    """
    library = next(kind.__module__ for kind in client.__mro__ if kind.__name__ == "AsyncClient")
    return _context(library.partition(".")[0], *map(os.environ.get, _VARIABLES))


@lru_cache(maxsize=4)
def _context(library: str, *variables: str | None) -> ssl.SSLContext:
    del variables  # the library reads them
    return cast("ssl.SSLContext", import_module(library).create_ssl_context())
