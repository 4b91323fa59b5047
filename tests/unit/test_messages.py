"""What people read: calls and what they say are in messages.txt, ``python -m tests.unit.test_messages --write``.

A person reads a refusal once and has to find the value, the rule and a remedy in it. Other tests go by the class of an
error and the option that it names. The same commit that changes a sentence changes the file, whose diff shows it.
"""

# Calls name what is imported:
# ruff: noqa: F401

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest import mock

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError as LibraryError
from pyspark.sql import types as t
from sqlalchemy import make_url

from jdbc_state import SchemaReport
from jdbc_state.database_kind import check_kind, kind_by_version
from spark_2pc_sink import DualWrite, DualWriteSink, PreparedTxnState, Records, Rows, __version__, cli
from spark_2pc_sink.cli import transactions as transactions_command, verify as verify_command
from spark_2pc_sink.cli.serving import host_and_port
from spark_2pc_sink.cli.sinks import status_text
from spark_2pc_sink.errors import AbortRefusedError, ConfigurationError, HaltCause
from spark_2pc_sink.ids import BatchRange, TopicPartition, check_transactional_id
from spark_2pc_sink.logins.msk import msk_iam
from spark_2pc_sink.logins.tokens import token_source
from spark_2pc_sink.monitoring.dashboard import sink_views
from spark_2pc_sink.options import KafkaOptions, RecoveryOptions, TableName
from spark_2pc_sink.options.database import PasswordCommand, parse_database_url
from spark_2pc_sink.options.names import check_topic
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from spark_2pc_sink.options.sink import BadRowLimit
from spark_2pc_sink.options.sources import read_environment, read_properties_file, read_toml_file
from spark_2pc_sink.producer import TransactionalWriter
from spark_2pc_sink.recovery.report import RecoveryReport, StatusReport, UnreadableSink
from spark_2pc_sink.serialisation.avro_schema import avro_encoder, derived_schema, parsed_schema
from spark_2pc_sink.serialisation.binding import SchemaRequest, bind
from spark_2pc_sink.serialisation.protobuf_schema import compiled_message, derived_text, protobuf_encoder
from spark_2pc_sink.service.transaction import OutgoingRecord
from spark_2pc_sink.sink.check.check import guarantee
from spark_2pc_sink.sink.check.findings import Finding
from spark_2pc_sink.sink.check.kafka_side import CheckedTopic, TopicRight, Trial
from spark_2pc_sink.sink.job.classic_query import check_query
from spark_2pc_sink.sink.job.executors import ExecutorAnswer
from spark_2pc_sink.sink.records.record_columns import KEY, PARTITION, TOPIC as TOPIC_COLUMN, VALUE
from spark_2pc_sink.sink.records.record_expressions import check_taken, choose_expressions
from spark_2pc_sink.sink.rows.catalog import TargetTable
from spark_2pc_sink.sink.rows.column_plan import ColumnPlan, create_table_ddl, order_column, plan_columns
from spark_2pc_sink.sink.rows.copy_encoder import CopyEncoder
from spark_2pc_sink.transactions import (
    AbortedOpenTransaction,
    HangingTransaction,
    TerminatedTransaction,
    TransactionDetails,
    TransactionListing,
)
from tests.unit.cli.test_cli_transactions import DIFFERENT, SIDES as VERIFIED, FakeTool
from tests.unit.cli.test_status import forty
from tests.unit.monitoring.samples import halted, in_doubt, owed, row, sink as a_sink
from tests.unit.options.test_sink_options import REQUIRED, sink
from tests.unit.recovery.test_report import DECIDED, FINE
from tests.unit.serialisation.test_binding import (
    KEY as OF_KEY,
    VALUE as OF_VALUE,
    given_order,
    record,
    registry,
    struct,
)
from tests.unit.serialisation.test_encoders import column as arrow_column
from tests.unit.sink.check.test_check_rules import DATABASE, KAFKA, TOPIC, of_database, of_kafka, options
from tests.unit.sink.job.test_executors import answer, faults
from tests.unit.sink.job.test_queries import execution
from tests.unit.sink.job.test_receipts import partitions_of
from tests.unit.sink.records.test_record_json import chosen, table_of
from tests.unit.sink.rows.test_column_plan import KEYED, column, numeric, planned, table
from tests.unit.sink.rows.test_copy_encoder import batch_of, plan_for

FILE: Final = Path(__file__).with_name("messages.txt")
#: In no form of an error.
SECRET: Final = "pass-word"
SERVERS: Final = {"bootstrap.servers": "h:9092"}
UPSERT: Final[dict[str, Any]] = {"mode": "upsert", "upsert_keys": ["id"]}
IGNORE: Final[dict[str, Any]] = {"mode": "insert_ignore", "upsert_keys": ["id"]}
SCRAM: Final = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "shop",
    "sasl.password": SECRET,
}
#: Without a user.
OTHER_SCRAM: Final = SCRAM | {"sasl.username": None, "sasl.password": None}
OAUTH: Final = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
OIDC: Final = OAUTH | {
    "sasl.oauthbearer.method": "OIDC",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token",
    "sasl.oauthbearer.client.id": "orders",
    "sasl.oauthbearer.client.secret": SECRET,
}
JAAS: Final = "org.apache.kafka.common.security.{} required {};"


