"""Serve the application with uvicorn: `python -m orchestrator.examples.service`."""

from __future__ import annotations

import argparse
import os
import signal
import tempfile

import uvicorn


def main(app: str = "orchestrator.examples.service:app") -> None:
    """Serve the application with uvicorn until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="A web service of durable runs.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    # uvicorn sends itself the signal again after it has stopped. A handler makes that exit code 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with tempfile.TemporaryDirectory() as folder:
        if options.workers > 1:  # each scrape adds up the workers
            os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        uvicorn.run(app, ws="none", **vars(options))


if __name__ == "__main__":
    main()
