"""The reference broker: one node that speaks the Kafka protocol round the pure coordinator.

Everything runs on one event loop, so nothing here locks; only fsync waits in threads. From the wire to the disk:

========================================== ========================================================================
`command`, `broker`                        the process; what is put together, how it starts and stops
`tcp`, `connection`, `session`, `framing`  listeners and connections: bounded, replies in the order of requests
`tls`, `sasl`, `security`, `listeners`     who may connect, and what they may do
`messages`, `api`, `dispatch`              frames to requests, requests to handlers, answers to frames
`handlers`                                 one module per family of requests
`transaction_service`, `verification`,     the shell of the transaction coordinator (`coordinator` is pure):
`end_markers`, `background`                its log, its markers, its timers; what partition leaders ask it
`groups`                                   consumer groups and their offsets, classic protocol: pure, with a shell
`partition_log`, `log_state`,              the leader of one partition: what may be appended and read;
`producer_state`, `guards`,                `producer_state`, `guards` and the indexes are pure
`aborted_index`, `leader_epochs`,
`log_values`
`storage`                                  segment files, group commit, recovery of torn tails
`catalog`, `catalog_state`,                topics, configs, ACLs, ids: what a cluster's controller keeps
`data_directory`, `topic_configs`, …
`properties`, `property_rules`, …          broker properties by Kafka's names
`metrics`, `prometheus`                    what there is to watch
========================================== ========================================================================

Read `partition_log` and `transaction_service` first: they are what the guarantees rest on.
"""
