"""The stream over real sockets: tasks and driver against slowness, losses, strangers and broken frames."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import psutil
import pytest

from spark_2pc_sink.errors import BatchRetryError, ConfigurationError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.sink.stream.attempt_input import AttemptInput, Ended, LocalStream, Released
from spark_2pc_sink.sink.stream.listener import StreamAttempt, StreamEndpoint, StreamLimits, StreamListener
from spark_2pc_sink.sink.stream.task_stream import (
    FRAME_BYTES,
    HELLO as HELLO_BYTES,
    DriverMessage,
    Frame,
    FrameKind,
    LaneTotals,
    StreamAddress,
    TaskStream,
    packed_message,
    unreachable,
)
from spark_2pc_sink.testing import wait_until
from spark_2pc_sink.wire.record_batch import EncodedBatch

HOST = "127.0.0.1"
MIB = 1024 * 1024
#: More than the buffers of two sockets on one machine take.
MORE_THAN_BUFFERS = 40 * MIB
LIMITS = StreamLimits(bytes_max=4 * MIB, tasks_at_once=2, io_deadline_s=20, hello_s=0.5, alive_s=0.1)
IMPATIENT = replace(LIMITS, io_deadline_s=1)
ROW = Frame(FrameKind.ROWS, memoryview(b"x"), count=1)
ROWS = Frame(FrameKind.ROWS, memoryview(bytes(1000)), count=1)
ORDERS = EncodedBatch(TopicPartition("orders", 3), b"", 2, digest=7)


class Consumers:
    """Threads that take both kinds, until the input is closed.

    Attributes:
        taken: of each task and kind the first bytes of all payloads.
    """

    def __init__(self, attempt: AttemptInput) -> None:
        self.taken: dict[tuple[int, FrameKind], list[bytes]] = defaultdict(list)
        self._attempt = attempt
        self._pool = ThreadPoolExecutor(2)
        self._results = [self._pool.submit(self._consume, kind) for kind in (FrameKind.ROWS, FrameKind.RECORDS)]

    def _consume(self, kind: FrameKind) -> None:
        while (found := self._attempt.take(kind, 0.1)) is not Ended.ENDED:
            if not isinstance(found, Released):
                continue
            if found.frame.kind is FrameKind.QUESTION:
                self._attempt.answer(found, bytes(found.frame.payload) * 8)
                continue
            self.taken[found.sender.task, kind].append(bytes(found.frame.payload[:2]))
            self._attempt.done(found)

    def finish(self) -> None:
        self._attempt.close_input()
        for result in self._results:
            result.result()
        self._pool.shutdown()


@contextmanager
def a_listener(*, encrypted: bool = False, limits: StreamLimits = LIMITS) -> Iterator[StreamListener]:
    with StreamListener(StreamEndpoint(HOST, HOST, encrypted=encrypted), limits) as listener:
        yield listener


@pytest.fixture
def listener() -> Iterator[StreamListener]:
    with a_listener() as opened:
        yield opened


@pytest.fixture
def attempt(listener: StreamListener) -> Iterator[StreamAttempt]:
    with listener.open_attempt() as opened:
        yield opened


@pytest.fixture
def in_background() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def send_whole(address: StreamAddress, task: int, payload: bytes, frames: int = 1) -> dict[int, LaneTotals]:
    with TaskStream(address, task, 10 + task) as stream:
        for number in range(frames):
            stream.rows(0, number.to_bytes(2, "big") + payload, 1)
            stream.records(1, replace(ORDERS, payload=number.to_bytes(2, "big") + payload))
        stream.finish()
        return stream.totals


class RawTask:
    """A connection without the sender's care: what is sent is what a test says."""

    def __init__(self, address: StreamAddress, task: int = 0, task_attempt: int = 0) -> None:
        self.socket = socket.create_connection((address.host, address.port), timeout=20)
        self.socket.sendall(address.token)
        self.send(FrameKind.HELLO, HELLO_BYTES.pack(task, task_attempt), number=0)

    def send(self, kind: FrameKind, payload: bytes, *, number: int, count: int = 1) -> None:
        self.socket.sendall(Frame(kind, memoryview(payload), count=count).header(number) + payload)

    def messages(self) -> bytearray:
        """All that the driver still sends, without its signs of life."""
        received = bytearray()
        # The driver closes a connection that has sent more than it has read: that resets it, after the messages.
        with self.socket, suppress(ConnectionResetError):
            while part := self.socket.recv(65536):
                received += part
        return received.replace(bytes([DriverMessage.ALIVE]), b"")


