"""Serve metrics, health and debug pages over HTTP, and store the results of batch jobs for a scrape.

    with serve_metrics(port=9464):                          # a server of our own, on this host only
        asyncio.run(main())

    app.mount("/ops", asgi_app(token=os.environ["METRICS_TOKEN"]))      # inside a host's own server

An import starts nothing, and nothing listens without a call. Every server has the same pages:

| page | access | content |
|---|---|---|
| /metrics (also / ) | all; with `token`, its bearers | Prometheus text or OpenMetrics, gzip on request |
| /healthz | all | 200 while the event loop moves (or, without a heartbeat, while the process answers), else 503 |
| /readyz | all | 200 while every check succeeds, else 503; without checks, 200 |
| /debug/runs | this host, or bearers of `token` | live runs as JSON, the longest in their state first |
| /debug/stacks | this host, or bearers of `token` | stacks of tasks and threads; no values of variables |

The host defines readiness: `serve_metrics(ready={"journal": answers(journal), "disk": writable("runs.db")})`.

Terminate TLS in front of it: in the host's ASGI server, or a sidecar. One client that connects and never completes
the handshake blocks prometheus_client's own TLS server.

**Multiprocess mode** (`PROMETHEUS_MULTIPROC_DIR`): counters and histograms of all workers are summed; live gauges,
limits and versions are written to the folder each second and combined (`telemetry/metrics.py`). There are no
process metrics and no exemplars, and a scrape costs several times as much. Set the variable before the first import of
prometheus_client, empty the folder at each start, and call `prometheus_client.multiprocess.mark_process_dead(pid)` when
a worker ends. One port for each process is better: Prometheus adds up. Several workers behind one port without that
mode are named in the log once: each scrape shows another one.
"""

from orchestrator.telemetry.exposition.page import LiveSource as LiveSource
from orchestrator.telemetry.exposition.page import Pages as Pages
from orchestrator.telemetry.exposition.page import answers as answers
from orchestrator.telemetry.exposition.page import writable as writable
from orchestrator.telemetry.exposition.server import MetricsServer as MetricsServer
from orchestrator.telemetry.exposition.server import asgi_app as asgi_app
from orchestrator.telemetry.exposition.server import serve_metrics as serve_metrics
from orchestrator.telemetry.exposition.server import wsgi_app as wsgi_app
from orchestrator.telemetry.exposition.stored import Batch as Batch
