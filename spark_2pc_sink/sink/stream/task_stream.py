"""A task's end of the stream, and its frames.

A connection starts with the attempt's token (`TOKEN_BYTES`), followed by frames: a fixed header, details and a payload.
The header contains every length. Frames are numbered from 0 in each connection, so a gap or a repeated frame is an
error. The driver answers with messages of one byte; those in `_WITH_TEXT` are followed by a length and that many bytes.
Frames of 256 KiB to 1 MiB cost least: a frame of 64 KiB takes twice the CPU time per byte.

A task waits for the driver as long as the driver shows activity: it reads, or it sends `DriverMessage.ALIVE`, every few
seconds while it waits for the database or for Kafka. After ``io_deadline_s`` without activity, the task gives up.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import IntEnum
from time import monotonic
from typing import Any, Final

from spark_2pc_sink.errors import BatchRetryError, RemoteProtocolError
from spark_2pc_sink.wire.record_batch import EMPTY_DIGEST, EncodedBatch, combine_digests

TOKEN_BYTES: Final = 32
#: A sender collects small pieces of rows into frames of this size.
FRAME_BYTES: Final = 512 * 1024
#: PostgreSQL's largest field has 1 GiB, and max.request.size of Kafka's producer is below that.
PAYLOAD_BYTES_MAX: Final = 1 << 30
#: A question of a task, and its answer.
QUESTION_BYTES_MAX: Final = 64 * 1024

#: Kind, lane, number, count, lengths of details and payload.
HEADER: Final = struct.Struct(">BHIIHI")
#: Task and task attempt.
HELLO: Final = struct.Struct(">IQ")
#: Partition, digest, lengths of topic and key.
RECORDS: Final = struct.Struct(">i16sHh")
_ANSWER: Final = struct.Struct(">BI")
NO_KEY: Final = -1


class FrameKind(IntEnum):
    """What a frame contains. A connection is one HELLO, then ROWS, RECORDS and QUESTION in any order, then END."""

    HELLO = 1
    ROWS = 2
    RECORDS = 3
    QUESTION = 4
    END = 5


class DriverMessage(IntEnum):
    WELCOME = 1
    #: The driver is not reading for now, but it is alive.
    ALIVE = 2
    ANSWER = 3
    RECEIPT = 4
    #: The attempt is over for this task; the text gives the reason.
    REFUSED = 5


_WITH_TEXT: Final = (DriverMessage.ANSWER, DriverMessage.REFUSED)


@dataclass(frozen=True)
class Frame:
    """One frame."""

    kind: FrameKind
    #: At least one byte. Writable if received: the driver writes producer id, epoch and sequence into a record batch.
    payload: memoryview
    lane: int = 0
    count: int = 0
    details: bytes = b""

    @property
    def frame_bytes(self) -> int:
        return len(self.details) + len(self.payload)

    def header(self, number: int) -> bytes:
        """The bytes before details and payload on the wire; ``number`` counts the frames of a connection from 0."""
        return HEADER.pack(self.kind, self.lane, number, self.count, len(self.details), len(self.payload))


#: No frame may be empty.
END: Final = Frame(FrameKind.END, memoryview(bytes(1)))


def packed_details(batch: EncodedBatch) -> bytes:
    topic = batch.partition.topic.encode()
    key = b"" if batch.row_key is None else batch.row_key.encode()
    digest = batch.digest.to_bytes(16, "big")
    key_bytes = NO_KEY if batch.row_key is None else len(key)
    return RECORDS.pack(batch.partition.partition, digest, len(topic), key_bytes) + topic + key


@dataclass(frozen=True)
class LaneTotals:
    """Totals that one task has sent for one output."""

    row_bytes: int = 0
    rows: int = 0
    record_bytes: int = 0
    records: int = 0
    digest: int = EMPTY_DIGEST

    def __add__(self, other: LaneTotals) -> LaneTotals:
        return LaneTotals(
            self.row_bytes + other.row_bytes,
            self.rows + other.rows,
            self.record_bytes + other.record_bytes,
            self.records + other.records,
            combine_digests(self.digest, other.digest),
        )

    @classmethod
    def of(cls, frame: Frame, batch: EncodedBatch | None) -> LaneTotals:
        if batch is None:
            return cls(row_bytes=len(frame.payload), rows=frame.count)
        return cls(record_bytes=len(frame.payload), records=batch.record_count, digest=batch.digest)


def packed_message(message: DriverMessage, text: bytes = b"") -> bytes:
    return _ANSWER.pack(message, len(text)) + text if message in _WITH_TEXT else bytes([message])


def next_message(received: bytearray) -> tuple[DriverMessage, bytes] | None:
    """Take the next complete message out of ``received``; None if more bytes are needed."""
    if not received:
        return None
    if received[0] not in set(DriverMessage):
        raise RemoteProtocolError(peer="the driver", detail=f"it sent the byte {received[0]}")
    message, end = DriverMessage(received[0]), 1
    if message in _WITH_TEXT:
        if len(received) < _ANSWER.size:
            return None
        _, text_bytes = _ANSWER.unpack_from(received)
        if text_bytes > QUESTION_BYTES_MAX:
            raise RemoteProtocolError(peer="the driver", detail=f"{message.name} announces {text_bytes} bytes")
        end = _ANSWER.size + text_bytes
        if len(received) < end:
            return None
    text = bytes(received[_ANSWER.size : end])
    del received[:end]
    return message, text


#: A smaller payload is copied after its header, and sent with others; a larger one is sent without copying.
_COPIED_BYTES_MAX: Final = 64 * 1024
_CONNECT_S_MAX: Final = 15.0
_REMEDY: Final = (
    "Executors must reach this address: check spark.driver.host and spark.driver.bindAddress, and open the port to "
    "them (driver_port or driver_port_range fixes it)"
)


@dataclass(frozen=True)
class StreamAddress:
    """The destination of an attempt's tasks. Can be pickled; must not be logged or displayed."""

    host: str
    port: int
    token: bytes = field(repr=False)
    #: PEM of the only certificate that is accepted; None without encryption.
    certificate: str | None = field(default=None, repr=False)
    #: Seconds without activity of the driver after which a task gives up.
    io_deadline_s: float = 60.0


