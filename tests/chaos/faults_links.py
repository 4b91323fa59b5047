"""Faults of the connections to the broker and to PostgreSQL, made by the proxies that all of them pass through."""

from __future__ import annotations

import time

from spark_2pc_sink.testing import TcpProxy, kafka_request, postgres_query
from spark_2pc_sink.testing.tcp_proxy import RequestPredicate
from tests.chaos.plan import Planned
from tests.chaos.world import World

_END_TXN = 26
_PRODUCE = 0
_LOST_DEADLINE_S = 60.0
_USED_DEADLINE_S = 60.0
#: The longest delay of each answer, as a part of the plan's delay, which goes up to 0.4 s.
_DELAY_PART = 0.5


def kafka_cut(world: World, planned: Planned) -> int:
    """Every connection to the broker is reset, and no new one is let through for a moment."""
    return _cut(world, world.kafka_proxy, planned)


def postgres_cut(world: World, planned: Planned) -> int:
    """The same for PostgreSQL."""
    return _cut(world, world.postgres_proxy, planned)


def kafka_delay(world: World, planned: Planned) -> int:
    """Every answer of the broker comes later."""
    return _delay(world, world.kafka_proxy, planned)


def postgres_delay(world: World, planned: Planned) -> int:
    """The same for PostgreSQL."""
    return _delay(world, world.postgres_proxy, planned)


def lose_end_txn(world: World, planned: Planned) -> int:
    """The answer to EndTxn is lost; the broker has carried it out."""
    del planned
    return _lose(world, world.kafka_proxy, kafka_request(_END_TXN))


def lose_produce(world: World, planned: Planned) -> int:
    """The answer to a Produce request is lost; the broker has carried it out."""
    del planned
    return _lose(world, world.kafka_proxy, kafka_request(_PRODUCE))


def lose_commit(world: World, planned: Planned) -> int:
    """The answer to COMMIT is lost; PostgreSQL has carried it out."""
    del planned
    return _lose(world, world.postgres_proxy, postgres_query("COMMIT"))


def _cut(world: World, proxy: TcpProxy, planned: Planned) -> int:
    time.sleep(planned.delay_s)
    _wait_until_used(world, proxy)
    proxy.cut()
    time.sleep(planned.hold_s)
    proxy.restore()
    return 0


def _delay(world: World, proxy: TcpProxy, planned: Planned) -> int:
    _wait_until_used(world, proxy)
    proxy.delay_answers(planned.delay_s * _DELAY_PART)
    time.sleep(2 * planned.hold_s)
    proxy.restore()
    return 0


def _lose(world: World, proxy: TcpProxy, request: RequestPredicate) -> int:
    lost = proxy.answers_lost
    proxy.lose_answer(request)
    try:
        world.wait(lambda: proxy.answers_lost > lost, deadline_s=_LOST_DEADLINE_S, what="the request in question")
    finally:
        proxy.restore()
    return 0


def _wait_until_used(world: World, proxy: TcpProxy) -> None:
    """Until there is a connection to be harmed."""
    world.wait(lambda: proxy.connections, deadline_s=_USED_DEADLINE_S, what="a connection through the proxy")
