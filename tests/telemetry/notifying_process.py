"""A process that notifies for a journal until it is killed; its arguments are the journal and the address."""

from __future__ import annotations

import asyncio
import sys

from orchestrator import RetryPolicy, SqliteJournal
from orchestrator.notification import Notifier, Webhook
from tests.telemetry.receiver import SECRET


async def main(path: str, url: str) -> None:
    async with SqliteJournal(path) as journal:
        channel = Webhook(url, SECRET, timeout=60.0)
        retry = RetryPolicy(attempts=2, base=0.01, jitter=0.0)
        async with Notifier(journal, channel, interval=0.05, pause=0.05, retry=retry):
            print("notifying", flush=True)  # noqa: T201
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
