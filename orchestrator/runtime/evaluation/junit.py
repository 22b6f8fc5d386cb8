"""The report of an evaluation as JUnit XML, for the test pages of CI servers: one test case for each repetition."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, tostring

from orchestrator.runtime.evaluation.report import CaseResult, EvaluationReport
from orchestrator.telemetry.escape import escape


def junit_xml(report: EvaluationReport) -> str:
    """Return the report as an XML document. Characters that XML cannot have are escaped."""
    failures = sum(one.status == "failed" for one in report.results)
    errors = sum(one.status == "error" for one in report.results)
    counts = {
        "tests": str(len(report.results) + len(report.not_run)),
        "failures": str(failures),
        "errors": str(errors),
        "skipped": str(len(report.not_run)),
        "time": f"{report.usage.seconds:.3f}",
    }
    root = Element("testsuites", {"name": escape(report.name), **counts})
    suite = SubElement(root, "testsuite", {"name": escape(report.name), **counts})
    about = {"evaluation": report.evaluation_id, "agent": report.agent, "agent_version": report.agent_version}
    _properties(suite, about)
    for result in report.results:
        _add_result(suite, report, result)
    for name in report.not_run:
        case = SubElement(
            suite, "testcase", {"name": escape(name), "classname": escape(report.name), "time": "0.000"}
        )
        SubElement(case, "skipped", {"message": escape(report.stopped)})
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _add_result(suite: Element, report: EvaluationReport, result: CaseResult) -> None:
    several = len(report.cases[result.case].results) > 1
    name = f"{result.case} [{result.repetition}]" if several else result.case
    named = {"name": escape(name), "classname": escape(report.name), "time": f"{result.usage.seconds:.3f}"}
    case = SubElement(suite, "testcase", named)
    usage = result.usage
    _properties(
        case,
        {
            "run": result.run_id,
            "outcome": result.outcome,
            "requests": str(usage.requests),
            "tokens": str(usage.tokens),
            "cost": "" if usage.cost is None else f"{usage.cost:g}",
        },
    )
    if result.status == "passed":
        return
    lines = [result.error] if result.error else [f"{check.name}: {check.why}" for check in result.faults]
    fault = SubElement(
        case,
        "error" if result.status == "error" else "failure",
        {"message": escape(lines[0]), "type": result.outcome or "error"},
    )
    fault.text = escape("\n".join(lines))


def _properties(parent: Element, values: dict[str, str]) -> None:
    properties = SubElement(parent, "properties")
    for name, value in values.items():
        if value:
            SubElement(properties, "property", {"name": name, "value": escape(value)})