def recovery(**given: Any) -> None:
    RecoveryOptions.parse(**{name: value for name, value in REQUIRED.items() if name != "table"}, **given)


def service(**given: Any) -> None:
    DualWrite(**{"transactional_id": "shop", "kafka": SERVERS, "database": "postgresql://h/d", **given})


def kafka(properties: dict[str, Any]) -> KafkaOptions:
    return KafkaOptions.parse(SERVERS | {name: value for name, value in properties.items() if value is not None})


def toml(text: str, **variables: str) -> None:
    Path("sink.toml").write_text(text)
    read_toml_file(Path("sink.toml"), variables)


def from_toml(line: str) -> None:
    head = 'transactional_id = "orders"\ndatabase = "postgresql://job@h/shop"\ntable = "orders"\n'
    Path("sink.toml").write_text(f'{head}{line}\n[kafka]\nbootstrap.servers = "h:9092"\n')
    with mock.patch.dict(os.environ, {"PASSWORD": SECRET, "NUMBER": "-70915"}):
        DualWriteSink.from_toml("sink.toml")


def from_env(**variables: str) -> None:
    given = {"DATABASE": "postgresql://job@h/shop", "KAFKA_BOOTSTRAP_SERVERS": "h:9092", "TABLE": "t", **variables}
    with mock.patch.dict(os.environ, {f"SHOP_{name}": text for name, text in given.items()}):
        DualWriteSink.from_env(prefix="SHOP_")


def properties(content: str) -> None:
    Path("client.properties").write_text(content)
    read_properties_file(Path("client.properties"), option="--config")


def outgoing(**given: Any) -> None:
    named = {"topic": "x", "key": "k", "value": "v", **given}
    OutgoingRecord.of(named.pop("topic"), named.pop("key"), named.pop("value"), **named)


def token(options: dict[str, Any]) -> None:
    source = token_source(kafka(OAUTH | options))
    assert source is not None
    source.token()


def columns(*names: str, target: TargetTable) -> None:
    plan_columns([(name, t.LongType()) for name in names], target, Rows("orders"))


def upsert(*keys: str) -> None:
    plan_columns([(name, t.LongType()) for name in "abc"], KEYED, Rows("orders", mode="upsert", keys=keys))


def avro(kind: Any, schema: Any) -> None:
    avro_encoder(struct("f", kind), schema)


def copied(plan: ColumnPlan, values: Any) -> None:
    """Rows, of which none is encoded."""
    encoder = CopyEncoder(replace(plan.copy_plan, row_keys=("id",)))
    try:
        encoder.checked(batch_of(values))
    finally:
        assert (encoder.rows, encoder.finish()) == (0, b"")


def placed(**columns: Any) -> None:
    names = {"key": KEY, "partition": PARTITION, "topic": TOPIC_COLUMN}
    partitions_of("orders", {VALUE: [b"v"] * 3, **{names[name]: values for name, values in columns.items()}})


def password(code: str) -> None:
    PasswordCommand(shlex.join([sys.executable, "-c", code]), 30)()


def checked(findings: list[Finding]) -> str:
    return "\n".join(f"{each.level}: {each.subject}: {each.text}; {each.remedy}" for each in findings)


def cluster(**changed: Any) -> str:
    return checked(of_kafka(replace(KAFKA, **changed)))


def topic(**changed: Any) -> str:
    return cluster(topics=(replace(TOPIC, **changed),))


def letters(**configs: str) -> str:
    own = {"max.message.bytes": configs["bytes"], "cleanup.policy": configs.get("cleanup", "delete")}
    bad = replace(TOPIC, name="bad", configs={**(TOPIC.configs or {}), **own})
    return checked(of_kafka(replace(KAFKA, topics=(TOPIC, bad)), bad_rows="dead_letter", dead_letter_topic="bad"))


def database(**changed: Any) -> str:
    return checked(of_database(replace(DATABASE, **changed)))


def promise(**changed: Any) -> str:
    return guarantee(options(), replace(KAFKA, **changed), DATABASE)


def hosts(*answers: ExecutorAnswer) -> str:
    return "\n".join(faults(*answers)).replace(__version__, "VERSION") or "(no fault)"


def shown(report: RecoveryReport) -> str:
    badge = sink_views.badge(report)
    return f"{badge.tone}: {badge.text}; {sink_views.pending(report) or 'nothing is pending'}"


def dashboard(**changes: Any) -> str:
    return shown(a_sink(**changes))


