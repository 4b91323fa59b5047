"""What a job shows: an error is told once, and nothing has a secret."""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from sqlalchemy import make_url

from spark_2pc_sink.testing.spark import spark_environment
from tests.conftest import or_skip
from tests.harness import ROOT, run_program
from tests.harness.secrets_main import SITE
from tests.harness.secure_kafka import PLAIN_PASSWORD, SecureKafka, plain_login
from tests.harness.sql import ChangingRole, changing_role
from tests.harness.token_issuer import SECRET_PART, TokenBroker
from tests.integration.postgres import database_tables
from tests.integration.sink.targets import Target

pytestmark = [pytest.mark.kafka, pytest.mark.java, pytest.mark.spark]
#: As a person writes it, with Spark's own settings of its log.
JOB: Final = """
import json, sys
from pyspark.sql import SparkSession
from spark_2pc_sink import DualWriteSink
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(10).selectExpr("id", "IF(id = 3, 'a' || char(0), 'b') AS name").write.parquet(sys.argv[2] + "/input")
stream = spark.readStream.schema("id BIGINT, name STRING").parquet(sys.argv[2] + "/input")
writer = stream.writeStream.option("checkpointLocation", sys.argv[2] + "/checkpoint").trigger(availableNow=True)
writer.foreachBatch(DualWriteSink(**json.loads(sys.argv[1]))).start().awaitTermination()
"""
#: Spark prints an error of foreachBatch in its own log, as the cause there, and where the program ends; we print one.
REPETITIONS_MAX: Final = 4
#: One frame, of two lines, in each of Spark's tracebacks, of which it prints four.
OUR_FRAMES_MAX: Final = 4
#: Lines in all, without progress bars; 396 before the sink raised its errors once.
LINES_MAX: Final = 150


@pytest.mark.slow
def test_the_error_of_a_job_is_not_buried(target: Target, tmp_path: Path) -> None:
    """One line of the sink has cause and remedy; Spark's output is bounded in lines and in repetitions."""
    (tmp_path / "job.py").write_text(JOB)
    options = json.dumps(target.options())
    env = {**os.environ, **spark_environment(tmp_path), "PYTHONPATH": str(ROOT)}
    done = run_program(sys.executable, str(tmp_path / "job.py"), options, str(tmp_path), code=1, env=env)
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("[Stage")]
    mine = [line for line in lines if f"{target.transactional_id}: UnstorableValueError: " in line]
    assert len(mine) == 1
    assert "cannot be stored" in mine[0]
    assert sum("cannot be stored" in line for line in lines) <= REPETITIONS_MAX
    assert sum("spark_2pc_sink/" in line for line in lines) <= OUR_FRAMES_MAX
    assert sum("spark_2pc_sink.errors.UnstorableValueError: " in line for line in lines) == REPETITIONS_MAX - 1
    assert len(lines) <= LINES_MAX, "\n".join(lines)
    password = make_url(target.database).password
    assert password is None or str(password) not in "".join(lines)


SERVICE: Final = "shop"


def planted(name: str) -> str:
    """A secret that is found however it is quoted."""
    return f"{name}{secrets.token_hex(12)}"


def forms(secret: str) -> Iterator[bytes]:
    """A secret as it stands in text, and as it stands in Base64 behind whatever comes before it."""
    yield secret.encode()
    for shift in range(3):
        encoded = base64.b64encode(b" " * shift + secret.encode())
        # The first and the last characters depend on what is around them.
        yield encoded[4:-4]


