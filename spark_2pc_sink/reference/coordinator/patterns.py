"""The id pattern of ListTransactions v2 (KIP-1152): RE2 syntax, matched against the whole id.

The pattern comes from a client, so its matching time must be linear in the id: Python's ``re`` backtracks, and one
request could stop the broker. Kafka uses RE2/J; here Arrow's kernel does it, whose engine is RE2 itself and which this
package depends on anyway.
"""

from __future__ import annotations

from collections.abc import Sequence


def matching(pattern: str, names: Sequence[str]) -> list[bool] | None:
    """For each name whether the whole of it matches, or None when the pattern is no RE2 pattern.

    Args:
        pattern: without anchors; ``orders-.*`` does not match ``my-orders-1``.
        names: the transactional ids.
    """
    # Imported here because it takes a quarter of a second and most brokers are never asked for a pattern.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    try:
        # Alone first, on one name (an empty array is answered without looking at the pattern): in the anchors a stray
        # parenthesis could find a partner.
        pc.match_substring_regex(pa.array([""]), pattern)
        matched = pc.match_substring_regex(pa.array(names, pa.string()), rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid:
        return None
    return list(matched.to_pylist())
