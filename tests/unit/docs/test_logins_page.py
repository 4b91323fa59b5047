"""docs/logins.md: its functions do what the page says, with stand-ins for packages of clouds; its settings are read."""

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

from spark_2pc_sink.logins.tokens import token_source
from spark_2pc_sink.options import KafkaOptions
from spark_2pc_sink.options.sources import read_toml_file

PAGE = (Path(__file__).parents[3] / "docs" / "logins.md").read_text()
EXPIRY_S = 4_102_444_800


def block(marker: str, language: str = "python") -> str:
    """The one block of the page that has this in it."""
    [found] = [code for code in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if marker in code]
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
