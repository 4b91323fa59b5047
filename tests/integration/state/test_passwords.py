"""A store whose role gets new passwords while it works, and the places where libpq finds passwords by itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url
from sqlalchemy.engine import URL

from jdbc_state.connections import Database
from tests.harness.changing_role import ChangingRole, changing_role
from tests.harness.later import later
from tests.integration.state.state_stores import CLUSTER, ID, QUERY, RUN, settings, sql_store

pytestmark = pytest.mark.postgres


@pytest.fixture
def role(database: str) -> Iterator[ChangingRole]:
    with changing_role(database) as made:
        yield made


def text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def test_each_new_connection_has_the_password_of_now(role: ChangingRole) -> None:
    """Of the claim's, of the decision's, and of the session that shows the driver."""
    with sql_store(text(role.url), password=role.ask) as store:
        for run in range(3):
            claimed = store.claim(transactional_id=ID, cluster_id=CLUSTER, query_id=QUERY, run_id=f"{RUN}-{run}")
            asked = role.asked
            role.change()
            assert store.read(ID) == claimed  # by the connection that is kept
            assert role.asked == asked
            role.cut()
            assert store.read(ID) is not None  # by a new one
            assert role.asked > asked


def test_a_password_that_comes_late_is_waited_for(role: ChangingRole) -> None:
    """As a server that is away for a moment: the one who gives passwords may be, too."""
    with sql_store(text(role.url), password=role.ask) as store:
        assert store.read(ID) is None
        right, role.password = role.password, "of yesterday"
        role.cut()
        with later(0.5, setattr, role, "password", right):
            assert store.read(ID) is None


def test_the_log_of_the_pool_has_no_secret_of_the_url(
    database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy logs each connection by its repr, in which psycopg2 hides the password and nothing else."""
    monkeypatch.setattr(logging.getLogger("sqlalchemy"), "level", logging.DEBUG)
    url = text(make_url(database).update_query_dict({"sslpassword": "planted"}))
    with caplog.at_level(logging.DEBUG):
        kept = Database(url, settings())
        kept.open("look").close()
        alone = kept.session("look")
        kept.close()
    assert "Created new connection <connection 0x" in caplog.text
    assert "planted" not in caplog.text + repr(alone) + str(alone)
    alone.close()
