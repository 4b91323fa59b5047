"""The choice of tables: those that a verification compares, with the topics of each."""

from __future__ import annotations

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.layout import SinkLayout
from spark_2pc_sink.options.names import TableName
from spark_2pc_sink.verification.claims import Claim, Claims
from spark_2pc_sink.verification.evidence import Evidence
from spark_2pc_sink.verification.reading import Bounds
from spark_2pc_sink.verification.request import OF_ONE_TABLE, Request
from spark_2pc_sink.verification.table_pairs import TablePair, chosen_pair, same_table, table_pairs


def chosen_pairs(request: Request, evidence: Evidence) -> tuple[TablePair | None, ...]:
    """The tables to compare; None is the one of a sink whose topics all have the records of its rows.

    Raises:
        ConfigurationError: the table, the topic, or what else is said of a table, is none of the sink's, or of no one
            table.
    """
    topic = request.topic
    _check_topic(topic, evidence)
    layout = evidence.layout
    if layout is None:
        return (None if topic is None else _of_one_topic(evidence, topic),)
    if not layout.lanes and topic is None and not _has_replaced_its_table(request, evidence, layout):
        return (None,)
    pairs = table_pairs(evidence.noted, evidence.claims, topic=topic)
    if not layout.lanes:
        return pairs or (None,)
    return _wanted(request, pairs)


def open_pairs(request: Request, evidence: Evidence, bounds: Bounds) -> tuple[TablePair, ...]:
    """The tables of a sink with several outputs to compare with an open transaction, as its newest start had them.

    Args:
        request: of the caller.
        evidence: has the layouts.
        bounds: of the transaction, without dead letters.

    Raises:
        ConfigurationError: as above.
    """
    _check_topic(request.topic, evidence)
    claims = Claims(claims=(Claim(batch=None, decision=0, ranges=bounds),))
    return _wanted(request, table_pairs(evidence.noted[-1:], claims, topic=request.topic))


def _check_topic(topic: str | None, evidence: Evidence) -> None:
    if topic is not None and topic not in evidence.logs.topic_ids and topic not in evidence.claims.topics:
        raise ConfigurationError(
            option="topic",
            value=topic,
            rule="it is a topic that the sink writes, and there is none of this name",
            remedy=f"its topics are {', '.join(sorted(evidence.claims.topics)) or 'not known'}",
        )


def _wanted(request: Request, pairs: tuple[TablePair, ...]) -> tuple[TablePair, ...]:
    """Of several tables the one that is named, else all."""
    if request.target.table is not None:
        return (chosen_pair(pairs, request.target.table),)
    if len(pairs) > 1:
        _refuse_form(request)
    return pairs


def _has_replaced_its_table(request: Request, evidence: Evidence, layout: SinkLayout) -> bool:
    """Whether a sink of one table wrote another one before, which is still there, and was not only renamed."""
    if layout.table is None or not same_table(request.target.table or layout.table, layout.table):
        return False
    named = {lane.table for each in evidence.noted for lane in each.layout.each if lane.table is not None}
    others = [str(TableName.parse(table)) for table in named if not same_table(table, layout.table)]
    with evidence.snapshot.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM unnest(%s::text[]) AS n WHERE to_regclass(n) IS NOT NULL)", (others,)
        )
        ((found,),) = cursor.fetchall()
    return bool(found)


def _of_one_topic(evidence: Evidence, topic: str) -> TablePair:
    """Of a sink that has noted nothing."""
    only = frozenset({topic})
    return TablePair(None, "", (only,) * len(evidence.claims.claims), only)


def _refuse_form(request: Request) -> None:
    """Refuse what is about one table where several are compared."""
    for name in OF_ONE_TABLE:
        if request.shape[name]:
            raise ConfigurationError(
                option=name,
                value=request.shape[name],
                rule="the sink has several tables, and it is about one of them",
                remedy="pass table (--table) too",
            )
