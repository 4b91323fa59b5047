"""A writer that is not the sink: rows of a table and a file for each message, kept together by jdbc_state alone.

The second system is a folder. A message is sent as ``<pair>.open`` and takes effect when it is renamed to
``<pair>.committed``, as a transaction of Kafka does by EndTxn. Run as ``other_writer.py URL FOLDER BATCH [--die]``: it
recovers, writes one batch, and with ``--die`` ends right after the decision, as a process that is killed there.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from jdbc_state import DECIDED, NONE, Decision, DualWriteError, SqlStateStore, StateRow

KILLED = 9


def recover(store: SqlStateStore, folder: Path) -> StateRow:
    """Claim the row, and bring the folder to what the database has decided."""
    row = store.claim(transactional_id="files", cluster_id="folder", query_id=None, run_id=None)
    if row.status == DECIDED:
        return complete(store, folder, row.generation, row.prepared_transaction_state)
    if row.status == NONE:
        return store.mark_initialized("files", row.generation, settled="0:0")
    return row


def complete(store: SqlStateStore, folder: Path, generation: int, pair: str) -> StateRow:
    """End the message's half as decided, and note it."""
    (folder / f"{pair}.open").rename(folder / f"{pair}.committed")
    return store.mark_done("files", generation, settled=pair)


def write(store: SqlStateStore, folder: Path, row: StateRow, batch_id: int, *, die: bool) -> None:
    """Write one batch of one row and one message."""
    pair = f"1:{batch_id}"
    (folder / f"{pair}.open").write_text(f"batch {batch_id}")
    with store.deciding("files", row.generation) as transaction:
        transaction.connection.execute(text("INSERT INTO target VALUES (:batch)"), {"batch": f"batch {batch_id}"})
        transaction.decide(
            Decision(
                prepared=pair,
                expected=row.prepared_transaction_state,
                batch_id=batch_id,
                row_count=1,
                record_count=1,
                digest="",
                kafka_offsets={},
            )
        )
    if die:
        os._exit(KILLED)
    complete(store, folder, row.generation, pair)


def main(url: str, folder: Path, batch_id: int, *, die: bool) -> None:
    """Recover, write one batch, and show that an older claim is refused."""
    with closing(SqlStateStore(url)) as store:
        store.prepare_schema()
        row = recover(store, folder)
        write(store, folder, row, batch_id, die=die)
        try:
            store.mark_done("files", row.generation - 1, settled="")
        except DualWriteError as error:
            print(type(error).__name__)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), die="--die" in sys.argv)
