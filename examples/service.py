"""An order service without Spark: each order is a row and a record, by one decision.

Several threads take orders. Run it, kill it at any moment, run it again: the table and the topic have the same orders.

    python examples/service.py --bootstrap localhost:9092 --database postgresql://user@localhost/shop --orders 1000
"""

from __future__ import annotations

import argparse
import json
import uuid
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from spark_2pc_sink import DualWrite


class Base(DeclarativeBase):
    """The tables of the service."""


class Order(Base):
    """One order."""

    __tablename__ = "service_orders"

    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    total: Mapped[int]

    def as_json(self) -> str:
        """The value of its record."""
        return json.dumps({"id": self.id, "customer": self.customer, "total": self.total})


class OrderService:
    """An order service.

    Args:
        engine: the database.
        dual: writes rows and records in one decision.
        topic: gets a record for each order.
    """

    def __init__(self, engine: Engine, dual: DualWrite, topic: str) -> None:
        self._engine = engine
        self._dual = dual
        self._topic = topic

    def take(self, customer: str, total: int) -> str:
        """Take one order: when this returns, the table and the topic have it."""
        order = Order(id=str(uuid.uuid4()), customer=customer, total=total)
        with Session(self._engine) as session, self._dual.transaction(session) as tx:
            session.add(order)
            tx.send(self._topic, order.customer, order.as_json())
            return order.id


def main() -> None:
    """Take some orders at the same time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True, help="bootstrap.servers of Kafka")
    parser.add_argument("--database", required=True, help="SQLAlchemy URL of PostgreSQL")
    parser.add_argument("--topic", default="service-orders", help="it has to exist")
    parser.add_argument("--orders", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=8)
    given = parser.parse_args()
    engine = create_engine(given.database, pool_size=given.threads)
    Base.metadata.create_all(engine)
    kafka = {"bootstrap.servers": given.bootstrap}
    with DualWrite(transactional_id="orders-service", kafka=kafka, database=given.database) as dual:
        service = OrderService(engine, dual, given.topic)
        with ThreadPoolExecutor(given.threads) as threads:
            taken = [threads.submit(service.take, f"customer-{number % 100}", number) for number in range(given.orders)]
            for each in taken:
                each.result()
    print(f"{given.orders} orders are in the table and in the topic")


if __name__ == "__main__":
    main()