def status(found: StatusReport) -> str:
    return status_text(found)


def unreadable(kafka_problem: str) -> str:
    broken = UnreadableSink("bad", "database", "status 'gone' is none of …")
    return status(StatusReport(sinks=(FINE,), unreadable=(broken,), kafka_problem=kafka_problem))


def unread(database_problem: str) -> str:
    unclear = replace(DECIDED, known=None, row=None, before=None)
    return status(StatusReport(sinks=(unclear,), database_problem=database_problem))


def verified() -> str:
    printed = StringIO()
    with mock.patch.object(verify_command, "verify", return_value=DIFFERENT), redirect_stdout(printed):
        cli.main(["verify", *VERIFIED])
    return printed.getvalue()


def value_of(kind: Any, *, status: int | None = None, **changes: Any) -> None:
    bound(replace(OF_VALUE, **changes), kind, status=status)


def key_of(kind: Any, **changes: Any) -> None:
    bound(replace(OF_KEY, **changes), kind)


def bound(request: SchemaRequest, kind: Any, *, status: int | None = None) -> None:
    """With a registry in memory, which may answer with this status."""
    memory: Any = SchemaRegistryClient.new_client({"url": "mock://binding"})
    if status is not None:
        memory.lookup_schema = mock.Mock(side_effect=LibraryError(status, -1, "said"))
    with mock.patch.object(SchemaRegistryClient, "new_client", return_value=memory):
        bind(request, kind, registry())


def protobuf_of(kind: Any, value: Any) -> None:
    whole = struct("f", kind)
    protobuf_encoder(whole, compiled_message(derived_text(whole, "V"))).body(arrow_column(whole, [{"f": value}]))


def avro_of_null() -> None:
    kind = struct("place", struct("street", t.StringType()))
    place = {"type": "record", "name": "P", "fields": [{"name": "street", "type": "string"}]}
    schema = parsed_schema(json.dumps({"type": "record", "name": "V", "fields": [{"name": "place", "type": place}]}))
    avro_encoder(kind, schema).pieces(arrow_column(kind, [{"place": {"street": None}}]))


def spark_2pc(words: str, line: str = "") -> str:
    """A command, beside the file orders.toml, which has this line too."""
    Path("orders.toml").write_text(
        f'{line}\ntransactional_id = "orders"\ndatabase = "postgresql://h/d"\ntable = "orders"\n'
        '[kafka]\nbootstrap.servers = "h:1"\n'
    )
    printed = StringIO()
    with redirect_stderr(printed):
        code = cli.main(shlex.split(words))
    return f"exit code {code}: {printed.getvalue().splitlines()[-1]}"


def transactions(words: str, **answers: Any) -> str:
    """What the tool was asked, whose answers are given, and what is printed."""
    tool, out, err = FakeTool(), StringIO(), StringIO()
    tool.answers = answers
    with (
        mock.patch.object(transactions_command, "TransactionTool", tool.connect),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = cli.main(["transactions", *shlex.split(words), "--bootstrap-server", "h:1"])
    printed = [line.replace("\t", "⇥ ").rstrip() for line in out.getvalue().splitlines()]
    printed += [f"stderr: {line}" for line in err.getvalue().splitlines()]
    return "\n".join([*map(str, tool.calls), *printed, f"exit code {code}"])


def said(call: str) -> str:
    """What a call says; with the class of its error where that is no `ConfigurationError`."""
    whole: list[str] = []
    try:
        text = eval(call, globals())  # noqa: S307 - a line of our own file
    except Exception as error:  # noqa: BLE001 - which class it has is a part of what is compared
        text = getattr(error, "sentence", str(error))
        text = text if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {text}"
        whole += [*traceback.format_exception(error), repr(error)]
    assert isinstance(text, str), f"it was taken: {call}"
    assert SECRET not in "".join([text, *whole]), call
    return text


def lines() -> Iterator[str]:
    """The file as it would be written now."""
    for line in FILE.read_text().splitlines():
        if not line.startswith("    "):
            yield line
            if line and not line.startswith("#"):
                yield from (f"    {part}" for part in said(line).splitlines() if part)


def test_each_call_says_what_the_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CONFIG", "DATABASE", "BOOTSTRAP_SERVER", "COMMAND_CONFIG"):
        monkeypatch.delenv(f"SPARK_2PC_{name}", raising=False)
    assert list(lines()) == FILE.read_text().splitlines()


def test_a_url_in_a_remedy_is_taken() -> None:
    """With the password in the place that it names."""
    urls = re.findall(r"pass '(postgresql:.*?)'", FILE.read_text())
    assert len(urls) == 8
    for url in urls:
        taken = make_url(parse_database_url(url.replace("***", "secret")))
        assert taken.password == ("secret" if "***" in url else None)


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        FILE.write_text("\n".join(lines()) + "\n")
