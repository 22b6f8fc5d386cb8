"""A typed machine in an asyncio program: a stream server in which each connection is one order.

`asyncio.start_server` accepts the connections. The machine knows nothing of them: its event source replies with the
state and reads the next line. All connections share one machine and one journal; each has its own run and context.

    python -m orchestrator.examples.orders               # three customers order at once, then the server stops
    python -m orchestrator.examples.orders --port 7000   # until Ctrl-C, for `nc localhost 7000`

The journal is orders.db of the working directory: `orchestrator runs list --journal orders.db`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from orchestrator.errors import OrchestratorError
from orchestrator.examples.terminal import say
from orchestrator.journal.context import ContextCodec
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.typed import StateMachine


class Stage(StrEnum):
    """The states of an order."""

    CART = "cart"
    PAID = "paid"
    SHIPPED = "shipped"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Add:
    """The customer puts an item into the cart."""

    item: str
    price: int


@dataclass(frozen=True)
class Pay:
    """The customer pays an amount."""

    amount: int


@dataclass(frozen=True)
class Ship:
    """The order leaves the house."""


@dataclass(frozen=True)
class Cancel:
    """The customer wants nothing any more."""


Event: TypeAlias = Add | Pay | Ship | Cancel


@dataclass
class Order:
    """The context of a run: guards read it, actions change it, the journal has it after each transition."""

    items: list[str] = field(default_factory=list)
    total: int = 0


def is_exact(event: Pay, order: Order) -> bool:
    """Return whether the amount is the total of a cart that is not empty."""
    return 0 < order.total == event.amount


def put(event: Add, order: Order) -> None:
    """Put an item into the cart."""
    order.items.append(event.item)
    order.total += event.price


def order_machine(journal: SqliteJournal) -> StateMachine[Stage, Event, Order]:
    """Return the machine. An event that leads nowhere leaves the order as it is; the tenth in a row ends the run."""
    machine: StateMachine[Stage, Event, Order] = StateMachine(
        "order", max_unhandled=9, journal=journal, codec=ContextCodec(Order)
    )
    for stage in Stage:
        machine.state(stage)
    machine.transition(Stage.CART, Add, Stage.CART, action=put)
    machine.transition(Stage.CART, Pay, Stage.PAID, guard=is_exact)
    machine.transition(Stage.PAID, Ship, Stage.SHIPPED)
    machine.transition(Stage.CART, Cancel, Stage.CANCELLED)
    machine.transition(Stage.PAID, Cancel, Stage.CANCELLED)
    return machine.terminal(Stage.SHIPPED, Stage.CANCELLED)


def parsed(line: str) -> Event | None:
    """Return the event of a line, or None if it is none."""
    match line.split():
        case ["add", item, price] if price.isdecimal():
            return Add(item, int(price))
        case ["pay", amount] if amount.isdecimal():
            return Pay(int(amount))
        case ["ship"]:
            return Ship()
        case ["cancel"]:
            return Cancel()
    return None


@contextlib.asynccontextmanager
async def serving(journal: SqliteJournal, port: int) -> AsyncIterator[int]:
    """Take orders on this machine, and yield the port; 0 takes a free one. At the end, open orders are waited for."""
    machine = order_machine(journal)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def next_event(stage: Stage, order: Order) -> Event | None:
            writer.write(f"{stage} {order.total}\n".encode())
            async for line in reader:
                if (event := parsed(line.decode(errors="replace"))) is not None:
                    return event
                writer.write(b"allowed are: add ITEM PRICE, pay AMOUNT, ship, cancel\n")
            return None  # the customer has left: the run ends as no_progress (stalled)

        with contextlib.closing(writer):
            try:
                result = await machine.arun(Stage.CART, Order(), next_event)
                stage, order = result
                writer.write(f"{stage} {order.total}\n".encode())
            except (OrchestratorError, OSError, ValueError) as error:
                say(f"an order failed: {error}")

    async with asyncio.TaskGroup() as connections:  # at Ctrl-C it cancels them before the journal is closed
        server = await asyncio.start_server(
            lambda reader, writer: connections.create_task(handle(reader, writer)), "127.0.0.1", port
        )
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()


CUSTOMERS = {
    "Ann": ["add book 30", "pay 20", "pay 30", "ship"],
    "Bob": ["add pen 3", "add ink 8", "sell pen", "cancel"],
    "Cleo": ["add lamp 45"],
}


async def customer(name: str, lines: list[str], port: int) -> str:
    """Send the lines of a customer, each after the reply to the one before; return the dialogue."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.closing(writer):
        dialogue = [(await reader.readline()).decode().strip()]
        for line in lines:
            writer.write(f"{line}\n".encode())
            dialogue.append(f"<{line}> {(await reader.readline()).decode().strip()}")
    return f"{name}: {' '.join(dialogue)}"


async def main() -> None:
    """Serve orders until the process is stopped; without --port, those of three customers."""
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.examples.orders", description="Orders over TCP."
    )
    parser.add_argument("--port", type=int, help="Serve until Ctrl-C on this port; 0 takes a free one.")
    parser.add_argument("--journal", type=Path, default=Path("orders.db"), help="The file of the journal.")
    arguments = parser.parse_args()
    async with SqliteJournal(arguments.journal) as journal, serving(journal, arguments.port or 0) as port:
        if arguments.port is not None:
            say(f"Orders are taken at 127.0.0.1:{port}.")
            await asyncio.Event().wait()
        for dialogue in await asyncio.gather(*(customer(*one, port) for one in CUSTOMERS.items())):
            say(dialogue)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
