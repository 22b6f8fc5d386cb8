"""Operations pack: dashboards, rules, alerts with tests and runbooks, all generated from tables in this package.

`pack.files` generates everything for any graphs; `dashboards/` at the top of the repository is its output for the
shipped ones. Running agents never import this package, and nothing in it counts. It has the names of metrics as text;
tests/dashboards compares them with `telemetry.catalogue` and with a live scrape.

**Add a metric, an alert or a panel**, in one commit. A metric that has neither alert nor panel is a row of `UNUSED` in
tests/dashboards/test_drift.py, with its reason.

1. Metric: a row of `telemetry/catalogue.py` with name, kind, labels, buckets, help and the facts that feed it. The
   fact carries the number. `telemetry/metrics.py` has its handler, which uses cached children, because it runs for
   each transition. Values that are read at a scrape or from a journal are rows of the same table. Labels are
   closed sets, never an id or text. Every series exists at 0 from construction.
2. Alert: a row of `ops/alert.py` with severity, summary, description, `wait` or `keep`, and the least traffic if it
   compares rates; its numbers are in `ops/rule.py`. `ops/trial.py` has at least one case in which it fires and one
   in which it is silent: tests/dashboards/test_rules.py requires that they detect each mutation of the rule. A counter
   that its first event creates needs a case for that, because `increase()` does not see a first value.
3. Runbook: `ops/files/runbooks/<AlertName>.md` with the headings of the others, three queries, one `jq` program that
   needs no DEBUG line, and commands under Mitigate.
4. Panel: a row of `ops/operations.py` or `run_flow.py`. Its description states the action if it moves.
5. `make accept`, then `make dashboards`. The live test makes the alert fire with a switch of
   tests/dashboards/agent_host.py, and every panel has data there. An alert that cannot fire there is a row of
   `NOT_SHOWN` in tests/dashboards/test_live.py, with its reason.
"""
