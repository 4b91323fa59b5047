"""Dual writes of a service, without Spark: a SQLAlchemy session and Kafka in one decision.

::

    dual = DualWrite(transactional_id="shop", kafka={"bootstrap.servers": "broker:9092"}, database="postgresql://…")
    with dual.transaction(session) as tx:
        session.add(order)
        tx.send("orders", order.key, order.as_json())

The recipe is that of a micro-batch: records are sent in a Kafka transaction, the database transaction with the rows
writes the state row last, its COMMIT decides, and EndTxn completes. A service runs many transactions at a time, and
Kafka allows one for each transactional id. So a process holds several ids, each with its own state row, and a
transaction takes one of them when its block has ended.

Reading order: ``dual_write`` and ``async_dual_write`` (the public classes), ``transaction`` (a block: its records and
its database transaction), ``service`` (a process, and the steps of one transaction), ``id_writer`` (one transactional
id), ``id_pool`` (all of a process).
"""
