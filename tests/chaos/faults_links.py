"""Faults of the connections to the broker and to PostgreSQL, made by the proxies that all of them pass through."""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import attrgetter

from spark_2pc_sink.testing import TcpProxy, kafka_request, postgres_query
from spark_2pc_sink.testing.tcp_proxy import RequestPredicate
from tests.chaos.plan import Planned
from tests.chaos.world import World

END_TXN, PRODUCE, COMMIT = kafka_request(26), kafka_request(0), postgres_query("COMMIT")
#: The server whose connections are harmed.
KAFKA: Callable[[World], TcpProxy] = attrgetter("kafka_proxy")
POSTGRES: Callable[[World], TcpProxy] = attrgetter("postgres_proxy")
_LOST_DEADLINE_S = 60.0
_USED_DEADLINE_S = 60.0
#: The longest delay of each answer, as a part of the plan's delay, which goes up to 0.4 s.
_DELAY_PART = 0.5


def cut(proxy_of: Callable[[World], TcpProxy], world: World, planned: Planned) -> int:
    """Every connection to the server is reset, and no new one is let through for a moment."""
    proxy = proxy_of(world)
    time.sleep(planned.delay_s)
    _wait_until_used(world, proxy)
    proxy.cut()
    time.sleep(planned.hold_s)
    proxy.restore()
    return 0


def delay(proxy_of: Callable[[World], TcpProxy], world: World, planned: Planned) -> int:
    """Every answer of the server comes later."""
    proxy = proxy_of(world)
    _wait_until_used(world, proxy)
    proxy.delay_answers(planned.delay_s * _DELAY_PART)
    time.sleep(2 * planned.hold_s)
    proxy.restore()
    return 0


def lose(proxy_of: Callable[[World], TcpProxy], request: RequestPredicate, world: World, _planned: Planned) -> int:
    """The answer to a request is lost; the server has carried it out."""
    proxy = proxy_of(world)
    lost = proxy.answers_lost
    proxy.lose_answer(request)
    try:
        world.wait(
            lambda: proxy.answers_lost > lost,
            deadline_s=_LOST_DEADLINE_S,
            what="the request whose answer is to be lost",
        )
    finally:
        proxy.restore()
    return 0


def _wait_until_used(world: World, proxy: TcpProxy) -> None:
    """Until there is a connection to be harmed."""
    world.wait(lambda: proxy.connections, deadline_s=_USED_DEADLINE_S, what="a connection through the proxy")
