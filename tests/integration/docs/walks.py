"""The four walks of ARCHITECTURE.md, drawn from a trace of the running code.

    python -m tests.integration.docs.walks            # prints them
    python -m tests.integration.docs.walks --write    # puts them into ARCHITECTURE.md, after a change of the code

A walk has one or more lanes, a thread or a task each. Of a lane the page shows the rooms in the order of its first
call into each, in each room the modules with the most functions that were called, and the calls that went up: where
code of a lower room calls what a higher room has handed to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from spark_2pc_sink.cli import main as spark_2pc
from spark_2pc_sink.reference.broker import Broker
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.testing import PostgresServer, ReferenceCoordinator
from tests.conformance.raw_client import RawClient
from tests.harness.call_trace import ROOT, CallTrace, Lane
from tests.unit.reference.batches import client_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PAGE: Final = ROOT / "ARCHITECTURE.md"
#: From the top down, as the contracts of pyproject.toml have them: a room calls those behind it.
ROOMS: Final = (
    *("cli", "monitoring", "monitoring/dashboard", "runbook", "verification"),
    *("sink", "sink/check", "sink/job", "sink/records", "sink/bad_rows", "sink/rows", "sink/stream", "sink/driver"),
    *("service", "transactions", "recovery", "kafka", "serialisation"),
    *("reference", "reference/network", "reference/handlers", "reference/groups"),
    *("reference/transactions", "reference/metadata", "reference/config", "reference/log", "reference/storage"),
    *("reference/protocol", "reference/coordinator", "reference/internal_topics"),
    *("wire", "recipe", "logins", "options", "choices", "testing", "jdbc_state"),
)
#: Modules that are no step of a walk: they hold values alone, or stand round a call (`checks_keywords`).
NO_STEP: Final = frozenset({"sink/report", "options/settings", "jdbc_state/sink_log"})
#: How many modules of a room are named in a lane.
MODULES_MAX: Final = 3
LINE_MAX: Final = 120
JOB_DEADLINE_S: Final = 240
EXIT_IN_DOUBT: Final = 3
#: A walk: its lanes by their titles.
Walk = dict[str, Lane]


def room_of(module: str) -> str:
    """``sink/job`` for ``sink/job/spark_batch``; '' for what all rooms use (ids, errors, clock) and for `NO_STEP`."""
    return "" if module in NO_STEP else module.rpartition("/")[0]


def rooms(lane: Lane) -> dict[str, dict[str, int]]:
    """The rooms of a lane in order, each with its modules and how many of their functions were called."""
    found: dict[str, dict[str, int]] = {}
    for entry in lane.entries:
        module = entry.split(":")[0]
        if room_of(module):
            modules = found.setdefault(room_of(module), {})
            modules[module] = modules.get(module, 0) + 1
    return found


def place(room: str) -> int:
    """How far below the top a room is.

    Raises:
        AssertionError: it has no place in `ROOMS`.
    """
    assert room in ROOMS, f"the room {room} has no place in ROOMS of {__file__}"
    return ROOMS.index(room)


def calls_up(lane: Lane) -> list[tuple[str, str]]:
    """The calls from a room into a higher one, by module, each pair of rooms once."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for caller, called in lane.calls:
        pair = room_of(caller), room_of(called)
        if all(pair) and place(pair[1]) < place(pair[0]):
            found.setdefault(pair, (caller, called))
    return sorted(found.values())


