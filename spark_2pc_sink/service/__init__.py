"""Dual writes of a service, without Spark: a session of SQLAlchemy's and Kafka in one decision.

::

    dual = DualWrite(transactional_id="shop", kafka={"bootstrap.servers": "broker:9092"}, database="postgresql://…")
    with dual.transaction(session) as tx:
        session.add(order)
        tx.send("orders", order.key, order.as_json())

The recipe is that of a micro-batch: records are sent in a Kafka transaction, the database transaction with the rows
writes the state row last, its COMMIT decides, and EndTxn completes. A service has many transactions at the same time,
and Kafka has one for each transactional id. So a process holds several ids, each with a state row of its own, and a
transaction takes one of them when its block has ended.

Reading order: ``dual_write`` and ``async_dual_write`` (what a program uses), ``transaction`` (what a block may do),
``enlisted`` (the database transaction that a block has joined), ``commitment`` (one transaction on its way through the
recipe), ``id_writer`` (one transactional id), ``id_pool`` (all of a process), ``outgoing`` (records on their way into
batches; pure).
"""
