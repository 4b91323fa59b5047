"""Rules of a check for Kafka: the consequence of each fact for the job. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.plural import counted
from spark_2pc_sink.sink.check.findings import Finding
from spark_2pc_sink.sink.check.kafka_side import (
    CLEANUP,
    DISKLESS,
    MAX_TIMEOUT,
    MESSAGE_BYTES,
    MIN_INSYNC,
    TRIAL,
    TWO_PHASE,
    UNCLEAN,
)
from spark_2pc_sink.sink.records.record_side import MESSAGE_BYTES_WANTED, too_small

if TYPE_CHECKING:
    from spark_2pc_sink.options import KafkaOptions, SinkOptions
    from spark_2pc_sink.sink.check.kafka_side import CheckedTopic, KafkaFacts, Trial

#: Kafka's default ``transaction.max.timeout.ms``, used if it cannot be read.
_MAX_TIMEOUT_MS: Final = 900_000
#: For topics created by the suggested command; a guess for the user to adjust.
_PARTITIONS: Final = 4
#: With these, losing one broker loses no acknowledged record.
_REPLICAS: Final = 3
_IN_SYNC: Final = 2
_TIMEOUT_OPTION: Final = "transaction.timeout.ms"


class TopicRight(IntEnum):
    """Codes of ``org.apache.kafka.common.acl.AclOperation`` that a sink needs on its topic."""

    READ = 3
    WRITE = 4


def timeout_ms(options: SinkOptions, kafka: KafkaFacts) -> int | None:
    """How long a transaction may stay open, and so how long a crash may last; None: indefinitely."""
    if grants_two_phase(kafka):
        return None
    allowed = (kafka.configs or {}).get(MAX_TIMEOUT)
    return options.kafka.transaction_timeout_ms or int(allowed or _MAX_TIMEOUT_MS)


def grants_two_phase(kafka: KafkaFacts) -> bool | None:
    """Whether transactions never time out (KIP-939); None if the brokers' configuration may not be read."""
    if not kafka.offers_two_phase:
        return False
    granted = (kafka.configs or {}).get(TWO_PHASE)
    return None if granted is None else granted == "true"


def kafka_findings(options: SinkOptions, kafka: KafkaFacts) -> Iterator[Finding]:
    """Findings about Kafka."""
    if kafka.problem:
        remedy = "correct bootstrap.servers, security.protocol or the login in kafka={...}; or start the brokers"
        yield Finding("brokers", "problem", kafka.problem, remedy)
        return
    yield Finding("brokers", "ok", f"connected to {counted(kafka.brokers, 'broker')} of cluster {kafka.cluster_id}")
    yield _transaction_version(options.kafka, kafka)
    yield _id(options, kafka)
    yield _end_of_transactions(options, kafka)
    if kafka.trial is not None:
        yield _trial(options, kafka.trial)
    for topic in kafka.topics:
        yield from _topic(options.kafka, kafka, topic)
        yield from _transactional(topic, kafka.trial)
        if topic.name == options.dead_letter_topic and topic.configs is not None:
            yield from _dead_letters(topic, topic.configs)
    if not options.topics and any(lane.records is not None for lane in options.lanes):
        yield Finding("topics", "not_checked", "each row names its topic", _tool(options.kafka, "topics", "--describe"))
    if kafka.log is not None and kafka.log.replicas < _REPLICAS:
        text = f"Kafka's transaction log has {counted(kafka.log.replicas, 'replica')}: it may be lost with its broker"
        yield Finding("transactions", "warning", text, f"give {kafka.log.name} {_REPLICAS} replicas")


def _tool(kafka: KafkaOptions, name: str, *words: str) -> str:
    """A command of Kafka's distribution for an administrator; brokers with authentication need client settings too."""
    servers = ",".join(kafka.bootstrap_servers)
    return shlex.join([f"kafka-{name}.sh", "--bootstrap-server", servers, *words])