def draw(title: str, lane: Lane) -> str:
    """A lane as the page has it: an item of a list."""
    steps = []
    for room, modules in rooms(lane).items():
        most = sorted(modules, key=lambda module: -modules[module])[:MODULES_MAX]
        names = ", ".join(module.rpartition("/")[2] for module in modules if module in most)
        steps.append(f"`{room}` ({names})")
    text = f"- **{title}:** {' → '.join(steps)}."
    up = [f"`{caller}` calls `{called}`" for caller, called in calls_up(lane)]
    if up:
        text += f" *Up:* {', '.join(up)}."
    return textwrap.fill(text, LINE_MAX, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def drawn(walk: Walk) -> str:
    """All lanes of a walk."""
    return "\n".join(draw(title, lane) for title, lane in walk.items())


class Told(NamedTuple):
    """What the page says of a lane: its rooms in order, with modules, and the calls that go up."""

    rooms: dict[str, list[str]]
    up: list[tuple[str, str]]


def told(section: str) -> dict[str, Told]:
    """What a part of the page says, by the titles of its lanes."""
    lanes = {}
    for item in " ".join(section.split()).split("- **")[1:]:
        title, text = item.split(":** ", 1)
        steps = re.findall(r"`([^`]+)` \(([^)]+)\)", text)
        lanes[title] = Told(
            {room: [f"{room}/{name}" for name in names.split(", ")] for room, names in steps},
            re.findall("`([^`]+)` calls `([^`]+)`", text),
        )
    return lanes


# --- the walks -----------------------------------------------------------------------------------------------------


def micro_batch(kafka: str, database: str, topic: str) -> Walk:
    """A batch that tasks write, in a job that is killed in its next batch, between the two commits."""
    with tempfile.TemporaryDirectory() as directory:
        given = json.dumps({"kafka": kafka, "database": database, "topic": topic})
        done = subprocess.run(
            [sys.executable, "-m", "tests.integration.docs.traced_job", given, directory],
            start_new_session=True,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=JOB_DEADLINE_S,
            check=False,
        )
        trace = Path(directory) / "trace.json"
        if not trace.exists():
            message = f"the job ended with {done.returncode} and no trace:\n{done.stderr[-3000:]}"
            raise AssertionError(message)
        found = [
            Lane(entries, [(one, other) for one, other in calls]) for entries, calls in json.loads(trace.read_text())
        ]
    return {
        "The driver, in Spark's call of the sink": longest(found, "sink/sink", ""),
        "A task that reads rows and encodes them": longest(found, "sink/job/encode_task", "/encode_task:"),
        "The driver's thread that receives, meanwhile": longest(found, "sink/stream/listener", ""),
        "Its thread that forwards records": longest(found, "sink/stream/background_task", "/record_forwarder:"),
        "Its thread that copies rows": longest(found, "sink/stream/background_task", "/table_copy:"),
    }


def longest(lanes: list[Lane], start: str, through: str) -> Lane:
    """The lane with the most calls of those that start in a module and come through another."""
    fitting = [
        lane for lane in lanes if lane.start.startswith(start) and any(through in entry for entry in lane.entries)
    ]
    if not fitting:
        message = f"no lane starts in {start} and goes through {through}: {[lane.entries[:1] for lane in lanes]}"
        raise AssertionError(message)
    return max(fitting, key=lambda lane: len(lane.entries))


def command(*words: str, code: int, threads: Mapping[str, tuple[str, str]] | None = None) -> Walk:
    """A command of ``spark-2pc`` in this thread, which ends with this exit code.

    Args:
        words: of the command.
        code: the exit code.
        threads: of the threads that it starts, by title, the module in which one starts and one that it goes through.
    """
    trace = CallTrace()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        trace.start()
        try:
            ended = spark_2pc(words)
        finally:
            trace.stop()
    if ended != code:
        message = f"spark-2pc {words[0]} ended with {ended}, not {code}:\n{printed.getvalue()}"
        raise AssertionError(message)
    others = {title: longest(trace.lanes(), *found) for title, found in (threads or {}).items()}
    return {f"`spark-2pc {words[0]}`": trace.lane(threading.get_ident()), **others}


def sides(kafka: str, database: str, topic: str) -> dict[str, Walk]:
    """The walks through both sides: a batch, then a status and a recovery of what its job has left in doubt."""
    batch_walk = micro_batch(kafka, database, topic)
    address = ("--bootstrap-server", kafka, "--database", database, "--transactional-id", topic)
    threads = {
        "The thread that reads the database": ("recovery/sink_survey", "jdbc_state/survey"),
        "The thread that asks Kafka": ("recovery/sink_survey", "kafka/coordinator_calls"),
    }
    status = command("status", *address, code=EXIT_IN_DOUBT, threads=threads)
    recovery = command("recover", *address, "--take-over", code=0)
    return {"micro-batch": batch_walk, "recovery": recovery, "status": status}


class Node:
    """A node of the reference coordinator in a thread of this process, from `start` to `stop`."""

    def __init__(self, directory: Path) -> None:
        properties = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "transaction.state.log.num.partitions": "1",
            "offsets.topic.num.partitions": "1",
        }
        self._broker = Broker(BrokerProperties.from_mapping(properties), directory)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def start(self) -> tuple[str, int]:
        """Serve; the address, and the identity of the thread."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._broker.start(), self._loop).result()
        host, port = self._broker.addresses[0]
        return f"{host}:{port}", self._thread.ident or 0

    def stop(self) -> None:
        """Serve no more."""
        asyncio.run_coroutine_threadsafe(self._broker.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def produce_request() -> Walk:
    """The first records of a transaction in a partition, as transaction.version 2 has them (KIP-890)."""
    with tempfile.TemporaryDirectory() as directory:
        trace = CallTrace()
        node = Node(Path(directory))
        trace.start()
        bootstrap, thread = node.start()
        try:
            with RawClient(bootstrap) as client:
                create_topic(client)
                # Of several the one with the fewest calls: work in the background may fall between.
                lanes = [_produced(client, trace, thread, f"walk-{number}") for number in range(3)]
        finally:
            trace.stop()
            node.stop()
    return {"The node's thread": min(lanes, key=lambda lane: len(lane.entries))}


def create_topic(client: RawClient) -> None:
    """The topic ``walk``, with one partition."""
    topic = CreateTopicsRequest.CreatableTopic(
        name="walk", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    answer = client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False), 5)
    assert answer.topics[0].error_code == 0, answer


def _produced(client: RawClient, trace: CallTrace, thread: int, transactional_id: str) -> Lane:
    """One Produce request with a pair of its own, and what the node's thread did for it."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    pair = client.call(request, 4)
    assert pair.error_code == 0, pair
    records = client_batch(
        [b"value"],
        timestamps_ms=time.time_ns() // 1_000_000,
        producer=(pair.producer_id, pair.producer_epoch),
        sequence=0,
        transactional=True,
    )
    data = ProduceRequest.TopicProduceData
    topic = data(name="walk", partition_data=[data.PartitionProduceData(index=0, records=records)])
    produce = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=[topic])
    trace.clear()
    answer = client.call(produce, 12)
    lane = trace.lane(thread)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer
    return lane