# --- what arrives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encrypted", [False, True])
def test_all_tasks_bring_all_that_they_send_in_its_order(
    encrypted: bool, in_background: Callable[..., Future[Any]]
) -> None:
    with a_listener(encrypted=encrypted) as listener, listener.open_attempt() as attempt:
        consumers = Consumers(attempt)
        assert unreachable(attempt.address) is None
        sent = [in_background(send_whole, attempt.address, task, bytes(300_000), 20) for task in range(5)]
        totals = {task: (10 + task, result.result()) for task, result in enumerate(sent)}
        consumers.finish()
        assert attempt.finished == totals
        assert attempt.held_bytes == 0
    in_order = [number.to_bytes(2, "big") for number in range(20)]
    assert all(consumers.taken[task, FrameKind.RECORDS] == in_order for task in range(5))
    assert totals[4][1][0] == LaneTotals(row_bytes=20 * 300_002, rows=20)
    assert totals[4][1][1] == LaneTotals(record_bytes=20 * 300_002, records=40, digest=140)


@pytest.mark.parametrize("local", [True, False])
def test_the_driver_answers_questions_while_it_waits_for_room(attempt: StreamAttempt, local: bool) -> None:
    consumers = Consumers(attempt)
    with ExitStack() as stack:
        stream = (
            LocalStream(attempt) if local else stack.enter_context(TaskStream(attempt.address, task=0, task_attempt=0))
        )
        assert stream.ask(b"which topic") == b"which topic" * 8
        assert stream.ask(bytes(8192)) == bytes(65536)
        stream.rows(0, b"row", 1)
        stream.finish()
    consumers.finish()
    assert attempt.finished == {0: (0, {0: LaneTotals(row_bytes=3, rows=1)})}


def test_a_batch_of_the_driver_waits_for_room_too(in_background: Callable[..., Future[Any]]) -> None:
    attempt = AttemptInput(MIB, 1)

    def encode() -> None:
        stream = LocalStream(attempt)
        for _ in range(20):
            stream.rows(0, bytes(FRAME_BYTES), 1)
        stream.finish()

    encoding = in_background(encode)
    wait_until(lambda: attempt.held_bytes == MIB, what="bytes to be held")
    consumers = Consumers(attempt)
    encoding.result()
    consumers.finish()
    assert attempt.finished[0][1][0].rows == 20
    assert attempt.held_bytes == 0


# --- slow and dead drivers ---------------------------------------------------------------------------------------


