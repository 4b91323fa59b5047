"""Kafka's side of a check: requests and an empty transaction that disturb no job, and what the answers mean."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import (
    AuthorizationError,
    ConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    RemoteProtocolError,
)
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.coordinator_calls import CoordinatorCalls
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.options import KafkaOptions, SinkOptions
from spark_2pc_sink.plural import counted
from spark_2pc_sink.sink.check.findings import Finding
from spark_2pc_sink.sink.records.record_side import MESSAGE_BYTES_WANTED, too_small
from spark_2pc_sink.wire import messages
from spark_2pc_sink.wire.framed_request import end_txn_request

#: Never allocated by a broker: producer ids are counted up from 0, in blocks (KIP-730).
_UNUSED_PRODUCER: Final = ProducerIdAndEpoch(2**63 - 1, 0)
#: How long the transaction of a check stays open if its process dies.
TRIAL_TIMEOUT_MS: Final = 60_000
#: EndTxn below the version that bumps epochs; accepted at every transaction.version.
_END_VERSION_MAX: Final = 4


def may_write(cluster: Cluster, transactional_id: str) -> bool:
    """Whether this client has WRITE on a transactional id; a KafkaError if it may not look up the coordinator.

    It asks to end a transaction of a producer id that is never allocated. The coordinator checks the permission first,
    then rejects the id (``KafkaApis.handleEndTxnRequest``); a running producer of that id is not disturbed.
    """
    request = end_txn_request(transactional_id, _UNUSED_PRODUCER, commit=False)
    plain = request._replace(version_max=_END_VERSION_MAX)
    answer = CoordinatorCalls(cluster, transactional_id).ask(plain, cluster.deadline())
    return bool(answer.error_code != Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
TWO_PHASE: Final = "transaction.two.phase.commit.enable"
MIN_INSYNC: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"
MESSAGE_BYTES: Final = "max.message.bytes"
CLEANUP: Final = "cleanup.policy"
#: True for a topic without its own log (KIP-1150), as Aiven's.
DISKLESS: Final = "diskless.enable"
#: Suffix of the empty transaction's id: using the sink's id would fence its job.
TRIAL: Final = ".check"
#: Kafka's own log of transactions.
TRANSACTION_LOG: Final = "__transaction_state"


class TopicRight(IntEnum):
    """Codes of ``org.apache.kafka.common.acl.AclOperation`` that a sink needs on its topic."""

    READ = 3
    WRITE = 4


@dataclass(frozen=True)
class CheckedTopic:
    """One topic."""

    name: str
    there: bool = True
    #: This client may describe it.
    allowed: bool = True
    partitions: int = 0
    leaderless: int = 0
    #: Fewest of any partition.
    replicas: int = 0
    #: Codes of the operations allowed to this client.
    operations: frozenset[int] = frozenset()
    #: `MIN_INSYNC`, `UNCLEAN`, `MESSAGE_BYTES`, `CLEANUP`, `DISKLESS`; None if this client may not read them.
    configs: Mapping[str, str | None] | None = None


@dataclass(frozen=True)
class Trial:
    """An empty transaction, begun in each topic and aborted."""

    #: This client may write its transactional id.
    allowed: bool = True
    #: Why it could not be begun or ended.
    problem: str = ""
    #: Reasons, by topic that rejects transactions.
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class KafkaFacts:
    """The cluster as visible to this client."""

    #: Why it could not be queried, in which case all else is unknown.
    problem: str = ""
    cluster_id: str = ""
    brokers: int = 0
    transaction_version: int = 0
    #: The coordinator supports the request version with two-phase commit.
    offers_two_phase: bool = False
    #: A broker's `MAX_TIMEOUT` and `TWO_PHASE`; None if this client may not read them.
    configs: Mapping[str, str | None] | None = None
    id_allowed: bool = True
    topics: tuple[CheckedTopic, ...] = ()
    #: None if there was no topic for it.
    trial: Trial | None = None
    #: `TRANSACTION_LOG`; None if this client may not describe it, or there has been no transaction yet.
    log: CheckedTopic | None = None


def query_brokers(options: SinkOptions, *, timeout_s: int) -> KafkaFacts:
    limit_ms = min(options.kafka.max_block_ms, timeout_s * 1000)
    with Cluster(replace(options.kafka, max_block_ms=limit_ms)) as cluster:
        try:
            return _ask(cluster, options.transactional_id, options.all_topics)
        except (KafkaError, KafkaTimeoutError, RemoteProtocolError) as error:
            return KafkaFacts(problem=str(error))


def _ask(cluster: Cluster, transactional_id: str, topics: tuple[str, ...]) -> KafkaFacts:
    features, nodes = cluster.features(), cluster.node_ids()
    client = TransactionClient(cluster, transactional_id, cluster.options)
    try:
        id_allowed = may_write(cluster, transactional_id)
        offers = client.offers_keep_prepared
    except KafkaError as error:
        if error.code != Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise
        id_allowed, offers = False, False
    known = tuple(_topics(cluster, topics))
    writable = [topic.name for topic in known if TopicRight.WRITE in topic.operations]
    configs = messages.describe_configs_request(messages.ConfigResource.BROKER, str(nodes[0]), (MAX_TIMEOUT, TWO_PHASE))
    answer = cluster.call(configs, cluster.deadline(), node_id=nodes[0])
    return KafkaFacts(
        cluster_id=features.cluster_id,
        brokers=len(nodes),
        transaction_version=features.transaction_version,
        offers_two_phase=offers,
        configs=messages.config_values(answer, str(nodes[0])),
        id_allowed=id_allowed,
        topics=known,
        trial=try_transaction(cluster, f"{transactional_id}{TRIAL}", writable) if id_allowed and writable else None,
        log=next((topic for topic in _topics(cluster, (TRANSACTION_LOG,)) if topic.allowed and topic.there), None),
    )


def _topics(cluster: Cluster, names: tuple[str, ...]) -> Iterator[CheckedTopic]:
    if not names:
        return
    answer = cluster.call(messages.metadata_request(names, operations=True), cluster.deadline())
    for found in sorted(answer.topics, key=lambda topic: topic.name):
        name = found.name
        if not messages.topic_exists(found):
            refused = found.error_code == Code.TOPIC_AUTHORIZATION_FAILED
            yield CheckedTopic(name, there=refused, allowed=not refused)
            continue
        asked = (MIN_INSYNC, UNCLEAN, MESSAGE_BYTES, CLEANUP, DISKLESS)
        configs = messages.describe_configs_request(messages.ConfigResource.TOPIC, name, asked)
        yield CheckedTopic(
            name,
            partitions=len(found.partitions),
            leaderless=sum(part.leader_id < 0 for part in found.partitions),
            replicas=min(len(part.replica_nodes) for part in found.partitions),
            operations=frozenset(found.authorized_operations or ()),
            configs=messages.config_values(cluster.call(configs, cluster.deadline()), name),
        )


def try_transaction(cluster: Cluster, transactional_id: str, topics: Iterable[str]) -> Trial:
    """Begin an empty transaction on a partition of each topic, and abort it.

    Only markers are written to these partitions. Two-phase commit is not requested, so a transaction left open ends by
    its timeout. The transactional id must be unused, because its producer would be fenced.
    """
    options = replace(cluster.options, transaction_timeout_ms=TRIAL_TIMEOUT_MS)
    client = TransactionClient(cluster, transactional_id, options, two_phase_commit=False)
    refused = {}
    try:
        producer = client.usable_producer().producer
        for topic in topics:
            try:
                client.add_partitions(producer, [TopicPartition(topic, 0)])
            except KafkaError as error:
                refused[topic] = str(error)
        client.end(producer, commit=False)
    except AuthorizationError:
        return Trial(allowed=False)
    except (ConfigurationError, KafkaError, KafkaTimeoutError) as error:
        return Trial(problem=str(error))
    return Trial(refused=refused)


#: Kafka's default ``transaction.max.timeout.ms``, used if it cannot be read.
_MAX_TIMEOUT_MS: Final = 900_000
#: For topics created by the suggested command; a guess for the user to adjust.
_PARTITIONS: Final = 4
#: With these, losing one broker loses no acknowledged record.
_REPLICAS: Final = 3
_IN_SYNC: Final = 2
_TIMEOUT_OPTION: Final = "transaction.timeout.ms"


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
    if kafka.problem:
        remedy = "correct bootstrap.servers, security.protocol or the login in kafka={...}; or start the brokers"
        yield Finding("brokers", "problem", kafka.problem, remedy)
        return
    yield Finding("brokers", "ok", f"connected to {counted(kafka.brokers, 'broker')} of cluster {kafka.cluster_id}")
    level, name = kafka.transaction_version, options.transactional_id
    if level >= 2:  # noqa: PLR2004 - the level is the name
        yield Finding("transaction.version", "ok", f"{level}: each transaction has its own epoch (KIP-890)")
    else:
        remedy = _tool(options.kafka, "features", "upgrade", "--feature", "transaction.version=2")
        text = f"{level}: only the markers in the log show how a transaction ended, as long as they are retained"
        yield Finding("transaction.version", "warning", text, remedy)
    if kafka.id_allowed:
        yield Finding("transactional id", "ok", f"this user may write {name}")
    else:
        text = f"this user may not write {name}, or not even describe it"
        remedy = _acl(options.kafka, ("--transactional-id", name), "Write")
        yield Finding("transactional id", "problem", text, remedy)
    yield _end_of_transactions(options, kafka)
    if kafka.trial is not None:
        yield _trial(options, kafka.trial)
    for topic in kafka.topics:
        yield from _topic(options.kafka, kafka, topic)
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
    why = "" if kafka.trial is None else kafka.trial.refused.get(topic.name, "")
    if not why and (topic.configs or {}).get(DISKLESS) == "true":
        why = f"{DISKLESS}=true"
    if why:
        remedy = f"use a topic that supports transactions; a diskless topic ({DISKLESS}=true) does not"
        yield Finding(subject, "problem", f"it does not support transactions: {why}", remedy)


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


def _dead_letters(topic: CheckedTopic, configs: Mapping[str, str | None]) -> Iterator[Finding]:
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
        remedy = _acl(options, ("--topic", topic.name), "DescribeConfigs")
        return Finding(subject, "not_checked", f"{shape}; its settings may not be read", remedy)
    in_sync = int(topic.configs.get(MIN_INSYNC) or 1)
    text = f"{shape}, {MIN_INSYNC}={in_sync}"
    if in_sync > topic.replicas:
        return Finding(subject, "problem", f"{text}: no write can succeed", f"lower {MIN_INSYNC} to {topic.replicas}")
    if topic.configs.get(UNCLEAN) == "true":
        weak = f"{text}: with {UNCLEAN} acknowledged records can be lost"
        return Finding(subject, "warning", weak, f"set {UNCLEAN}=false")
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