# --- the page ------------------------------------------------------------------------------------------------------


def marks(name: str) -> tuple[str, str]:
    """The comments between which the page has a walk."""
    return f"<!-- walk: {name} -->\n", f"\n<!-- end of walk: {name} -->"


def section(page: str, name: str) -> str:
    """The text of a walk in the page."""
    start, end = marks(name)
    return page.split(start, 1)[1].split(end, 1)[0]


def with_walks(page: str, walks: Mapping[str, Walk]) -> str:
    """The page with these walks in place of those that it has."""
    for name, walk in walks.items():
        start, end = marks(name)
        before, rest = page.split(start, 1)
        page = f"{before}{start}{drawn(walk)}{end}{rest.split(end, 1)[1]}"
    return page


@contextlib.contextmanager
def servers() -> Iterator[tuple[str, str]]:
    """Both sides: bootstrap servers, with a topic ``walk``, and the URL of a database."""
    with ReferenceCoordinator() as kafka, PostgresServer() as postgres:
        kafka.create_topic("walk", partitions=2)
        yield kafka.bootstrap, postgres.create_database("walk")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the walks of ARCHITECTURE.md.")
    parser.add_argument("--write", action="store_true", help="put them into ARCHITECTURE.md")
    given = parser.parse_args()
    with servers() as (bootstrap, url):
        all_walks = {**sides(bootstrap, url, "walk"), "produce": produce_request()}
    if given.write:
        PAGE.write_text(with_walks(PAGE.read_text(), all_walks))
    else:
        print("\n\n".join(f"## {name}\n\n{drawn(walk)}" for name, walk in all_walks.items()))
