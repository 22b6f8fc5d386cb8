"""Web pages of the runs of a journal: watch them live, answer their questions, stop them.

`console_app(runs)` is an ASGI application that a host mounts; `orchestrator console` serves it on this machine. The
pages read the same journal that recovery uses, through `Runs`, and need no further service. They are readable without
JavaScript; with it, a page follows its journal by server-sent events.

The module needs the extra `console`: `pip install 'fsm-orchestrator[console]'`.
"""

from __future__ import annotations

from orchestrator.console.access import Actor as Actor
from orchestrator.console.app import console_app as console_app