@pytest.fixture
def secure(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[SecureKafka]:
    (tmp_path / "certificates").mkdir()
    kafka = or_skip(pytestconfig, lambda: SecureKafka(tmp_path / "certificates"))
    with kafka.broker as broker:
        broker.create_topic("t", partitions=3)
        yield kafka


@pytest.fixture
def tokens(pytestconfig: pytest.Config) -> Iterator[TokenBroker]:
    with or_skip(pytestconfig, TokenBroker) as broker:
        broker.create_topic("t", partitions=3)
        yield broker


@pytest.fixture
def role(database: str) -> Iterator[ChangingRole]:
    with changing_role(database) as made:
        yield made


def encrypted_key(kafka: SecureKafka, password: str) -> dict[str, str]:
    """Properties of a client whose private key has a password."""
    pem = (kafka.folder / "client.pem").read_bytes()
    key = load_pem_private_key(pem, password=None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
    (kafka.folder / "locked.pem").write_bytes(locked)
    return {
        "ssl_certificate_location": str(kafka.folder / "client.pem"),
        "ssl_key_location": str(kafka.folder / "locked.pem"),
        "ssl_key_password": password,
    }


def recorded(tokens: TokenBroker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens that are issued from now on."""
    issued: list[str] = []
    issue = tokens.issuer.token

    def record(*arguments: Any) -> tuple[str, float]:
        token, expires = issue(*arguments)
        issued.append(token)
        return token, expires

    monkeypatch.setattr(tokens.issuer, "token", record)
    return issued


def password_files(role: ChangingRole, folder: Path) -> dict[str, str]:
    """Files with the role's password: password, a service, and one of libpq's own; the environment that names these."""
    (folder / "password").write_text(role.password)
    url, passwords, services = role.url, folder / "pgpass", folder / "services"
    passwords.touch(mode=0o600)
    passwords.write_text(f"localhost:{url.port}:{url.database}:{url.username}:{role.password}\n")
    named = {"host": url.host, "port": url.port, "dbname": url.database, "user": url.username}
    lines = [f"{name}={value}" for name, value in (named | {"password": role.password}).items()]
    services.write_text("\n".join([f"[{SERVICE}]", *lines, ""]))
    return {"PGPASSFILE": str(passwords), "PGSERVICEFILE": str(services)}


def run(jobs: list[dict[str, Any]], folder: Path, more: dict[str, str]) -> Path:
    """Run `tests.harness.secrets_main`; where everything is that it showed."""
    shown, site = folder / "shown", folder / "site"
    for each in (shown, site):
        each.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    file = folder / "jobs.json"
    file.write_text(json.dumps(jobs))
    environment = {**os.environ, **more, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "PLANTED_LOGS": str(shown)}
    done = run_program(sys.executable, "-m", "tests.harness.secrets_main", str(file), str(shown), env=environment)
    (shown / "stdout.txt").write_text(done.stdout)
    (shown / "stderr.txt").write_text(done.stderr)
    return shown


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_nothing_that_a_job_shows_has_a_secret(
    secure: SecureKafka,
    tokens: TokenBroker,
    role: ChangingRole,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every place that people or programs look at.

    Logs of ours and of libraries, of driver and workers; reprs, errors; Spark's UI, event log and plans; process lists;
    tables of state and history; metrics; the dashboard; each command with and without --json.
    """
    shown_tokens = recorded(tokens, monkeypatch)
    wanted = {name: planted(name) for name in ("sslpassword", "keypassword", "wrongsasl", "wrongdatabase", "inspark")}
    by_url = role.url.set(password=role.password).update_query_dict({"sslpassword": wanted["sslpassword"]})
    written, login = by_url.render_as_string(hide_password=False), plain_login()
    environment = {"PLANTED_IN_SPARK": wanted["inspark"], **password_files(role, tmp_path)}
    with_key = secure.properties("SASL_SSL", **login, **encrypted_key(secure, wanted["keypassword"]))
    plain, wrong = (secure.properties("SASL_SSL", **login), {"sasl_password": wanted["wrongsasl"]})
    elsewhere = {"kafka": tokens.client_properties(), "state_table": "other_state"}
    wrong_url = by_url.set(password=wanted["wrongdatabase"]).render_as_string(hide_password=False)
    without = role.url.render_as_string()
    jobs: list[dict[str, Any]] = [
        {"kafka": with_key, "database": written},
        {**elsewhere, "database": without, "password_file": str(tmp_path / "password")},
        {"kafka": plain, "database": without, "password_command": f"cat {tmp_path / 'password'}"},
        {"kafka": plain, "database": f"postgresql:///?service={SERVICE}"},
        {"kafka": plain, "database": role.url.set(host="localhost").render_as_string()},
        {"kafka": secure.properties("SASL_SSL", **login | wrong), "database": written, "expect": "AuthorizationError"},
        {"kafka": plain, "database": wrong_url, "expect": "DatabaseRefusedError"},
    ]
    for number, job in enumerate(jobs):
        job |= {"transactional_id": f"planted-{number}", "expect": job.get("expect", "")}
    shown = run(jobs, tmp_path, environment)
    tables = database_tables.rows(database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    rows = [database_tables.rows(database, f'SELECT t::text FROM "{name}" AS t') for (name,) in tables]
    (shown / "tables.txt").write_text(repr(rows))
    everything = {path: path.read_bytes() for path in shown.rglob("*") if path.is_file() and "local" not in path.parts}
    assert shown_tokens
    all_secrets = {**wanted, "sasl": PLAIN_PASSWORD, "database": role.password, "issuer": SECRET_PART}
    all_secrets |= {f"token {number}": token for number, token in enumerate(shown_tokens)}
    found = {
        (name, str(path.relative_to(shown)), where_in(content, form))
        for name, secret in all_secrets.items()
        for form in forms(secret)
        for path, content in everything.items()
        # A setting of Spark's is in command lines and in Spark's log: only Spark's own pages redact it.
        if form in content and (name != "inspark" or path.name.startswith("ui-") or "eventlog" in str(path))
    }
    assert found == set()
    # Tasks get no secret at all.
    sent_by = {number: (tmp_path / f"pickles-{number}").iterdir() for number in range(5)}
    pickles = {number: b"".join(path.read_bytes() for path in paths) for number, paths in sent_by.items()}
    assert all(f"planted-{number}".encode() in content for number, content in pickles.items())
    sent = {
        (number, name)
        for number, content in pickles.items()
        for name, each in all_secrets.items()
        if each.encode() in content
    }
    assert sent == set()
    # It would find one: what is no secret is everywhere.
    holding = [path.name for path, content in everything.items() if b"planted-0" in content]
    assert {"stdout.txt", "metrics.txt", "dashboard-0.html", "tables.txt"} <= {*holding}
    assert any(name.startswith("python-") for name in holding)
    assert any(name.startswith("local-") or "events" in name for name in holding)


def where_in(content: bytes, form: bytes) -> str:
    """What stands before a secret."""
    at = content.index(form)
    return content[max(0, at - 80) : at].decode(errors="replace")