def test_a_task_waits_for_a_slow_driver_beyond_its_deadline_within_the_ceiling(
    in_background: Callable[..., Future[Any]],
) -> None:
    with a_listener(encrypted=True, limits=IMPATIENT) as listener, listener.open_attempt() as attempt:
        sending = in_background(send_whole, attempt.address, 0, bytes(MIB), MORE_THAN_BUFFERS // MIB)
        wait_until(lambda: attempt.held_bytes > LIMITS.bytes_max // 2 - MIB - 100, what="bytes to be held")
        with pytest.raises(TimeoutError):
            sending.result(timeout=2.5 * IMPATIENT.io_deadline_s)
        assert attempt.held_bytes <= LIMITS.bytes_max // 2
        consumers = Consumers(attempt)
        assert sending.result()[0].rows == MORE_THAN_BUFFERS // MIB
        consumers.finish()


def test_a_dead_consumer_ends_every_task_with_its_reason(
    attempt: StreamAttempt, in_background: Callable[..., Future[Any]]
) -> None:
    sending = [in_background(send_whole, attempt.address, task, bytes(MIB), 40) for task in range(3)]
    wait_until(lambda: attempt.held_bytes > 0, what="bytes to be held")
    with pytest.raises(ValueError, match="refused a row"), attempt.failing():
        raise ValueError("the database refused a row")
    for each in sending:
        with pytest.raises(BatchRetryError, match="the driver ended the attempt: the database refused a row"):
            each.result()


def test_the_end_of_an_attempt_ends_its_tasks_and_their_successors(
    listener: StreamListener, in_background: Callable[..., Future[Any]]
) -> None:
    with listener.open_attempt() as attempt:
        sending = in_background(send_whole, attempt.address, 0, bytes(MIB), 40)
        wait_until(lambda: attempt.held_bytes > 0, what="bytes to be held")
    with pytest.raises(BatchRetryError, match="the attempt is over"):
        sending.result()
    with listener.open_attempt() as after:
        assert after.address.port == attempt.address.port
        with pytest.raises(BatchRetryError, match=f"at 127.0.0.1:{attempt.address.port}: the connection is lost"):
            send_whole(attempt.address, 0, b"late")
        assert after.failure is None


@pytest.mark.parametrize("welcomed", [True, False])
def test_a_driver_without_any_sign_of_life_is_given_up(welcomed: bool) -> None:
    with socket.create_server((HOST, 0)) as stalled, ThreadPoolExecutor(1) as pool:
        address = StreamAddress(HOST, stalled.getsockname()[1], bytes(32), io_deadline_s=0.5)
        sending = pool.submit(send_whole, address, 0, bytes(MORE_THAN_BUFFERS))
        connection, _ = stalled.accept()
        with connection:
            if welcomed:
                assert connection.recv(32) == bytes(32)
                connection.sendall(packed_message(DriverMessage.WELCOME))
            with pytest.raises(BatchRetryError, match=r"127.0.0.1:\d+: no activity from the driver for 0.5 s"):
                sending.result()


# --- strangers ---------------------------------------------------------------------------------------------------


def test_a_wrong_token_is_not_let_in_and_learns_nothing(attempt: StreamAttempt) -> None:
    with pytest.raises(BatchRetryError, match="the connection is lost"):
        send_whole(replace(attempt.address, token=bytes(32)), 0, b"stranger")
    send_whole(attempt.address, 0, b"own")
    assert attempt.failure is None
    assert list(attempt.finished) == [0]


@pytest.mark.parametrize("sent", [b"", bytes(100_000)])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_stranger_is_cut_off_within_the_deadline(sent: bytes, encrypted: bool) -> None:
    with a_listener(encrypted=encrypted) as listener, listener.open_attempt() as attempt:
        with socket.create_connection((HOST, attempt.address.port), timeout=20) as stranger:
            begun_s = monotonic()
            try:
                stranger.sendall(sent)
                # TLS answers with an alert of 7 bytes.
                assert len(stranger.recv(100)) <= 7 * encrypted
            except ConnectionResetError:
                assert sent
            assert monotonic() < begun_s + 10
        send_whole(attempt.address, 0, b"own")
        assert attempt.failure is None


def test_a_stranger_that_sends_a_byte_now_and_then_is_cut_off_too(attempt: StreamAttempt) -> None:
    with socket.create_connection((HOST, attempt.address.port), timeout=0.3) as stranger:
        begun_s, answer = monotonic(), None
        while answer is None:
            # A token at this pace takes ten seconds.
            assert monotonic() < begun_s + 5
            try:
                stranger.sendall(b"x")
                answer = stranger.recv(100)
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert not answer


def test_a_crowd_of_strangers_does_not_keep_a_task_out(attempt: StreamAttempt) -> None:
    with ExitStack() as crowd:
        for _ in range(200):
            crowd.enter_context(socket.create_connection((HOST, attempt.address.port), timeout=20))
        send_whole(attempt.address, 0, b"own")
    assert attempt.failure is None


def test_only_the_certificate_of_the_run_is_accepted() -> None:
    with (
        a_listener(encrypted=True) as one,
        a_listener(encrypted=True) as other,
        one.open_attempt() as attempt,
        other.open_attempt() as another,
    ):
        address = replace(attempt.address, certificate=another.address.certificate)
        with pytest.raises(BatchRetryError, match=r"TLS failed: .*certificate verify failed"):
            send_whole(address, 0, b"own")
        assert attempt.failure is None
        assert "BEGIN" not in repr(attempt.address)


def test_an_encrypted_stream_shows_nothing_on_the_wire() -> None:
    with a_listener(encrypted=True) as listener, listener.open_attempt() as attempt:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=attempt.address.certificate)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection((HOST, attempt.address.port)) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain)


