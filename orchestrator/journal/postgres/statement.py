"""The statements that write. Each is one transaction, so that no process can stop in the middle of one.

A process that freezes between two statements of a transaction keeps its locked rows from the next owner. With a
single statement the server has all of it, or nothing.
"""

# ruff: noqa: S608  the only text that is put into statements is our own

from __future__ import annotations

from typing import Final

from orchestrator.journal.postgres.presence import LIVING, LOCKED

BLOBS: Final = 0x46534D62
"""`FSMb`: advisory lock, shared by processes that add blobs, exclusive for the removal of unnamed ones."""

CREATE: Final = """WITH made AS (
    INSERT INTO run(run_id, graph, fingerprint, created_at, parent_run_id, conversation_id, agent, agent_version, tags,
        epoch, seq, last_hash, progress, status, reason, updated_at, owner, holder, tokens, cost,
        child_tokens, child_cost)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, 1, 0, %b, 1, %s, '', extract(epoch FROM clock_timestamp()), %s, %s,
        %s::bigint, %s::bigint, %s::bigint, %s::bigint)
    ON CONFLICT (run_id) DO NOTHING RETURNING id),
tagged AS (
    INSERT INTO run_tag(name, value, run) SELECT t.name, t.value, made.id
    FROM made, unnest(%s::text[], %s::text[]) AS t(name, value)),
added AS (
    INSERT INTO record(run, seq, epoch, kind, body, hash) SELECT id, 0, 1, 'created', %b, %b FROM made)
SELECT id FROM made"""

_REQUESTED: Final = """WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %b::bytea[], %s::bigint[], %b::bytea[],
        %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::float8[], %s::bigint[], %s::bigint[],
        %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::boolean[])
    WITH ORDINALITY AS w(run_id, epoch, was_seq, was_hash, seq, last_hash,
        status, reason, outcome, waiting, state, state_since, tokens, cost, child_tokens, child_cost,
        fingerprint, agent, agent_version, progress, part)),
moved AS (
    UPDATE run SET seq = w.seq, last_hash = w.last_hash, status = w.status, reason = w.reason,
        outcome = w.outcome, waiting = w.waiting,
        state = coalesce(w.state, run.state), state_since = coalesce(w.state_since, run.state_since),
        tokens = coalesce(w.tokens, run.tokens),
        cost = CASE WHEN w.tokens IS NULL THEN run.cost ELSE w.cost END,
        child_tokens = coalesce(w.child_tokens, run.child_tokens),
        child_cost = CASE WHEN w.child_tokens IS NULL THEN run.child_cost ELSE w.child_cost END,
        fingerprint = coalesce(w.fingerprint, run.fingerprint), agent = coalesce(w.agent, run.agent),
        agent_version = coalesce(w.agent_version, run.agent_version),
        progress = CASE WHEN w.progress THEN w.epoch ELSE run.progress END,
        updated_at = extract(epoch FROM clock_timestamp())
    FROM wanted w
    WHERE run.run_id = w.run_id AND run.epoch = w.epoch AND run.seq = w.was_seq AND run.last_hash = w.was_hash
    RETURNING run.id, w.part),
added AS (
    INSERT INTO record(run, seq, epoch, kind, body, hash)
    SELECT moved.id, r.seq, r.epoch, r.kind, r.body, r.hash
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %b::bytea[], %b::bytea[])
        AS r(part, seq, epoch, kind, body, hash)
    JOIN moved ON moved.part = r.part)"""

APPEND: Final = f"""{_REQUESTED}
SELECT part FROM moved"""
"""The fence: a writer that did not make the last claim, or does not know the last record, moves nothing."""

