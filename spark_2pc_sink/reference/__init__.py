"""The reference coordinator: one node that serves the Kafka protocol around a pure transaction coordinator.

Everything runs on one event loop, so nothing here locks; only fsync runs in threads. The packages, from the socket to
the disk; each imports those below it:

=================== ==========================================================================================
`broker`            the process: assembly, start and stop
`metrics`           a snapshot of all figures, and its Prometheus endpoint
`network`           listeners and connections (`connection`), logins (`sasl`); a `request_channel` carries out and
                    answers one connection's requests in order
`handlers`          one module per API group; `topics` also finds and authorises the topics in a request
`groups`            consumer groups and their offsets, classic protocol: pure, with a shell (`service`)
`transactions`      the shell of the pure coordinator (`service`): its log, its markers, its timers,
                    answers to partition leaders (`Verification`)
`metadata`          a cluster controller's state: topics, configs, ACLs, ids (`catalog`, `catalog_state`)
`config`            broker properties and topic configs by Kafka's names; listeners
`log`               the leader of one partition (`partition_log`): what may be appended and read; `producer_state` is
                    pure
`storage`           segment files, group commit, recovery of torn ends
`protocol`          frames to requests and answers to frames; what marks a handler
`coordinator`       the transaction coordinator as data and functions: no socket, clock or file
`internal_topics`   names and record schemas of ``__transaction_state`` and ``__consumer_offsets``
=================== ==========================================================================================

Every ``now_ms`` is in milliseconds since 1970. Read `log.partition_log` and `transactions.service` first: the
guarantees depend on them.
"""
