import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.Serializable;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.java.tuple.Tuple6;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.connector.jdbc.JdbcExactlyOnceOptions;
import org.apache.flink.connector.jdbc.JdbcExecutionOptions;
import org.apache.flink.connector.jdbc.JdbcStatementBuilder;
import org.apache.flink.connector.jdbc.core.datastream.sink.JdbcSink;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.KafkaSinkBuilder;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.postgresql.xa.PGXADataSource;

/**
 * Jobs of Apache Flink for the benchmark `flink`: its Kafka sink and its JDBC XA sink, exactly once each.
 *
 * <p>Reads a job from each line of standard input, and answers it on standard output; all of it is JSON. The argument
 * has the servers and the settings of both sinks. All jobs run in one cluster within this virtual machine, which is
 * there before the first of them, as Spark's session is before its first query.
 */
public final class FlinkJob {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final DateTimeFormatter AT =
            DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'").withZone(ZoneOffset.UTC);
    private static final long FIRST_MS = 1_700_000_000_000L;
    /** The longest that brokers allow unless they are told otherwise. The sink's own default is longer. */
    private static final String TRANSACTION_TIMEOUT_MS = "900000";
    private static final long CANCEL_DEADLINE_S = 60;

    private final JsonNode given;
    private final MiniCluster cluster;