def _acl(kafka: KafkaOptions, resource: Sequence[str], *operations: str) -> str:
    """The command that grants a right to this user. Only brokers know the name of a user that logs in without one."""
    anonymous = "ANONYMOUS" if kafka.security_protocol == "PLAINTEXT" else "NAME"
    to = ("--add", "--allow-principal", f"User:{kafka.sasl_username or anonymous}")
    return _tool(kafka, "acls", *to, *resource, *(word for each in operations for word in ("--operation", each)))


def _transaction_version(options: KafkaOptions, kafka: KafkaFacts) -> Finding:
    level = kafka.transaction_version
    if level >= 2:  # noqa: PLR2004 - the level is the name
        return Finding("transaction.version", "ok", f"{level}: each transaction has its own epoch (KIP-890)")
    remedy = _tool(options, "features", "upgrade", "--feature", "transaction.version=2")
    text = f"{level}: only the markers in the log show how a transaction ended, as long as they are retained"
    return Finding("transaction.version", "warning", text, remedy)


def _id(options: SinkOptions, kafka: KafkaFacts) -> Finding:
    subject, name = "transactional id", options.transactional_id
    if kafka.id_allowed:
        return Finding(subject, "ok", f"this user may write {name}")
    text = f"this user may not write {name}, or not even describe it"
    return Finding(subject, "problem", text, _acl(options.kafka, ("--transactional-id", name), "Write"))


def _end_of_transactions(options: SinkOptions, kafka: KafkaFacts) -> Finding:
    limit_ms, granted = timeout_ms(options, kafka), grants_two_phase(kafka)
    subject = "two-phase commit"
    if limit_ms is None:
        text = "the brokers grant it (the user needs TwoPhaseCommit on the id): the job may stay down indefinitely"
        return Finding(subject, "ok", text)
    why = "unknown whether it is granted" if granted is None else "not granted"
    text = f"{why}: after a crash between the two commits the job may stay down for {minutes(limit_ms)}; after that "
    text += "the batch is sent again"
    if granted is None:
        return Finding(subject, "not_checked", text, _acl(options.kafka, ("--cluster",), "DescribeConfigs"))
    allowed = (kafka.configs or {}).get(MAX_TIMEOUT)
    if allowed is not None and limit_ms > int(allowed):
        text = f"{_TIMEOUT_OPTION}={limit_ms} exceeds the brokers' {MAX_TIMEOUT}={allowed}"
        return Finding(_TIMEOUT_OPTION, "problem", text, f"lower it in kafka={{...}}, or raise {MAX_TIMEOUT}")
    if limit_ms < int(allowed or _MAX_TIMEOUT_MS):
        remedy = f"remove {_TIMEOUT_OPTION}: the sink then uses the brokers' maximum"
        return Finding(subject, "warning", text, remedy)
    return Finding(subject, "warning", text, f"raise {MAX_TIMEOUT} of the brokers above your longest outage")


def _topic(options: KafkaOptions, kafka: KafkaFacts, topic: CheckedTopic) -> Iterator[Finding]:
    subject, named = f"topic {topic.name}", ("--topic", topic.name)
    if not topic.allowed:
        yield Finding(subject, "problem", "this user may not describe it", _acl(options, named, "Write", "Read"))
        return
    if not topic.there:
        shape = ("--partitions", str(_PARTITIONS), "--replication-factor", str(min(_REPLICAS, kafka.brokers)))
        remedy = _tool(options, "topics", "--create", *named, *shape)
        yield Finding(subject, "problem", "it does not exist, and the sink does not create topics", remedy)
        return
    if topic.leaderless:
        text = f"{counted(topic.leaderless, 'partition')} of {topic.partitions} have no leader: batches would wait"
        yield Finding(subject, "problem", text, "start the brokers that host them")
    if TopicRight.WRITE not in topic.operations:
        yield Finding(subject, "problem", "this user may not write there", _acl(options, named, "Write"))
    elif TopicRight.READ not in topic.operations:
        text = "this user may not read there: recovery cannot tell how a forgotten transaction ended"
        yield Finding(subject, "warning", text, _acl(options, named, "Read"))
    yield _durability(options, topic)


