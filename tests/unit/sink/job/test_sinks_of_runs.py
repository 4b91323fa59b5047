"""Two sinks of one transactional id in one query: the second would write nothing, without an error."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from spark_2pc_sink.errors import ConfigurationError, HaltCause, HaltError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.sink.job.calling_query import RunIds
from spark_2pc_sink.sink.job.sinks_of_runs import Call, SinksOfRuns, what_is_written

RUN = RunIds("query", "run")


def options(**given: Any) -> SinkOptions:
    base = {
        "transactional_id": "orders",
        "kafka": {"bootstrap.servers": "h:1"},
        "database": "postgresql+psycopg2://job:secret@h/shop",
        "topic": "orders",
        "table": "orders",
    }
    return SinkOptions.parse(**{**base, **given})


def check_in(sinks: SinksOfRuns, run: RunIds = RUN, *, active: bool = True, **given: Any) -> None:
    sinks.check_in(run, options(**given), is_active=lambda _: active)


@pytest.fixture
def sinks() -> SinksOfRuns:
    sinks = SinksOfRuns()
    check_in(sinks)
    return sinks


@pytest.mark.parametrize(
    "given",
    [
        {"topic": "others"},
        {"table": "others"},
        {"database": "postgresql://job@h/other"},
        {"key": "id"},
        {"value": "'v'"},
        {"headers": "h"},
        {"partition": "0"},
        {"columns": {"id": "id"}},
        {"mode": "upsert", "upsert_keys": ["id"]},
        {"state_table": "other_state"},
    ],
)
def test_another_sink_of_the_id_is_refused(sinks: SinksOfRuns, given: dict[str, Any]) -> None:
    """A20: both are told apart by name, and the remedy is an id of its own. The first goes on."""
    with pytest.raises(ConfigurationError, match="transactional_id of its own") as refused:
        check_in(sinks, **given)
    assert f"{next(iter(given))}=" in refused.value.rule
    assert "secret" not in str(refused.value)
    check_in(sinks)


def test_a_sink_whose_options_were_refused_gives_way_until_a_batch_is_written(sinks: SinksOfRuns) -> None:
    """A person corrects them in the same process, as in a notebook."""
    refusal = ConfigurationError(option="columns", value="x", rule="it is none", remedy="name another one")
    for columns in (None, {"x": "a"}, {"x": "b"}):
        check_in(sinks, columns=columns)
        with pytest.raises(ConfigurationError, match="it is none"):
            call(sinks, 0, refusal)
    check_in(sinks, columns={"x": "c"})
    call(sinks, 0)
    with pytest.raises(ConfigurationError, match="it is none"):
        call(sinks, 1, refusal)
    with pytest.raises(ConfigurationError, match="transactional_id of its own"):
        check_in(sinks)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"transactional_id": "others", "table": "others"},
        {"lock_timeout_ms": 7_000, "on_batch": print},
        {"database": "postgresql://somebody:else@h/shop"},
    ],
)
def test_the_same_sink_built_anew_and_others_are_taken(sinks: SinksOfRuns, given: dict[str, Any]) -> None:
    """How a sink works may change, and its password."""
    check_in(sinks, **given)
    sinks.check_in(RUN, pickle.loads(pickle.dumps(options(**given))), is_active=lambda _: True)  # noqa: S301


def test_functions_that_are_made_anew_in_every_call_are_no_difference(sinks: SinksOfRuns) -> None:
    """No two functions are equal, and a job may build its sink in the function that it hands to Spark."""
    run = RunIds("query", "run with functions")
    for _ in range(2):
        check_in(sinks, run, on_decide=lambda *_: None, on_batch=lambda _: None)
    with pytest.raises(ConfigurationError, match="table="):
        check_in(sinks, run, table="others", on_decide=lambda *_: None)


def test_a_restarted_query_may_write_something_else(sinks: SinksOfRuns) -> None:
    """The state row says which batch it goes on with."""
    check_in(sinks, RunIds("query", "next run"), table="others")
    with pytest.raises(ConfigurationError):
        check_in(sinks, RunIds("query", "next run"))
    assert len(sinks) == 1


def test_queries_that_have_ended_are_forgotten(sinks: SinksOfRuns) -> None:
    for number in range(5):
        check_in(sinks, RunIds(f"query {number}", "run"), active=False)
    assert len(sinks) == 1


def test_of_two_threads_one_is_refused() -> None:
    """Both call for the first time at the same moment."""
    sinks, refused, ready = SinksOfRuns(), [], threading.Barrier(2)

    def call(table: str) -> None:
        ready.wait(10)
        try:
            check_in(sinks, table=table)
        except ConfigurationError as error:
            refused.append(error)

    threads = [threading.Thread(target=call, args=(table,)) for table in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(refused) == 1


def test_what_only_says_how_does_not_tell_two_sinks_apart() -> None:
    """The declaration says which options do."""
    written = what_is_written(options())
    assert not {"adopt", "kafka", "create_table", "lock_timeout_ms", "driver_port"} & written.keys()
    assert {"table", "topic", "state_table", "bad_rows", "value_format"} <= written.keys()


def halt(cause: HaltCause) -> HaltError:
    return HaltError(
        transactional_id="orders",
        cause=cause,
        database_side="batch 0, done",
        kafka_side="nothing in doubt",
        reason="as recovery sees it",
        remedies=("the way on",),
    )


def call(sinks: SinksOfRuns, batch_id: int, error: Exception | None = None, run: RunIds = RUN) -> None:
    with sinks.call(run, "orders", batch_id):
        if error is not None:
            raise error


def test_a_function_that_goes_on_after_an_error_is_told_so_at_the_next_batch(sinks: SinksOfRuns) -> None:
    """A23: with the error that it has swallowed; and again, as it swallows the halt too."""
    with pytest.raises(ValueError, match="out of range"):
        call(sinks, 1, ValueError("out of range"))
    for batch_id in (2, 3):
        with pytest.raises(HaltError, match=r"went on after an error .* in batch 1.*ValueError: out of") as halted:
            call(sinks, batch_id, halt(HaltCause.GAP))
        assert halted.value.cause is HaltCause.NOT_HANDED_OVER
        assert halted.value.remedies[0].startswith("call the sink for every batch")


def test_a_function_that_tries_the_same_batch_again_may(sinks: SinksOfRuns, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="for a moment"):
        call(sinks, 1, OSError("for a moment"))
    call(sinks, 1)
    call(sinks, 2)
    assert caplog.messages == []


def test_a_function_that_goes_on_with_luck_is_told_so_in_the_log(
    sinks: SinksOfRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch was in doubt, and has been completed since."""
    with pytest.raises(OSError, match="late"):
        call(sinks, 1, OSError("late"))
    call(sinks, 2)
    (said,) = caplog.messages
    assert "went on after an error of the sink in batch 1" in said


