"""Times, sizes and numbers of attempts that operators plan with. A change of one belongs in the changelog."""

from __future__ import annotations

import importlib

FIGURES: dict[str, dict[str, float]] = {
    "orchestrator.kernel.clock": {
        "GRACE": 5.0,
        "WHOLE": 6755399441055744.0,
        "CALL_SHARE": 0.9,
    },
    "orchestrator.kernel.journal": {
        "RECORD_SCHEMA": 1,
    },
    "orchestrator.kernel.writer": {
        "DOUBT": 0.5,
    },
    "orchestrator.engines.local_engine": {
        "SETTLE": 5.0,
        "HURRY": 10.0,
    },
    "orchestrator.engines.orphan_recovery": {
        "POLL": 0.25,
        "AGAIN": 15.0,
        "LOOK": 1.0,
    },
    "orchestrator.engines.procrastinate": {
        "HEARTBEAT": 1.0,
        "STALLED": 5.0,
    },
    "orchestrator.engines.engine_directory": {
        "POLL": 0.15,
        "NOTIFY_SECONDS": 5.0,
        "ANSWERS_WITHIN": 2.0,
    },
    "orchestrator.engines.worker": {
        "BEAT": 1.0,
        "TWIN": 12.0,
        "RETURN": 0.5,
    },
    "orchestrator.runtime.approval.workspace": {
        "OUTPUT_BYTES": 65536,
        "GRACE": 5.0,
        "MOST_FILES": 2000,
    },
    "orchestrator.runtime.approval.status": {
        "POLL": 0.1,
    },
    "orchestrator.runtime.approval.plan_file": {
        "MOST_BYTES": 4194304,
    },
    "orchestrator.runtime.approval.planner": {
        "REQUEST_SECONDS": 120.0,
        "RESERVE": 4000,
        "SOFT_SHARE": 0.8,
        "CONNECT_SECONDS": 5.0,
    },
    "orchestrator.runtime.approval.project_journal": {
        "SCHEMA": 1,
    },
    "orchestrator.runtime.approval.rate_limiter": {
        "MINUTE": 60.0,
    },
    "orchestrator.runtime.llm_loop.agent_tool": {
        "MAX_DEPTH": 8,
    },
    "orchestrator.runtime.pipeline.orchestration": {
        "VERSION": 1,
    },
    "orchestrator.runtime.ralph.coding_agent": {
        "TRY_AGAIN": 75,
    },
    "orchestrator.runtime.service.arguments": {
        "LONGEST_ID": 256,
        "METADATA_BYTES": 16384,
        "MOST_TAGS": 32,
        "LONGEST_TAG": 256,
        "LONGEST_NAME": 100,
    },
    "orchestrator.runtime.service.inbox": {
        "POLL": 0.1,
    },
    "orchestrator.runtime.service.recovery": {
        "MOST_CLAIMS": 5,
    },
    "orchestrator.runtime.service.run_feed": {
        "FINE": 256,
        "KEPT": 10000,
    },
    "orchestrator.runtime.service.program": {
        "GRACE": 5.0,
    },
    "orchestrator.runtime.backtest.backtest": {
        "PAGE": 200,
    },
    "orchestrator.runtime.evaluation.evaluation": {
        "CONCURRENCY": 4,
    },
    "orchestrator.runtime.evaluation.check": {
        "JUDGE_SECONDS": 120.0,
    },
    "orchestrator.runtime.llm_loop.run_options": {
        "FUNCTION_SECONDS": 30.0,
    },
    "orchestrator.runtime.runs.event_reader": {
        "NEARLY": 0.8,
    },
    "orchestrator.runtime.runs.runs": {
        "POLL": 0.1,
    },
    "orchestrator.runtime.runs.listing": {
        "LAST_RUNS": 100,
    },
    "orchestrator.runtime.runs.story": {
        "LONGEST_CYCLE": 12,
    },
    "orchestrator.telemetry.log": {
        "MOST_FRAMES": 10,
    },
    "orchestrator.telemetry.exposition.page": {
        "MOST_RUNS": 1000,
        "STALE": 5.0,
    },
    "orchestrator.telemetry.exposition.server": {
        "PORT": 9464,
        "MOST": 32,
        "LONGEST": 10.0,
    },
    "orchestrator.telemetry.instrument": {
        "MOST_DEFINITIONS": 4,
        "MOST_LEFT": 1000,
        "MOST_NOTED": 500,
    },
    "orchestrator.telemetry.metrics": {
        "PERIOD": 1.0,
    },
    "orchestrator.journal.codec": {
        "LONGEST": 200,
    },
    "orchestrator.journal.opening": {
        "OPENING": 3.0,
    },
    "orchestrator.journal.postgres": {
        "LOOK_AGAIN": 0.1,
    },
    "orchestrator.journal.postgres.presence": {
        "BEATS": 4,
        "SLOWEST_BEAT": 1.0,
        "GRACE": 2.5,
    },
    "orchestrator.journal.postgres.session": {
        "VERSION": 4,
        "OLDEST_SERVER": 140000,
    },
    "orchestrator.journal.postgres.writer": {
        "BLOBS": 1179864418,
        "SOON": 0.5,
    },
    "orchestrator.journal.run_query": {
        "PAGE": 200,
    },
    "orchestrator.journal.sqlite": {
        "OPERATOR_PAGES": 100,
    },
    "orchestrator.journal.sqlite.high_water": {
        "SECTOR": 512,
        "REMOVED": -1,
    },
    "orchestrator.journal.sqlite.owner": {
        "TTL": 10.0,
        "LEAST_TTL": 1.0,
        "BEATS": 4,
    },
    "orchestrator.journal.sqlite.place": {
        "SIZE": 8388608,
        "GRANT": 1048576,
        "ROOM": 262144,
        "EVERY": 2.5,
    },
    "orchestrator.journal.sqlite.schema": {
        "BIG": 1048576,
        "VERSION": 3,
        "APPLICATION": 1179864431,
        "OLDEST": 1,
        "INCREMENTAL": 2,
        "SHIFT": 32,
    },
    "orchestrator.journal.sqlite.upgrade": {
        "PATIENCE": 60.0,
    },
    "orchestrator.journal.sqlite.writer": {
        "CHECKPOINT_PAGES": 1000,
    },
    "orchestrator.journal.durable": {
        "ENOUGH": 64,
    },
    "orchestrator_guards.approval": {
        "DIGEST_VERSION": 2,
        "LEAST": 8,
    },
    "orchestrator_guards.money": {
        "MICRO_UNITS": 1000000,
    },
    "orchestrator_guards.progress": {
        "WINDOW": 16,
        "MAX_PERIOD": 8,
        "POLL_PATIENCE": 10,
        "CHANGE_PATIENCE": 2,
        "CANONICAL_ARGUMENTS": 2048,
        "CANONICAL_RESULT": 256,
    },
}
"""Module -> its constants. Times are seconds."""


def test_a_figure_is_what_it_was() -> None:
    found = {module: vars(importlib.import_module(module)) for module in FIGURES}
    assert {module: {name: found[module][name] for name in FIGURES[module]} for module in FIGURES} == FIGURES


def test_several_signs_of_life_may_be_lost_before_a_worker_counts_as_dead() -> None:
    figures = FIGURES["orchestrator.engines.procrastinate"]
    assert figures["STALLED"] >= 5 * figures["HEARTBEAT"]
