"""RUNBOOK.md's answers lead to the ends that it promises; the functions of docs/logins.md do what the page says."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from jdbc_state import Actor
from spark_2pc_sink.choices import TABLE, HaltCause, problem_in
from spark_2pc_sink.logins.tokens import token_source
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.sources import read_toml_file
from spark_2pc_sink.runbook.conversation import Conversation, IncidentLog, RunbookEnd
from spark_2pc_sink.runbook.sides import Picture, Readers
from tests.harness.page_blocks import PAGE, Way, ways
from tests.unit.runbook.fake_sides import ALIVE, BLOCKED, HANGING, FakeSides, Script, halted, in_doubt, owed, picture

TEXT = PAGE.read_text()
WAYS = ways()
ANSWERED = [way for way in WAYS if way.answers]
VALUES = {"ID": "orders", "…": "--bootstrap-server h:9092", "N": "7", "FIRST..LAST": "8..9"}
_REPLAYED = {"outcome_lost", "topic_remade", "resend_differs"}
#: What is left to the person at the end of a way, where its answers settle nothing by themselves.
BY_HAND = {
    "driver_alive",
    "owed",
    "not_known",
    "kafka_out_of_reach",
    "database_out_of_reach",
    "readers_blocked",
    "id_in_use",
    "other_query",
    "not_the_first_batch",
    "gap",
    "batches_restarted",
    "replay_differs",
    "not_handed_over",
    *_REPLAYED,
}


def looks_of(name: str) -> list[Picture]:
    """What is seen of an incident, and after what the page tells to do."""
    made: dict[str, list[Picture]] = {
        "nothing_wrong": [picture()],
        "driver_alive": [in_doubt(driver=ALIVE)],
        "in_doubt": [in_doubt(), picture()],
        "owed": [owed()],
        "lost_row": [in_doubt("rebuild_row", before=None), picture()],
        "not_known": [Picture(transactional_id="orders")],
        "kafka_out_of_reach": [Picture(transactional_id="orders", kafka_problem="refused")],
        "database_out_of_reach": [Picture(transactional_id="orders", database_problem="refused")],
        "hanging_transaction": [picture(readers=Readers(hanging=(HANGING,))), picture()],
        "readers_blocked": [picture(readers=BLOCKED)],
        "other_query": [picture()],
        "commits_lost": [halted(HaltCause.DATABASE_BEHIND), picture()],
        "open_transaction": [halted(HaltCause.ID_IN_USE), halted(HaltCause.ID_IN_USE), picture()],
        "other_batch_owed": [owed(), picture()],
        "resend_differs": [owed(), owed()],
    }
    if name in made:
        return made[name]
    cause = HaltCause(name)
    return [picture() if TABLE[cause].job_only else halted(cause), owed() if name in _REPLAYED else picture()]


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((PAGE.parent / "docker/prometheus/alerts.yml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def test_each_cause_has_its_answers() -> None:
    assert [way.incident for way in ANSWERED if way.incident in {cause.value for cause in HaltCause}] == list(HaltCause)


@pytest.mark.parametrize("way", ANSWERED, ids=lambda way: way.incident)
def test_the_answers_lead_through_the_runbook(way: Way) -> None:
    """Each question has the words of the page, none is left over, and the end is as the page says."""
    (command,) = way.commands
    words = way.words(command, VALUES)
    told = problem_in(words[words.index("--cause") + 1]) if "--cause" in words else None
    script = Script(way.stdin(VALUES).splitlines())
    now = datetime(2026, 11, 24, tzinfo=timezone.utc)
    protocol = IncidentLog(Actor(os_user="me", host="here", program="spark-2pc"), now=lambda: now)
    sides = FakeSides(*looks_of(way.incident))
    ending = Conversation(sides, script, protocol, told=told).run("orders")
    assert len(script.questions) == len(way.answers)
    for asked, (part, _) in zip(script.questions, way.answers, strict=True):
        assert part in asked
    left = [step.text for step in protocol.steps if step.kind == "left"]
    assert bool(left) is (way.incident in BY_HAND)
    assert (ending is RunbookEnd.SETTLED) is not bool(left)
    if way.options is not None:
        assert all(f"{name}=" in left[-1] for name in way.options)
    assert not any(step.kind == "failed" for step in protocol.steps)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_each_alert_has_a_section_that_it_names(alert: dict[str, Any]) -> None:
    """A section leads on: to a symptom, to what the error of a job says, or to what to do."""
    name = alert["alert"]
    assert alert["annotations"]["runbook"] == f"RUNBOOK.md#{name.lower()}"
    assert re.search(rf"^### {name}\n\n\S", TEXT, re.MULTILINE)


def test_each_command_is_for_an_incident() -> None:
    """So each is run by the tests of the incidents."""
    assert "```console\n" not in TEXT
    assert all(way.commands for way in WAYS)


LOGINS = (Path(__file__).parents[3] / "docs" / "logins.md").read_text()
EXPIRY_S = 4_102_444_800


def block(marker: str, language: str = "python") -> str:
    """The one block of the page that has this in it."""
    [found] = [code for code in re.findall(rf"```{language}\n(.*?)```", LOGINS, re.DOTALL) if marker in code]
    return str(found)


def package(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """A module of that name, and the packages above it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        monkeypatch.setitem(sys.modules, module.__name__, sys.modules.get(module.__name__, module))
    for item, value in contents.items():
        monkeypatch.setattr(sys.modules[name], item, value, raising=False)
    if len(parts) > 1:
        monkeypatch.setattr(sys.modules[".".join(parts[:-1])], parts[-1], sys.modules[name], raising=False)