# --- broken frames, retries and losses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([ROW.header(2) + b"x"], "received frame 2, expected frame 1"),
        ([replace(ROW, kind=FrameKind.RECORDS).header(1) + b"x"], "a record batch has 0 bytes of details"),
    ],
)
def test_a_frame_that_breaks_the_rules_fails_the_attempt(
    attempt: StreamAttempt, frames: list[bytes], said: str
) -> None:
    task = RawTask(attempt.address)
    task.socket.sendall(b"".join(frames))
    with pytest.raises(BatchRetryError, match=said):
        attempt.take(FrameKind.ROWS, 20)
    assert said.encode() in task.messages()


@pytest.mark.parametrize("vanished", [False, True])
def test_a_task_that_is_lost_before_its_end_may_run_again(vanished: bool) -> None:
    """Its connection is closed, or its machine vanishes in the midst of a frame and nothing more comes."""
    with a_listener(limits=IMPATIENT) as listener, listener.open_attempt() as attempt:
        task = RawTask(attempt.address)
        task.socket.sendall(ROWS.header(1) + bytes(500 if vanished else 1000))
        wait_until(lambda: attempt.held_bytes == 1000, what="bytes to be held")
        if vanished:
            assert b"the rest of a frame did not arrive" in task.messages()
        task.socket.close()
        wait_until(lambda: attempt.held_bytes == 0, what="bytes to be released")
        send_whole(attempt.address, 0, b"again")
        assert attempt.finished[0][0] == 10
        assert attempt.failure is None


# --- ports and leftovers -----------------------------------------------------------------------------------------


def test_listeners_of_one_range_take_the_ports_in_turn() -> None:
    with a_listener() as other, other.open_attempt() as attempt:
        taken = attempt.address.port
        listener = StreamListener(StreamEndpoint(HOST, "[driver.example]", (taken, 0)), LIMITS)
        with listener, listener.open_attempt() as one, listener.open_attempt() as another:
            addresses = [one.address, another.address]
        assert [address.host for address in addresses] == ["driver.example"] * 2
        assert addresses[0].port == addresses[1].port != taken
        said = rf"driver_port='{taken}'.*Address already in use"
        listener = StreamListener(StreamEndpoint(HOST, HOST, (taken,)), LIMITS)
        with listener, pytest.raises(ConfigurationError, match=said), listener.open_attempt() as refused:
            _ = refused.address


def test_the_listener_of_a_query_that_has_ended_gives_its_port_to_another() -> None:
    """The query was stopped, its sink is still there, and another query is started in its process."""
    with StreamListener(StreamEndpoint(HOST, HOST), LIMITS, is_needed=lambda: False) as stopped:
        with stopped.open_attempt() as attempt:
            port = attempt.address.port
        with StreamListener(StreamEndpoint(HOST, HOST, (port,)), LIMITS) as listener, listener.open_attempt() as opened:
            assert opened.address.port == port
            send_whole(opened.address, 0, b"arrives")
        # The first one is not lost by that.
        with stopped.open_attempt() as again:
            send_whole(again.address, 0, b"arrives too")
            assert list(again.finished) == [0]


def test_nothing_is_left_of_a_listener() -> None:
    process = psutil.Process()
    before = (threading.active_count(), process.num_fds())
    with ExitStack() as stack, a_listener(encrypted=True) as listener, ExitStack() as connections:
        attempt = stack.enter_context(listener.open_attempt())
        connections.enter_context(TaskStream(attempt.address, 0, 0)).rows(0, b"row", 1)
        connections.enter_context(TaskStream(attempt.address, 1, 1)).finish()
        connections.enter_context(socket.create_connection((HOST, attempt.address.port)))
    assert (threading.active_count(), process.num_fds()) == before
    assert isinstance(attempt.failure, BatchRetryError)
