"""Call a function of the host when a run parks."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.kernel.fact import Fact, RunParked


class ParkNotice:
    """An observer that calls a function for each parked run.

    The call is a hint for the same process and is lost with it. The journal has the question (`agent.pending`), and a
    `Notifier` of `orchestrator.notification` notifies people of it, by a webhook for example.

    Args:
        callback: Called with the fact on the event loop; must not block.

    Example:
        asked = asyncio.Event()
        agent = Agent(llm, tools=[pay], observers=[ParkNotice(lambda fact: asked.set())])
    """

    attends = True
    """Its host learns of parked runs, so it is not warned of them."""

    def __init__(self, callback: Callable[[RunParked], object]) -> None:
        self._callback = callback

    def observe(self, fact: Fact) -> None:
        """Report a parked run; ignore other facts."""
        if type(fact) is RunParked:
            self._callback(fact)
