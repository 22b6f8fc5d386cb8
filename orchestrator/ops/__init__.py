"""Operations pack: dashboards, rules, alerts with tests and runbooks, all generated from tables in this package.

`pack.files` generates everything for any graphs; `dashboards/` at the top of the repository is its output for the
shipped ones. Running agents never import this package, and nothing in it counts. It has the names of metrics as text;
tests/dashboards compares them with `telemetry.catalogue` and with a live scrape.
"""
