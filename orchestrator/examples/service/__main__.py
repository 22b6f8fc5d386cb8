"""Serve the application with uvicorn: `python -m orchestrator.examples.service`."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import tempfile

import uvicorn

from orchestrator.errors import ConfigError
from orchestrator.examples.service.application import PREFIX
from orchestrator.examples.service.run_server import tokens_of
from orchestrator.examples.terminal import say
from orchestrator.web.access import is_loopback
from orchestrator.web.server import uvicorn_options


def main(app: str = "orchestrator.examples.service:app", prefix: str = PREFIX) -> None:
    """Serve the application with uvicorn until SIGTERM or SIGINT.

    The tokens are those of the environment variable `<prefix>_TOKEN`. Without it, one is made for this start and
    printed, at an address of this machine only; another address is refused.
    """
    parser = argparse.ArgumentParser(description="A web service of durable runs.")
    parser.add_argument("--host", default="127.0.0.1", help="another one than this machine needs a token")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--allow-host", metavar="NAME", action="append", default=[], help="another host name; repeatable"
    )
    parser.add_argument(
        "--proxy-headers",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="address or network of a proxy whose X-Forwarded-For and X-Forwarded-Proto are believed; repeatable",
    )
    options = parser.parse_args()
    try:
        serving = uvicorn_options(options.proxy_headers)
        if os.environ.get(f"{prefix}_TOKEN", "").strip():
            tokens_of(prefix)
        elif is_loopback(options.host):
            os.environ[f"{prefix}_TOKEN"] = token = secrets.token_urlsafe(32)
            say(f"the token of this start is {token}; {prefix}_TOKEN sets another one")
        else:
            parser.error(f"--host {options.host} is not this machine only: set {prefix}_TOKEN")
    except ConfigError as error:
        parser.error(str(error))
    names = (os.environ.get(f"{prefix}_HOSTS", ""), options.host, *options.allow_host)
    os.environ[f"{prefix}_HOSTS"] = ",".join(name for name in names if name)
    # uvicorn sends itself the signal again after it has stopped. A handler makes that exit code 0.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with tempfile.TemporaryDirectory() as folder:
        if options.workers > 1:  # each scrape adds up the workers
            os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", folder)
        uvicorn.run(app, host=options.host, port=options.port, workers=options.workers, **serving)


if __name__ == "__main__":
    main()