def _trial(options: SinkOptions, trial: Trial) -> Finding:
    subject, name = "a transaction", f"{options.transactional_id}{TRIAL}"
    if not trial.allowed:
        prefixed = ("--transactional-id", options.transactional_id, "--resource-pattern-type", "prefixed")
        remedy = _acl(options.kafka, prefixed, "Write")
        return Finding(subject, "not_checked", f"this user may not write transactional id {name}", remedy)
    if trial.problem:
        remedy = "use a Kafka service that supports transactions (docs/kafka-services.md)"
        return Finding(subject, "problem", f"it could not be begun and aborted: {trial.problem}", remedy)
    return Finding(subject, "ok", f"an empty one was begun and aborted, with transactional id {name}")


def _transactional(topic: CheckedTopic, trial: Trial | None) -> Iterator[Finding]:
    """Findings for a topic that does not accept transactions."""
    refused = {} if trial is None else trial.refused
    why = refused.get(topic.name, "")
    if not why and (topic.configs or {}).get(DISKLESS) == "true":
        why = f"{DISKLESS}=true"
    if why:
        remedy = f"use a topic that supports transactions; a diskless topic ({DISKLESS}=true) does not"
        yield Finding(f"topic {topic.name}", "problem", f"it does not support transactions: {why}", remedy)


def _dead_letters(topic: CheckedTopic, configs: dict[str, str | None]) -> Iterator[Finding]:
    """Additional requirements for a dead-letter topic."""
    subject, allowed = f"dead-letter topic {topic.name}", int(configs.get(MESSAGE_BYTES) or MESSAGE_BYTES_WANTED)
    raised = f"set {MESSAGE_BYTES}={MESSAGE_BYTES_WANTED} or more"
    if rule := too_small(allowed):
        yield Finding(subject, "problem", rule, raised)
    elif allowed < MESSAGE_BYTES_WANTED:
        text = f"{MESSAGE_BYTES}={allowed}: larger dead letters are sent without their row, which is in the table"
        yield Finding(subject, "warning", text, raised)
    if "compact" in (configs.get(CLEANUP) or ""):
        text = f"{CLEANUP}={configs[CLEANUP]}: a dead letter replaces that of an equal row in an earlier batch"
        yield Finding(subject, "warning", text, f"set {CLEANUP}=delete")


def _durability(options: KafkaOptions, topic: CheckedTopic) -> Finding:
    subject = f"topic {topic.name}"
    shape = f"{counted(topic.partitions, 'partition')}, {counted(topic.replicas, 'replica')}"
    if topic.configs is None:
        text, remedy = (
            f"{shape}; its settings may not be read",
            _acl(options, ("--topic", topic.name), "DescribeConfigs"),
        )
        return Finding(subject, "not_checked", text, remedy)
    in_sync = int(topic.configs.get(MIN_INSYNC) or 1)
    text = f"{shape}, {MIN_INSYNC}={in_sync}"
    if in_sync > topic.replicas:
        return Finding(subject, "problem", f"{text}: no write can succeed", f"lower {MIN_INSYNC} to {topic.replicas}")
    if topic.configs.get(UNCLEAN) == "true":
        return Finding(
            subject, "warning", f"{text}: with {UNCLEAN} acknowledged records can be lost", f"set {UNCLEAN}=false"
        )
    if not is_durable(topic):
        remedy = f"{_REPLICAS} replicas and {MIN_INSYNC}={_IN_SYNC}"
        return Finding(subject, "warning", f"{text}: acknowledged records can be lost with one broker", remedy)
    return Finding(subject, "ok", text)


def is_durable(topic: CheckedTopic) -> bool:
    """Whether losing one broker loses no record, as far as the topic's settings show."""
    configs = topic.configs or {}
    in_sync = int(configs.get(MIN_INSYNC) or 1)
    return topic.replicas >= _IN_SYNC <= in_sync and configs.get(UNCLEAN) != "true"


def minutes(limit_ms: int) -> str:
    """A duration in whole minutes if it is one, else in seconds."""
    seconds = limit_ms // 1000
    return counted(seconds // 60, "minute") if seconds % 60 == 0 else counted(seconds, "second")
