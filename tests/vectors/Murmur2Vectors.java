import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/** Prints what Apache Kafka's own client makes of many keys, as the JSON that murmur2.json holds. README.md says how. */
public final class Murmur2Vectors {
    private static final int[] PARTITION_COUNTS = {1, 2, 3, 12, 50, 1000};
    private static final int LENGTH_MAX = 40;
    private static final int RANDOM_KEYS_PER_LENGTH = 12;
    private static final long SEED = 939;

    public static void main(String[] arguments) {
        StringBuilder json = new StringBuilder("{\n");
        json.append("  \"made_by\": \"org.apache.kafka:kafka-clients:").append(arguments[0]).append("\",\n");
        json.append("  \"partition_counts\": ").append(Arrays.toString(PARTITION_COUNTS)).append(",\n");
        json.append("  \"vectors\": [\n");
        List<byte[]> keys = keys();
        for (int i = 0; i < keys.size(); i++) {
            json.append("    ").append(vector(keys.get(i))).append(i + 1 < keys.size() ? ",\n" : "\n");
        }
        System.out.print(json.append("  ]\n}\n"));
    }

    private static List<byte[]> keys() {
        List<byte[]> keys = new ArrayList<>();
        // Escapes, so that the compiler's idea of the source's encoding cannot matter.
        for (String text : List.of("", "a", "key", "order-1", "order-00000042",
                "na\u00efve", "Stra\u00dfe", "\u043a\u043b\u044e\u0447", "\u9375", "\ud83d\udd11", "\u0000", "e\u0301")) {
            keys.add(text.getBytes(StandardCharsets.UTF_8));
        }
        Random random = new Random(SEED);
        for (int length = 1; length <= LENGTH_MAX; length++) {
            byte[] high = new byte[length];
            Arrays.fill(high, (byte) 0xff);
            keys.add(high);
            keys.add(new byte[length]);
            for (int i = 0; i < RANDOM_KEYS_PER_LENGTH; i++) {
                byte[] key = new byte[length];
                random.nextBytes(key);
                keys.add(key);
            }
        }
        return keys;
    }

    private static String vector(byte[] key) {
        StringBuilder partitions = new StringBuilder();
        for (int count : PARTITION_COUNTS) {
            partitions.append(partitions.isEmpty() ? "" : ", ").append(BuiltInPartitioner.partitionForKey(key, count));
        }
        return String.format("{\"key\": \"%s\", \"murmur2\": %d, \"partitions\": [%s]}",
            HexFormat.of().formatHex(key), Utils.murmur2(key), partitions);
    }
}