# The lock is taken before a blob is: a process that removes unnamed blobs waits for us, or we find them gone.
APPEND_BLOBS: Final = f"""{_REQUESTED},
gate AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared({BLOBS}) AS passed),
named AS MATERIALIZED (
    SELECT moved.id, b.digest, b.content
    FROM gate, unnest(%s::bigint[], %b::bytea[], %b::bytea[]) AS b(part, digest, content)
    JOIN moved ON moved.part = b.part WHERE gate.passed IS NOT NULL),
kept AS (
    INSERT INTO blob(digest, content) SELECT DISTINCT ON (digest) digest, content FROM named
    ON CONFLICT DO NOTHING),
used AS (
    INSERT INTO blob_use(run, digest) SELECT DISTINCT id, digest FROM named ON CONFLICT DO NOTHING)
SELECT part FROM moved"""

STANDS: Final = """SELECT w.part, run.epoch, run.seq, run.last_hash, record.hash
    FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS w(run_id, seq, part)
    JOIN run ON run.run_id = w.run_id LEFT JOIN record ON record.run = run.id AND record.seq = w.seq"""
"""The position of runs, and the row at the intended last number."""

OWNED: Final = f"""SELECT run.epoch, run.seq, run.last_hash, run.owner, run.holder,
    coalesce((SELECT {LIVING} FROM holder h WHERE h.token = run.holder), false),
    coalesce((SELECT {LOCKED} FROM holder h WHERE h.token = run.holder), false), run.id
    FROM run WHERE run_id = %s"""
CLAIM: Final = """UPDATE run SET epoch = epoch + 1, owner = %s, holder = %s WHERE run_id = %s AND epoch = %s
    AND holder IS NOT DISTINCT FROM %s RETURNING epoch, seq, last_hash"""
RELEASE: Final = "UPDATE run SET owner = NULL, holder = NULL WHERE run_id = %s AND epoch = %s"

# The row of meta is locked until the commit: positions become visible in order, and no reader skips a gap.
POST: Final = """WITH counted AS (
    UPDATE run SET requests = requests + 1
    WHERE run_id = %s AND NOT EXISTS (SELECT FROM request q WHERE q.run = run.id AND q.id = %s)
    RETURNING id, requests),
told AS (UPDATE meta SET news = news + 1 WHERE EXISTS (SELECT FROM counted) RETURNING news),
posted AS (
    INSERT INTO request(run, number, id, kind, body, by, at)
    SELECT counted.id, counted.requests, %s, %s, %b, %s, %s FROM counted),
placed AS (
    INSERT INTO news(run, position) SELECT counted.id, told.news FROM counted, told
    ON CONFLICT (run) DO UPDATE SET position = excluded.position)
SELECT requests FROM counted"""
POSTED: Final = """SELECT q.kind, q.body, q.by, q.at FROM run LEFT JOIN request q ON q.run = run.id AND q.id = %s
    WHERE run.run_id = %s"""

PRUNABLE: Final = f"""SELECT id, epoch, seq FROM run WHERE status = 'ended'
    AND (%s::float8 IS NULL OR updated_at < %s::float8)
    AND id NOT IN (SELECT id FROM run WHERE status = 'ended' ORDER BY updated_at DESC, id DESC LIMIT %s)
    AND NOT EXISTS (SELECT FROM holder h WHERE h.token = run.holder AND {LIVING})
    ORDER BY id LIMIT %s"""
DROP: Final = """WITH doomed AS (SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS d(id, epoch, seq)),
gone AS (DELETE FROM run USING doomed d WHERE run.id = d.id AND run.epoch = d.epoch AND run.seq = d.seq
    RETURNING run.id),
records AS (DELETE FROM record USING gone WHERE record.run = gone.id),
requests AS (DELETE FROM request USING gone WHERE request.run = gone.id),
news AS (DELETE FROM news USING gone WHERE news.run = gone.id),
tags AS (DELETE FROM run_tag USING gone WHERE run_tag.run = gone.id),
uses AS (DELETE FROM blob_use USING gone WHERE blob_use.run = gone.id)
SELECT count(*) FROM gone"""
"""A run that was claimed or written since its selection stays. A claim of a removed run finds nothing."""
UNNAMED: Final = """DELETE FROM blob WHERE NOT EXISTS (SELECT FROM blob_use u WHERE u.digest = blob.digest)"""
