CREATE TABLE public.kafka_transaction_state (
    transactional_id character varying(255) NOT NULL,
    prepared_transaction_state text NOT NULL,
    status text NOT NULL,
    settled text NOT NULL,
    generation bigint NOT NULL,
    query_id text,
    run_id text,
    batch_id bigint,
    cluster_id text,
    row_count bigint NOT NULL,
    record_count bigint NOT NULL,
    digest text NOT NULL,
    kafka_offsets jsonb NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    decided_at timestamp with time zone,
    settled_at timestamp with time zone,
    topic_ids jsonb DEFAULT '{}'::jsonb NOT NULL,
    decision bigint DEFAULT 0 NOT NULL,
    CONSTRAINT kafka_transaction_state_status_check CHECK ((status = ANY (ARRAY['none'::text, 'decided'::text, 'done'::text, 'owed'::text])))
);
COMMENT ON TABLE public.kafka_transaction_state IS 'spark_2pc_sink state, version 2';
CREATE TABLE public.kafka_transaction_state_actions (
    transactional_id character varying(255) NOT NULL,
    at timestamp with time zone NOT NULL,
    number bigint NOT NULL,
    action text NOT NULL,
    batch_id bigint,
    generation bigint,
    role text NOT NULL,
    os_user text NOT NULL,
    host text NOT NULL,
    program text NOT NULL,
    reason text,
    detail jsonb NOT NULL
);
COMMENT ON TABLE public.kafka_transaction_state_actions IS 'spark_2pc_sink state, version 2';
ALTER TABLE public.kafka_transaction_state_actions ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.kafka_transaction_state_actions_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.kafka_transaction_state_history (
    transactional_id character varying(255) NOT NULL,
    prepared_transaction_state text CONSTRAINT kafka_transaction_state_his_prepared_transaction_state_not_null NOT NULL,
    status text NOT NULL,
    settled text NOT NULL,
    generation bigint NOT NULL,
    query_id text,
    run_id text,
    batch_id bigint,
    cluster_id text,
    row_count bigint NOT NULL,
    record_count bigint NOT NULL,
    digest text NOT NULL,
    kafka_offsets jsonb NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    decided_at timestamp with time zone,
    settled_at timestamp with time zone,
    topic_ids jsonb DEFAULT '{}'::jsonb NOT NULL,
    decision bigint DEFAULT 0 NOT NULL,
    event text NOT NULL,
    figures jsonb DEFAULT '{}'::jsonb NOT NULL
);
COMMENT ON TABLE public.kafka_transaction_state_history IS 'spark_2pc_sink state, version 2';
INSERT INTO public.kafka_transaction_state VALUES ('orders-none', '', 'none', '', 1, 'query-1', 'run-1', NULL, 'cluster-a', 0, 0, '', '{}', '2026-11-27 14:12:54.214759+00', NULL, NULL, '{}', 0);
INSERT INTO public.kafka_transaction_state VALUES ('orders-decided', '5:0', 'decided', '', 1, 'query-1', 'run-1', 0, 'cluster-a', 2, 3, '00000000000000000000000000000abc', '{"orders-0": [0, 1], "orders-1": [7, 7]}', '2026-11-27 14:12:54.27644+00', '2026-11-27 14:12:54.344815+00', NULL, '{"orders": "AAAAAAAAAAAAAAAAAAAAAQ"}', 1);
INSERT INTO public.kafka_transaction_state VALUES ('orders-owed', '5:0', 'owed', '', 1, 'query-1', 'run-1', 0, 'cluster-a', 2, 3, '00000000000000000000000000000abc', '{"orders-0": [0, 1], "orders-1": [7, 7]}', '2026-11-27 14:12:54.535321+00', '2026-11-27 14:12:54.64267+00', '2026-11-27 14:12:54.675099+00', '{"orders": "AAAAAAAAAAAAAAAAAAAAAQ"}', 1);
INSERT INTO public.kafka_transaction_state VALUES ('orders-done', '5:1', 'done', '5:2', 1, 'query-1', 'run-1', 1, 'cluster-a', 1, 1, '00000000000000000000000000000abc', '{"orders-0": [9, 9]}', '2026-11-27 14:12:54.396076+00', '2026-11-27 14:12:54.681165+00', '2026-11-27 14:12:54.703988+00', '{"orders": "AAAAAAAAAAAAAAAAAAAAAQ"}', 2);
INSERT INTO public.kafka_transaction_state_actions OVERRIDING SYSTEM VALUE VALUES ('orders-none', '2026-11-27 14:12:54.215077+00', 1, 'claim', NULL, 1, 'postgres', 'spark', 'host-1', 'job.py', NULL, '{"run_id": "run-1", "query_id": "query-1", "cluster_id": "cluster-a"}');
INSERT INTO public.kafka_transaction_state_actions OVERRIDING SYSTEM VALUE VALUES ('orders-decided', '2026-11-27 14:12:54.276535+00', 2, 'claim', NULL, 1, 'postgres', 'spark', 'host-1', 'job.py', NULL, '{"run_id": "run-1", "query_id": "query-1", "cluster_id": "cluster-a"}');
INSERT INTO public.kafka_transaction_state_actions OVERRIDING SYSTEM VALUE VALUES ('orders-done', '2026-11-27 14:12:54.396167+00', 3, 'claim', NULL, 1, 'postgres', 'spark', 'host-1', 'job.py', NULL, '{"run_id": "run-1", "query_id": "query-1", "cluster_id": "cluster-a"}');
INSERT INTO public.kafka_transaction_state_actions OVERRIDING SYSTEM VALUE VALUES ('orders-owed', '2026-11-27 14:12:54.535443+00', 4, 'claim', NULL, 1, 'postgres', 'spark', 'host-1', 'job.py', NULL, '{"run_id": "run-1", "query_id": "query-1", "cluster_id": "cluster-a"}');
INSERT INTO public.kafka_transaction_state_actions OVERRIDING SYSTEM VALUE VALUES ('orders-owed', '2026-11-27 14:12:54.67516+00', 5, 'note_owed', 0, 1, 'postgres', 'spark', 'host-1', 'job.py', NULL, '{}');
INSERT INTO public.kafka_transaction_state_history VALUES ('orders-none', '', 'none', '', 1, 'query-1', 'run-1', NULL, 'cluster-a', 0, 0, '', '{}', '2026-11-27 14:12:54.214759+00', NULL, NULL, '{}', 0, 'claimed', '{}');
INSERT INTO public.kafka_transaction_state_history VALUES ('orders-decided', '', 'none', '', 1, 'query-1', 'run-1', NULL, 'cluster-a', 0, 0, '', '{}', '2026-11-27 14:12:54.27644+00', NULL, NULL, '{}', 0, 'claimed', '{}');
INSERT INTO public.kafka_transaction_state_history VALUES ('orders-decided', '5:0', 'decided', '', 1, 'query-1', 'run-1', 0, 'cluster-a', 2, 3, '00000000000000000000000000000abc', '{"orders-0": [0, 1], "orders-1": [7, 7]}', '2026-11-27 14:12:54.27644+00', '2026-11-27 14:12:54.344815+00', NULL, '{"orders": "AAAAAAAAAAAAAAAAAAAAAQ"}', 1, 'decided', '{}');
INSERT INTO public.kafka_transaction_state_history VALUES ('orders-done', '', 'none', '', 1, 'query-1', 'run-1', NULL, 'cluster-a', 0, 0, '', '{}', '2026-11-27 14:12:54.396076+00', NULL, NULL, '{}', 0, 'claimed', '{}');
INSERT INTO public.kafka_transaction_state_history VALUES ('orders-done', '5:0', 'done', '5:1', 1, 'query-1', 'run-1', 0, 'cluster-a', 2, 3, '00000000000000000000000000000abc', '{"orders-0": [0, 1], "orders-1": [7, 7]}', '2026-11-27 14:12:54.396076+00', '2026-11-27 14:12:54.459698+00', '2026-11-27 14:12:54.474516+00', '{"orders": "AAAAAAAAAAAAAAAAAAAAAQ"}', 1, 'decided', '{}');
INSERT INTO public.kafka_transaction_state_history VALUES ('orders-owed', '', 'none', '', 1, 'query-1', 'run-1', NULL, 'cluster-a', 0, 0, '', '{}', '2026-11-27 14:12:54.535321+00', NULL, NULL, '{}', 0, 'claimed', '{}');
INSERT INTO public.kafka_transaction_state_history VALUES ('orders-owed', '5:0', 'owed', '', 1, 'query-1', 'run-1', 0, 'cluster-a', 2, 3, '00000000000000000000000000000abc', '{"orders-0": [0, 1], "orders-1": [7, 7]}', '2026-11-27 14:12:54.535321+00', '2026-11-27 14:12:54.64267+00', '2026-11-27 14:12:54.675099+00', '{"orders": "AAAAAAAAAAAAAAAAAAAAAQ"}', 1, 'decided', '{}');
INSERT INTO public.kafka_transaction_state_history VALUES ('orders-done', '5:1', 'done', '5:2', 1, 'query-1', 'run-1', 1, 'cluster-a', 1, 1, '00000000000000000000000000000abc', '{"orders-0": [9, 9]}', '2026-11-27 14:12:54.396076+00', '2026-11-27 14:12:54.681165+00', '2026-11-27 14:12:54.703988+00', '{"orders": "AAAAAAAAAAAAAAAAAAAAAQ"}', 2, 'decided', '{}');
SELECT pg_catalog.setval('public.kafka_transaction_state_actions_number_seq', 5, true);
ALTER TABLE ONLY public.kafka_transaction_state_actions
    ADD CONSTRAINT kafka_transaction_state_actions_pkey PRIMARY KEY (transactional_id, at, number);
ALTER TABLE ONLY public.kafka_transaction_state_history
    ADD CONSTRAINT kafka_transaction_state_history_pkey PRIMARY KEY (transactional_id, decision);
ALTER TABLE ONLY public.kafka_transaction_state
    ADD CONSTRAINT kafka_transaction_state_pkey PRIMARY KEY (transactional_id);
