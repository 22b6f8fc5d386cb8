"""What an SRE gets on day one: dashboards, rules, alerts with tests and runbooks, all made from tables in here.

`pack.files` puts everything together for any graphs; `dashboards/` at the top of the repository is its output for
the shipped ones. Nothing in here is imported when agents run, and nothing counts: names of metrics stand here as
text, and tests/dashboards holds them against `telemetry.catalogue` and against a live scrape.
"""
