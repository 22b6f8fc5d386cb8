"""Metrics, health and debug pages over HTTP, and what a batch job leaves behind for a scrape.

    with serve_metrics(port=9464):                          # a server of our own, on this machine only
        asyncio.run(main())

    app.mount("/ops", asgi_app(token=os.environ["METRICS_TOKEN"]))      # inside a host's own server

Nothing here starts at import, and nothing listens unless it is asked to. Every way of serving has the same pages:

| page | who may see it | what it says |
|---|---|---|
| /metrics (also / ) | everybody; with `token`, its bearers | Prometheus text or OpenMetrics, gzip where asked for |
| /healthz | everybody | 200 while the event loop moves (or, without a heartbeat, while the process answers), else 503 |
| /readyz | everybody | 200 while every check says yes, else 503; without checks, 200 |
| /debug/runs | this machine, or bearers of `token` | live runs as JSON, the longest in their state first |
| /debug/stacks | this machine, or bearers of `token` | where tasks and threads stand; no values of variables |

What readiness needs is yours to say: `serve_metrics(ready={"journal": answers(journal), "disk": writable("runs.db")})`.

TLS belongs in front: the host's ASGI server, or a sidecar. prometheus_client's own TLS server is blocked by one client
that connects and never shakes hands.

**Multiprocess mode** (`PROMETHEUS_MULTIPROC_DIR`) is degraded, by what prometheus_client does: counters and histograms
are summed over the processes, and that is all. There are no live gauges, no build, machine or state info, no process
metrics and no exemplars; a scrape costs several times as much. The variable must be set before the first import of
prometheus_client, and the folder emptied at each start. Prefer one port for each process: Prometheus adds up.
"""

from orchestrator.telemetry.exposition.asgi import asgi_app as asgi_app
from orchestrator.telemetry.exposition.batch import Batch as Batch
from orchestrator.telemetry.exposition.debug import LiveSource as LiveSource
from orchestrator.telemetry.exposition.health import answers as answers
from orchestrator.telemetry.exposition.health import writable as writable
from orchestrator.telemetry.exposition.page import Pages as Pages
from orchestrator.telemetry.exposition.server import MetricsServer as MetricsServer
from orchestrator.telemetry.exposition.server import serve_metrics as serve_metrics
from orchestrator.telemetry.exposition.wsgi import wsgi_app as wsgi_app