    private FlinkJob(JsonNode given, MiniCluster cluster) {
        this.given = given;
        this.cluster = cluster;
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode given = MAPPER.readTree(arguments[0]);
        // Nothing interrupts this thread while the cluster is closed.
        try (MiniCluster cluster = new MiniCluster(new MiniClusterConfiguration.Builder()
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(given.get("slots").asInt())
                .withRandomPorts()
                .build())) {
            cluster.start();
            new FlinkJob(given, cluster).answer(
                    new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)));
        }
    }

    private void answer(BufferedReader lines) throws Exception {
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode job = MAPPER.readTree(line);
            if (job.has("source")) {
                JobID running = follow(job);
                System.out.println("{}");
                lines.readLine();
                cluster.cancelJob(running).get(CANCEL_DEADLINE_S, TimeUnit.SECONDS);
                System.out.println("{}");
            } else {
                System.out.println(MAPPER.writeValueAsString(append(job)));
            }
        }
    }

    /** Write the narrow rows of inputs.py with ids from 0, and return when both sides have committed all of them. */
    private Map<String, Double> append(JsonNode job) throws Exception {
        long rows = job.get("rows").asLong();
        StreamExecutionEnvironment environment = environment(job);
        TypeInformation<Tuple6<Long, String, Integer, BigDecimal, Long, Boolean>> type =
                Types.TUPLE(Types.LONG, Types.STRING, Types.INT, Types.BIG_DEC, Types.LONG, Types.BOOLEAN);
        GeneratorFunction<Long, Tuple6<Long, String, Integer, BigDecimal, Long, Boolean>> make = FlinkJob::narrow;
        DataStream<Tuple6<Long, String, Integer, BigDecimal, Long, Boolean>> made = environment.fromSource(
                new DataGeneratorSource<>(make, rows, type), WatermarkStrategy.noWatermarks(), "rows", type);
        sink(job, made, row -> row.f0, FlinkJob::narrowJson, "(id, customer, quantity, amount, at, express)",
                (statement, row) -> {
                    statement.setLong(1, row.f0);
                    statement.setString(2, row.f1);
                    statement.setInt(3, row.f2);
                    statement.setBigDecimal(4, row.f3);
                    statement.setTimestamp(5, new Timestamp(row.f4));
                    statement.setBoolean(6, row.f5);
                });
        long begun = System.nanoTime();
        cluster.executeJobBlocking(environment.getStreamGraph().getJobGraph());
        return Map.of("seconds", (System.nanoTime() - begun) / 1e9);
    }

    private static Tuple6<Long, String, Integer, BigDecimal, Long, Boolean> narrow(long id) {
        String customer = "c-" + id % 50000;
        return Tuple6.of(id, customer, (int) (id % 1000), BigDecimal.valueOf(id, 2), FIRST_MS + id, id % 3 == 0);
    }

    /** As to_json of Spark has it. By hand, because that takes less time than a library. */
    private static String narrowJson(Tuple6<Long, String, Integer, BigDecimal, Long, Boolean> row) {
        return "{\"id\":" + row.f0 + ",\"customer\":\"" + row.f1 + "\",\"quantity\":" + row.f2 + ",\"amount\":"
                + row.f3.toPlainString() + ",\"at\":\"" + AT.format(Instant.ofEpochMilli(row.f4)) + "\",\"express\":"
                + row.f5 + "}";
    }

    /** Begin to write the rows that latency_probe.py puts into a topic. */
    private JobID follow(JsonNode job) throws Exception {
        StreamExecutionEnvironment environment = environment(job);
        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(given.get("bootstrap").asText())
                .setTopics(job.get("source").asText())
                .setGroupId(job.get("topic").asText())
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        DataStream<Tuple4<Long, String, Integer, Long>> rows = environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "rows")
                .map(FlinkJob::created)
                .returns(Types.TUPLE(Types.LONG, Types.STRING, Types.INT, Types.LONG));
        sink(job, rows, row -> row.f0, FlinkJob::createdJson, "(id, customer, quantity, created_us)",
                (statement, row) -> {
                    statement.setLong(1, row.f0);
                    statement.setString(2, row.f1);
                    statement.setInt(3, row.f2);
                    statement.setLong(4, row.f3);
                });
        JobGraph graph = environment.getStreamGraph().getJobGraph();
        return cluster.submitJob(graph).get().getJobID();
    }

    private static Tuple4<Long, String, Integer, Long> created(String value) throws Exception {
        JsonNode row = MAPPER.readTree(value);
        return Tuple4.of(row.get("id").asLong(), row.get("customer").asText(), row.get("quantity").asInt(),
                row.get("created_us").asLong());
    }

    private static String createdJson(Tuple4<Long, String, Integer, Long> row) {
        return "{\"id\":" + row.f0 + ",\"customer\":\"" + row.f1 + "\",\"quantity\":" + row.f2 + ",\"created_us\":"
                + row.f3 + "}";
    }

    private static StreamExecutionEnvironment environment(JsonNode job) {
        Configuration settings = new Configuration();
        // A job that fails is no measurement; Flink would start it again and again.
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(job.get("parallelism").asInt());
        environment.getConfig().enableObjectReuse();
        environment.enableCheckpointing(job.get("interval_ms").asLong(), CheckpointingMode.EXACTLY_ONCE);
        environment.getCheckpointConfig().setMinPauseBetweenCheckpoints(0);
        return environment;
    }

    /** A function that goes to the tasks with the job. */
    private interface Of<T, R> extends Function<T, R>, Serializable {}

    /** Put both sinks behind rows. */
    private <T> void sink(
            JsonNode job, DataStream<T> rows, Of<T, Long> id, Of<T, String> json, String columns,
            JdbcStatementBuilder<T> fill) {
        String topic = job.get("topic").asText();
        KafkaSinkBuilder<T> kafka = KafkaSink.<T>builder()
                .setBootstrapServers(given.get("bootstrap").asText())
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(topic)
                .setProperty("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
                .setRecordSerializer((row, context, timestamp) -> new ProducerRecord<>(
                        topic, bytes(Long.toString(id.apply(row))), bytes(json.apply(row))));
        given.get("kafka").fields().forEachRemaining(
                each -> kafka.setProperty(each.getKey(), each.getValue().asText()));
        rows.sinkTo(kafka.build());
        String marks = columns.replaceAll("\\w+", "?");
        String insert = "INSERT INTO " + job.get("table").asText() + " " + columns + " VALUES " + marks;
        String url = given.get("jdbc_url").asText();
        String user = given.get("user").asText();
        String password = given.get("password").asText();
        rows.sinkTo(JdbcSink.<T>builder()
                .withQueryStatement(insert, fill)
                // 0 is the only number of repetitions that exactly once allows.
                .withExecutionOptions(JdbcExecutionOptions.builder()
                        .withBatchSize(given.get("jdbc_batch_rows").asInt()).withMaxRetries(0).build())
                // PostgreSQL has one transaction for each connection.
                .buildExactlyOnce(JdbcExactlyOnceOptions.builder().withTransactionPerConnection(true).build(), () -> {
                    PGXADataSource database = new PGXADataSource();
                    database.setUrl(url);
                    database.setUser(user);
                    database.setPassword(password);
                    return database;
                }));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