def test_a_second_call_for_one_batch_with_other_rows_is_named_as_that(sinks: SinksOfRuns) -> None:
    """A20: the first has written the batch, and the check of replays refuses the second."""
    call(sinks, 1)
    with pytest.raises(HaltError, match="called the sink twice for batch 1 in this run") as halted:
        call(sinks, 1, halt(HaltCause.REPLAY_DIFFERS))
    assert "unionByName" in halted.value.remedies[0]


@pytest.mark.parametrize("cause", [HaltCause.REPLAY_DIFFERS, HaltCause.GAP])
def test_another_run_s_calls_explain_nothing(sinks: SinksOfRuns, cause: HaltCause) -> None:
    with pytest.raises(OSError, match="late"):
        call(sinks, 1, OSError("late"))
    restarted = RunIds("query", "next run")
    check_in(sinks, restarted)
    with pytest.raises(HaltError, match="as recovery sees it"):
        call(sinks, 2, halt(cause), run=restarted)


@pytest.mark.parametrize(
    ("before", "batch_id", "cause"),
    [
        (Call(1, "error"), 2, HaltCause.REPLAY_DIFFERS),
        (Call(1, None), 2, HaltCause.GAP),
        (Call(1, None), 1, HaltCause.OTHER_BATCH_OWED),
        (Call(2, "error"), 1, HaltCause.GAP),
    ],
)
def test_other_halts_keep_their_reason(before: Call, batch_id: int, cause: HaltCause) -> None:
    halted = halt(cause)
    assert before.explain(halted, batch_id) is halted


def test_the_calls_of_a_query_that_was_forgotten_are_not_noted() -> None:
    call(SinksOfRuns(), 1)
