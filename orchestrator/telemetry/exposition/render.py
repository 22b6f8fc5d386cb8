"""Render a registry as bytes, in the format that the scraper requests."""

from __future__ import annotations

import gzip
import logging
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from orchestrator.telemetry.child import MULTIPROCESS, check_multiprocess_folder

_HEADER = re.compile(r"[\w.*/+;=,:\" -]{0,1000}", re.ASCII)
"""Accepted form of a header that chooses a format; parts of it are returned in the answer's content type."""


def is_one_of_several() -> bool:
    """Return whether WEB_CONCURRENCY names several workers, or this process is the second one of its parent.

    uvicorn does not tell its workers how many they are, but multiprocessing, by which it starts them, numbers them. The
    answer is true in the second one only, so a log has one warning. With `--reload` uvicorn replaces a single process,
    and its number grows.
    """
    if multiprocessing.parent_process() is None:
        return os.environ.get("WEB_CONCURRENCY", "1") not in {"", "0", "1"}
    return multiprocessing.current_process().name.endswith("Process-2") and "--reload" not in sys.argv


def warn_of_workers() -> None:
    """Log once that a page of several workers shows only one of them, if they have no folder in common."""
    if os.environ.get(MULTIPROCESS) or _warned:
        return
    _warned.append(True)
    logging.getLogger("orchestrator").warning(
        "several workers share this port, and each scrape shows another one: set %s to an empty folder, or give each "
        "worker a port of its own",
        MULTIPROCESS,
    )


_warned: list[bool] = []


class RenderedScrape(NamedTuple):
    """A rendered scrape. `zipped`: the body is compressed by gzip."""

    body: bytes
    content_type: str
    zipped: bool


def rendered(
    registry: CollectorRegistry | None, accept: str = "", encoding: str = "", names: Sequence[str] = ()
) -> RenderedScrape:
    """Render a registry; None is the default one, or in multiprocess mode that of all processes.

    `accept` and `encoding` are the headers of those names; `names` are the requested samples, none for all. Raises
    the errors of a collector.
    """
    source = registry if registry is not None else _default()
    encode, content_type = _encoder(accept)
    body: bytes = encode(source.restricted_registry(names) if names else source)
    if gzip_accepted(encoding):
        return RenderedScrape(gzip.compress(body, compresslevel=5), content_type, zipped=True)
    return RenderedScrape(body, content_type, zipped=False)


def _encoder(accept: str) -> tuple[Callable[[Any], bytes], str]:
    try:
        return choose_encoder(accept if _HEADER.fullmatch(accept) else "")
    except (TypeError, ValueError):  # an invalid version
        return choose_encoder("")


def _default() -> CollectorRegistry:
    if not os.environ.get(MULTIPROCESS):
        return prometheus_client.REGISTRY
    from prometheus_client import multiprocess

    check_multiprocess_folder()
    # A new one for each scrape: its collector reads the files of all processes.
    shared = CollectorRegistry(support_collectors_without_names=True)
    multiprocess.MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
    return shared
