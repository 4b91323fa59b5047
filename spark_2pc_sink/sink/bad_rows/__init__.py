"""Bad rows: rows that PostgreSQL or Kafka cannot take, found one by one and kept as dead letters."""