class StreamOutput(ABC):
    """A task's output: rows are collected into frames, and totals are counted."""

    def __init__(self) -> None:
        self._collected: dict[int, tuple[bytearray, int]] = {}
        #: The totals sent, by lane; complete after `finish`.
        self.totals: dict[int, LaneTotals] = {}

    def rows(self, lane: int, data: Any, count: int) -> None:
        """Send COPY bytes of whole rows, without header and trailer; above 1 MiB in parts: it becomes one frame."""
        view = memoryview(data).cast("B")
        if not len(view):
            return
        large = len(view) >= FRAME_BYTES
        if large or len(self._collected.get(lane, ((), 0))[0]) + len(view) > FRAME_BYTES:
            self._send_rows(lane)
        if large:
            self._put_counted(Frame(FrameKind.ROWS, view, lane, count))
            return
        collected, before = self._collected.get(lane) or (bytearray(), 0)
        collected += view
        self._collected[lane] = collected, before + count

    def records(self, lane: int, batch: EncodedBatch) -> None:
        payload = memoryview(batch.payload).cast("B")
        self._put_counted(Frame(FrameKind.RECORDS, payload, lane, batch.record_count, packed_details(batch)), batch)

    def ask(self, question: bytes) -> bytes:
        """The driver's answer to a question; both have at most ``QUESTION_BYTES_MAX`` bytes."""
        self._put(Frame(FrameKind.QUESTION, memoryview(question)))
        return self._receive(DriverMessage.ANSWER)

    def finish(self) -> None:
        """Send the rest; when this returns, the driver has everything, and another attempt of the task fails."""
        for lane in list(self._collected):
            self._send_rows(lane)
        self._put(END)
        self._receive(DriverMessage.RECEIPT)

    def _send_rows(self, lane: int) -> None:
        if lane in self._collected:
            collected, count = self._collected.pop(lane)
            self._put_counted(Frame(FrameKind.ROWS, memoryview(collected), lane, count))

    def _put_counted(self, frame: Frame, batch: EncodedBatch | None = None) -> None:
        self._put(frame)
        self.totals[frame.lane] = self.totals.get(frame.lane, LaneTotals()) + LaneTotals.of(frame, batch)

    @abstractmethod
    def _put(self, frame: Frame) -> None: ...

    @abstractmethod
    def _receive(self, expected: DriverMessage) -> bytes:
        """Wait for a message of the driver; its text."""