def run(code: str, **names: Any) -> dict[str, Any]:
    """What the code makes, beside the names that it is given."""
    exec(compile(code, "docs/logins.md", "exec"), names)  # noqa: S102 - the page's own
    return names


def token_of(options: dict[str, Any]) -> tuple[str, float | None]:
    source = token_source(KafkaOptions.parse(options))
    assert source is not None
    token = source.token()
    return token.value, token.expires_at_s


def test_a_token_of_ones_own() -> None:
    def login(audience: str) -> SimpleNamespace:
        return SimpleNamespace(token=f"for.{audience}", expires_at=EXPIRY_S)

    kafka = run(block("my_company.login"), my_company=SimpleNamespace(login=login))["kafka"]
    assert token_of(kafka) == ("for.kafka", EXPIRY_S)


def test_a_token_of_entra(monkeypatch: pytest.MonkeyPatch) -> None:
    class DefaultAzureCredential:
        def get_token(self, scope: str) -> SimpleNamespace:
            return SimpleNamespace(token=f"for.{scope[8:12]}", expires_on=EXPIRY_S)

    package(monkeypatch, "azure.identity", DefaultAzureCredential=DefaultAzureCredential)
    assert token_of(run(block("DefaultAzureCredential"))["kafka"]) == ("for.shop", EXPIRY_S)


def test_a_token_of_google(monkeypatch: pytest.MonkeyPatch) -> None:
    class Credentials:
        service_account_email = "job@shop.iam.gserviceaccount.com"
        token: str | None = None
        expiry: datetime | None = None

        def refresh(self, _request: object) -> None:
            self.token = "ya29.token"
            # Without a time zone, as google-auth has it.
            self.expiry = datetime.fromtimestamp(EXPIRY_S, timezone.utc).replace(tzinfo=None)

    package(monkeypatch, "google.auth", default=lambda scopes: (Credentials(), scopes))
    package(monkeypatch, "google.auth.transport.requests", Request=object)
    function = run(block("GOOG_OAUTH2_TOKEN"))["google_token"]
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": function}
    value, expires_at_s = token_of({"bootstrap.servers": "h:9092", **login})
    header, claims, token = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in value.split("."))
    assert json.loads(header)["alg"] == "GOOG_OAUTH2_TOKEN"
    assert json.loads(claims)["exp"] == expires_at_s == EXPIRY_S
    assert token == b"ya29.token"


def test_a_token_of_rds(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the vendor's package; no database is asked."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    began_s = time.time()
    token = run(block("generate_db_auth_token"))["rds_token"]()
    assert token.startswith("shop.abc123.eu-west-1.rds.amazonaws.com:5432/?Action=connect&DBUser=job&")
    assert "X-Amz-Expires=900" in token
    assert time.time() - began_s < 60


@pytest.mark.parametrize("marker", ["token.endpoint.url", "msk_iam"])
def test_the_settings_of_files_are_read(marker: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text(block(marker, "toml"))
    kafka = read_toml_file(file, {"ORDERS_SECRET": "secret"}).kafka
    assert token_source(KafkaOptions.parse(kafka)) is not None
