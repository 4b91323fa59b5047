"""Kafka property names that have no field: those the sink fixes, and those that belong elsewhere.

Sources: Java's ``ProducerConfig`` (Kafka 4.x) and librdkafka's CONFIGURATION.md. A name is listed here when a user
who copies a working producer configuration is likely to use it; each gets the reason and an alternative.
"""

from __future__ import annotations

#: Spark's Kafka sink passes client properties under this prefix; here they have none.
SPARK_PREFIX = "kafka."

_ACKS = "a transactional producer waits for all in-sync replicas (KIP-98)"
_IDEMPOTENCE = "a transactional producer is idempotent (KIP-98)"

#: name -> the values that match the sink's behaviour, and why it cannot be changed.
FIXED: dict[str, tuple[tuple[str, ...], str]] = {
    "acks": (("all", "-1"), _ACKS),
    "request.required.acks": (("all", "-1"), _ACKS),
    "enable.idempotence": (("true",), _IDEMPOTENCE),
}

_SERIALIZED = "give key= and value= as SQL expressions of type string or binary; Spark does the conversion"
_LINGER = "leave it out: a task has all its rows at hand and fills each record batch without waiting"
_RETRIES = "set delivery.timeout.ms: requests are sent again until that deadline"
_PARTITIONER = (
    "records go where Java's default partitioner puts them (murmur2 of the key); give partition= as a SQL expression"
)
_PEM_FILE = "write the PEM text to a file that driver and executors can read, and give the ...location property"
_PEM_STORE = "PEM files have no store password; convert the store to PEM and leave this out"

#: Other places to configure a Kerberos login.
KERBEROS_TICKETS = (
    "set KRB5_CLIENT_KTNAME (a keytab) or KRB5CCNAME (tickets that something renews) in the environment of driver and "
    "executors; see docs/logins.md"
)
_KERBEROS = f"leave it out: {KERBEROS_TICKETS}"
_JVM_CLASS = "give oauth_cb, a Python function that returns tokens"
_ENDPOINT_TIMES = "leave it out: a token endpoint has 5 s, and is asked again until max.block.ms is over"
_RENEWAL = "leave it out: tokens are renewed when 80 % of their life has passed"
_ASSERTION = "give oauth_cb, a function that asks with an assertion and returns the token"

#: name -> what to do instead.
REFUSED: dict[str, str] = {
    "transactional.id": "give it as transactional_id=",
    "transaction.two.phase.commit.enable": (
        "leave it out: the sink finds out what the broker grants; TransactionalWriter has two_phase_commit=True"
    ),
    "key.serializer": _SERIALIZED,
    "value.serializer": _SERIALIZED,
    "linger.ms": _LINGER,
    "queue.buffering.max.ms": _LINGER,
    "queue.buffering.max.messages": _LINGER,
    "queue.buffering.max.kbytes": _LINGER,
    "batch.num.messages": "set batch.size, in bytes",
    "buffer.memory": "leave it out: a task holds at most 32 MiB of batches and 32 MiB of rows",
    "compression.level": "set compression.zstd.level or compression.gzip.level, which are Java's names",
    "compression.lz4.level": "leave it out: lz4 is for speed, and always at its fastest",
    "retries": _RETRIES,
    "message.send.max.retries": _RETRIES,
    "partitioner": _PARTITIONER,
    "partitioner.class": _PARTITIONER,
    "interceptor.classes": "there is no JVM producer that could run them",
    "metric.reporters": "there is no JVM producer that could run them; the sink's figures are in its batch reports",
    "sasl.client.callback.handler.class": "give oauth_cb, a Python function that returns tokens",
    "sasl.login.class": "leave it out: there is no JVM that could run it",
    "sasl.login.connect.timeout.ms": _ENDPOINT_TIMES,
    "sasl.login.read.timeout.ms": _ENDPOINT_TIMES,
    "sasl.login.retry.backoff.ms": _ENDPOINT_TIMES,
    "sasl.login.retry.backoff.max.ms": _ENDPOINT_TIMES,
    "sasl.login.refresh.window.factor": _RENEWAL,
    "sasl.login.refresh.window.jitter": _RENEWAL,
    "sasl.login.refresh.min.period.seconds": _RENEWAL,
    "sasl.login.refresh.buffer.seconds": _RENEWAL,
    "sasl.oauthbearer.header.urlencode": "leave it out: id and secret go into the header as they are; where an issuer "
    "wants something else, give oauth_cb",
    "sasl.kerberos.principal": _KERBEROS,
    "sasl.kerberos.keytab": _KERBEROS,
    "sasl.kerberos.kinit.cmd": _KERBEROS,
    "sasl.kerberos.min.time.before.relogin": _KERBEROS,
    "sasl.kerberos.ticket.renew.window.factor": _KERBEROS,
    "sasl.kerberos.ticket.renew.jitter": _KERBEROS,
    "sasl.oauthbearer.grant.type": "leave it out: a client asks with its id and secret (client_credentials); for "
    "another grant give oauth_cb, a function that returns tokens",
    "sasl.oauthbearer.jwt.retriever.class": _JVM_CLASS,
    "sasl.oauthbearer.jwt.validator.class": _JVM_CLASS,
    "sasl.oauthbearer.assertion.file": _ASSERTION,
    "sasl.oauthbearer.assertion.private.key.file": _ASSERTION,
    "sasl.oauthbearer.assertion.algorithm": _ASSERTION,
    "sasl.oauthbearer.metadata.authentication.type": "give oauth_cb, a function that asks the metadata service; see "
    "docs/logins.md",
    "enable.sasl.oauthbearer.unsecure.jwt": "leave it out: an unsigned token lets everybody in",
    "https.ca.pem": _PEM_FILE,
    "ssl.ca.pem": _PEM_FILE,
    "ssl.certificate.pem": _PEM_FILE,
    "ssl.key.pem": _PEM_FILE,
    "ssl.truststore.certificates": _PEM_FILE,
    "ssl.keystore.certificate.chain": _PEM_FILE,
    "ssl.keystore.key": _PEM_FILE,
    "ssl.truststore.password": _PEM_STORE,
    "ssl.keystore.password": _PEM_STORE,
    "enable.ssl.certificate.verification": "give the broker's certificate authority as ssl.ca.location instead",
    "isolation.level": "it is a reader's property: set read_committed where the topic is read",
    "group.id": "it is a reader's property, and the sink does not read",
}

#: What other Python clients call it, letters and digits only.
KNOWN_ELSEWHERE: dict[str, str] = {
    "saslplainusername": "sasl.username",
    "saslplainpassword": "sasl.password",
    "sslcafile": "ssl.ca.location",
    "sslcertfile": "ssl.certificate.location",
    "sslkeyfile": "ssl.key.location",
    "sslpassword": "ssl.key.password",
    "sslcrlfile": "ssl.crl.location",
    "sslcheckhostname": "ssl.endpoint.identification.algorithm",
    "brokers": "bootstrap.servers",
    "brokerlist": "bootstrap.servers",
}