class TaskStream(StreamOutput):
    """The output of a task, over a connection, open within the block, that never waits without a deadline."""

    def __init__(self, address: StreamAddress, task: int, task_attempt: int) -> None:
        super().__init__()
        self._address = address
        self._hello = Frame(FrameKind.HELLO, memoryview(HELLO.pack(task, task_attempt)))
        self._next_number = 0
        self._socket: socket.socket
        self._out = bytearray()
        self._received = bytearray()
        self._alive_s = 0.0
        self._lost_by: OSError | None = None

    def __enter__(self) -> TaskStream:
        # The driver knows of the attempt before it has rows: it drops what an earlier one has sent.
        self.connect(self._hello)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, *first: Frame) -> None:
        """Connect, show the token, and wait until the driver accepts it; then send the first frames."""
        address = self._address
        connect_s = min(_CONNECT_S_MAX, address.io_deadline_s)
        try:
            plain = socket.create_connection((address.host, address.port), timeout=connect_s)
        except OSError as error:
            raise self._error(f"cannot connect within {connect_s:g} s: {error}", remedy=_REMEDY) from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket = plain if address.certificate is None else _encrypted(plain, address.certificate)
            self._socket.settimeout(0)
        except (OSError, ssl.SSLError) as error:
            plain.close()
            remedy = "The certificate is made for each run of the query: does another program listen on this port?"
            raise self._error(f"TLS failed: {error}", remedy=remedy) from error
        self._alive_s = monotonic()
        try:
            self._send_all(memoryview(address.token))
            self._receive(DriverMessage.WELCOME)
            for frame in first:
                self._put(frame)
            self._flush()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def _put(self, frame: Frame) -> None:
        """Send a frame; small ones are buffered until there are more of them, or until `_flush`."""
        self._out += frame.header(self._next_number) + frame.details
        self._next_number += 1
        if len(frame.payload) < _COPIED_BYTES_MAX:
            self._out += frame.payload
            if len(self._out) >= FRAME_BYTES:
                self._flush()
            return
        self._flush()
        self._send_all(frame.payload)

    def _flush(self) -> None:
        out, self._out = self._out, bytearray()
        self._send_all(memoryview(out))

    def _receive(self, expected: DriverMessage) -> bytes:
        self._flush()
        while (text := self._take(expected)) is None:
            self._wait(select.POLLIN)
            self._read()
        return text

    def _send_all(self, data: memoryview) -> None:
        while data:
            # A refusal is noticed before more is sent.
            self._read()
            self._take(None)
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                self._wait(select.POLLIN | select.POLLOUT)
            except OSError as error:
                self._read()
                self._lost_by = self._lost_by or error
            else:
                data = data[sent:]
                self._alive_s = monotonic()

    def _wait(self, events: int) -> None:
        deadline_s = self._address.io_deadline_s
        left_s = self._alive_s + deadline_s - monotonic()
        poll = select.poll()
        poll.register(self._socket, events)
        if left_s <= 0 or not poll.poll(left_s * 1000):
            remedy = "Is its process stopped, or does a firewall drop idle connections?"
            raise self._error(f"no activity from the driver for {deadline_s:g} s", remedy=remedy)

    def _read(self) -> None:
        """Read available bytes from the driver, without waiting."""
        try:
            while received := self._socket.recv(FRAME_BYTES):
                self._received += received
                self._alive_s = monotonic()
            self._lost_by = ConnectionResetError("the driver closed it")
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._lost_by = error

    def _take(self, expected: DriverMessage | None) -> bytes | None:
        """The text of the expected message, if it has arrived. The driver's go first: they explain lost connections."""
        while True:
            try:
                found = next_message(self._received)
            except RemoteProtocolError as error:
                raise self._error(str(error)) from error
            if found is None:
                break
            message, text = found
            if message is DriverMessage.REFUSED:
                raise BatchRetryError(reason=f"the driver ended the attempt: {text.decode(errors='replace')}")
            if message is expected:
                return text
            if message is not DriverMessage.ALIVE:
                raise self._error(f"{message.name} arrived out of order")
        if self._lost_by is not None:
            remedy = "See the driver's log"
            raise self._error(f"the connection is lost: {self._lost_by}", remedy=remedy) from self._lost_by
        return None

    def _error(self, what: str, *, remedy: str = "") -> BatchRetryError:
        address = self._address
        where = f"{socket.gethostname()} to the driver at {address.host}:{address.port}"
        return BatchRetryError(reason=f"{where}: {what}. {remedy}".rstrip())


def unreachable(address: StreamAddress) -> str | None:
    """Why this process cannot send to the driver, with the option that helps; None if it can."""
    stream = TaskStream(address, 0, 0)
    try:
        stream.connect()
    except BatchRetryError as error:
        return str(error)
    stream.close()
    return None


def _encrypted(plain: socket.socket, certificate: str) -> ssl.SSLSocket:
    """TLS with the pinned certificate only; the name in it does not matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    encrypted = context.wrap_socket(plain)
    if encrypted.getpeercert(binary_form=True) != ssl.PEM_cert_to_DER_cert(certificate):
        encrypted.close()
        raise ssl.SSLCertVerificationError("the certificate is not the one of this run")
    return encrypted
