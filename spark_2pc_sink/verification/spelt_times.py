"""Dates, timestamps and intervals in Spark's spelling, which PostgreSQL does not read, or not see to be equal.

Pure: SQL texts. A question mark stands for a value in what they become part of, so no pattern has one.
"""

from __future__ import annotations

from typing import Final

#: The types of columns whose text begins with a year.
DATED: Final = frozenset({"date", "timestamp", "timestamptz"})

# Only days that there are, from 4700 BC to 199999: PostgreSQL would refuse the whole record for any other text that
# looks like a timestamp.
_YEAR: Final = r"(\d{4}|\+[1-9]\d{4}|\+1\d{5}|-[0-3]\d{3}|-4[0-6]\d\d)"
_DAY: Final = r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_LEAP_DAY: Final = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29"
_TIME: Final = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+|)"
_OFFSET: Final = r"(Z|[+-](0\d|1[0-5]):[0-5]\d(:[0-5]\d|))"
_INSTANT: Final = f"({_YEAR}-{_DAY}|{_LEAP_DAY})T{_TIME}{_OFFSET}"


def dated_sql(spelt: str, kind: str) -> str:
    """A date or a timestamp, also of a year that PostgreSQL spells in another way than Java: +10000, 0000, -0100.

    Args:
        spelt: SQL of the text.
        kind: one of `DATED`.
    """
    year = rf"substring(ltrim({spelt}, '-') from '^\d+')"
    rest = rf"substring(ltrim({spelt}, '-') from '^\d+(.*)$')"
    before_christ = f"lpad((1 + {year}::bigint)::text, 4, '0') || {rest} || ' BC'"
    return (
        # The first look is cheap, and settles nearly all.
        f"(CASE WHEN left({spelt}, 1) NOT IN ('+', '-', '0') THEN {spelt} "
        rf"WHEN {spelt} ~ '^\+\d' THEN substr({spelt}, 2) "
        rf"WHEN {spelt} ~ '^(-\d+|0000)-\d\d-\d\d' THEN {before_christ} "
        f'ELSE {spelt} END)::pg_catalog."{kind}"'
    )


def interval_sql(spelt: str) -> str:
    """An interval as PostgreSQL spells it, or as Spark does: ``INTERVAL '-1 02:03' DAY TO MINUTE``.

    Args:
        spelt: SQL of the text.
    """
    sign = f"CASE WHEN {spelt} ~ '^INTERVAL ''-' THEN -1 ELSE 1 END"
    hours = f"CASE WHEN {spelt} ~ 'MINUTE TO SECOND$' THEN '00:' END"
    rest = (
        f"CASE WHEN {spelt} ~ 'DAY TO HOUR$' THEN ':00' "
        f"WHEN {spelt} !~ ' TO ' THEN substring({spelt} from ' [A-Z]+$') END"
    )
    of_spark = f"({sign}) * concat({hours}, substring({spelt} from '''-*([^'']*)'''), {rest})::interval"
    return f"(CASE WHEN {spelt} ~ '^INTERVAL ' THEN {of_spark} ELSE {spelt}::interval END)"


def instants_sql(json: str) -> str:
    """JSON with the seconds since 1970 in place of each timestamp that has a time zone.

    Args:
        json: SQL of JSON, or of its text.
    """
    # A timestamp stands between two quotes; a quote inside of a text only makes more pieces, on both sides alike.
    seconds = f"extract(epoch FROM {dated_sql('piece', 'timestamptz')})::text"
    made = f"CASE WHEN piece ~ '^{_INSTANT}$' THEN {seconds} ELSE piece END"
    return (
        f"(SELECT string_agg({made}, '\"' ORDER BY n)::jsonb "
        f"FROM string_to_table(({json})::text, '\"') WITH ORDINALITY AS p (piece, n))"
    )
