"""A web service of durable runs: start, follow with server-sent events, answer, cancel, read the result.

    python -m orchestrator.examples.service              # one process, a SQLite file; it prints its token
    uvicorn orchestrator.examples.service:app --workers 4                       # ORCHESTRATOR_JOURNAL=postgresql://…
    gunicorn -k uvicorn_worker.UvicornWorker -w 4 orchestrator.examples.service:app

Copy this folder and replace `support` by your agent. Each request needs a token of `SERVICE_TOKEN`, whose person is the
name beside an answer in the journal; `create_app(actor=…)` takes your own authentication. The service answers to known
host names only, and an approval names the digest of the call that the person saw.

Each worker process has an engine on the same journal. A run is stored before its start is answered, and any worker
resumes it if its own worker dies. So every request works in every worker, and a client needs no session affinity. Use
one worker with a SQLite file, and any number, on any number of machines, with PostgreSQL.

When a server gets SIGTERM, it waits for its open connections, and only then leaves the lifespan of the application. A
stream of events stays open as long as its run, so the server would wait for people who are asked questions.
`announced_stop` (`run_server.py`) therefore ends the streams at the signal and then calls the handler of the server.
The clients reconnect with `Last-Event-ID` to another worker, or to the next process. Afterwards the engine drains. The
alternative, `uvicorn --timeout-graceful-shutdown`, needs an option of each server, waits for that time at every stop,
and logs the streams as errors.
"""

from __future__ import annotations

from orchestrator.errors import MissingExtra

try:
    import fastapi  # noqa: F401
except ImportError as error:
    raise MissingExtra("FastAPI", "service") from error

from orchestrator.examples.service.application import create_app as create_app

app = create_app()
