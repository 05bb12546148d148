import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads whole partitions, from their beginning to the end as it was at the start.
 *
 * <p>{@code BOOTSTRAP ISOLATION TOPIC-PARTITION...}; stdout has one JSON object for each record.
 */
public final class Consume {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Base64.Encoder BASE64 = Base64.getEncoder();

    private Consume() {}

    public static void main(String[] args) throws IOException {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("isolation.level", args[1]);
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        List<TopicPartition> partitions = new ArrayList<>();
        for (String name : Arrays.asList(args).subList(2, args.length)) {
            int dash = name.lastIndexOf('-');
            partitions.add(new TopicPartition(
                    name.substring(0, dash), Integer.parseInt(name.substring(dash + 1))));
        }
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            readAll(consumer, partitions, out);
        }
        out.flush();
    }

    private static void readAll(
            KafkaConsumer<byte[], byte[]> consumer, List<TopicPartition> partitions, PrintStream out)
            throws IOException {
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
        Set<TopicPartition> open = new HashSet<>(partitions);
        while (!open.isEmpty()) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                out.println(JSON.writeValueAsString(describe(record)));
            }
            open.removeIf(partition -> consumer.position(partition) >= ends.get(partition));
        }
    }

    private static Map<String, Object> describe(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", record.topic());
        line.put("partition", record.partition());
        line.put("offset", record.offset());
        line.put("timestamp", record.timestamp());
        line.put("timestampType", record.timestampType().name);
        line.put("key", base64(record.key()));
        line.put("value", base64(record.value()));
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(Arrays.asList(header.key(), base64(header.value())));
        }
        line.put("headers", headers);
        line.put("leaderEpoch", record.leaderEpoch().orElse(null));
        return line;
    }

    private static String base64(byte[] bytes) {
        return bytes == null ? null : BASE64.encodeToString(bytes);
    }
}
