import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Plays a recipe with the Java producer, so that the test and not the linger timer decides what is a batch.
 *
 * <p>{@code BOOTSTRAP RECIPE.json}: {@code producers} maps a name to its configuration, {@code steps} is a list of
 * {@code {producer, op, ...}}; op is batch (topic, partition, records), begin, commit, abort, close, or halt, which
 * ends the process on the spot and so leaves a transaction open. A commit or an abort is over when its markers are in
 * the logs: the coordinator answers before it has sent them.
 */
public final class Produce {
    private static final int BATCH_BYTES = 1 << 20;

    private final String bootstrap;
    private final JsonNode recipe;
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new LinkedHashMap<>();
    private Admin admin;
    private int records;

    private Produce(String bootstrap, JsonNode recipe) {
        this.bootstrap = bootstrap;
        this.recipe = recipe;
    }

    public static void main(String[] args)
            throws IOException, ExecutionException, InterruptedException {
        Produce run = new Produce(args[0], new ObjectMapper().readTree(new File(args[1])));
        for (JsonNode step : run.recipe.get("steps")) {
            run.step(step);
        }
        run.producers.values().forEach(KafkaProducer::close);
        if (run.admin != null) {
            run.admin.close();
        }
        System.out.println(run.records);
    }

    private void step(JsonNode step) throws ExecutionException, InterruptedException {
        KafkaProducer<byte[], byte[]> producer =
                producers.computeIfAbsent(step.get("producer").asText(), this::open);
        switch (step.get("op").asText()) {
            case "begin" -> producer.beginTransaction();
            case "commit" -> {
                producer.commitTransaction();
                awaitMarkers(step.get("producer").asText());
            }
            case "abort" -> {
                producer.abortTransaction();
                awaitMarkers(step.get("producer").asText());
            }
            case "close" -> {
                producer.close();
                producers.remove(step.get("producer").asText());
            }
            case "halt" -> {
                System.out.println(records);
                System.out.flush();
                Runtime.getRuntime().halt(0);
            }
            case "batch" -> batch(producer, step);
            default -> throw new IllegalArgumentException("unknown op " + step);
        }
    }

    private void awaitMarkers(String name) throws ExecutionException, InterruptedException {
        if (admin == null) {
            admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        }
        String id = recipe.get("producers").get(name).get("transactional.id").asText();
        try {
            TransactionState state;
            do {
                state = admin.describeTransactions(List.of(id)).description(id).get().state();
            } while (state == TransactionState.PREPARE_COMMIT || state == TransactionState.PREPARE_ABORT);
        } catch (ExecutionException error) {
            // Brokers before 3.0 tell nobody of their transactions.
            if (!(error.getCause() instanceof UnsupportedVersionException)) {
                throw error;
            }
        }
    }

    private KafkaProducer<byte[], byte[]> open(String name) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        // Only flush() ends a batch: the timer and the size never do.
        config.put("linger.ms", "60000");
        config.put("batch.size", Integer.toString(BATCH_BYTES));
        recipe.get("producers").get(name).properties()
                .forEach(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        if (config.containsKey("transactional.id")) {
            producer.initTransactions();
        }
        return producer;
    }

    private void batch(KafkaProducer<byte[], byte[]> producer, JsonNode step)
            throws ExecutionException, InterruptedException {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : step.get("records")) {
            JsonNode timestamp = record.get("timestamp");
            ProducerRecord<byte[], byte[]> out = new ProducerRecord<>(
                    step.get("topic").asText(),
                    step.get("partition").asInt(),
                    timestamp == null || timestamp.isNull() ? null : timestamp.asLong(),
                    bytes(record.get("key")),
                    bytes(record.get("value")));
            if (record.has("headers")) {
                for (JsonNode header : record.get("headers")) {
                    out.headers().add(header.get(0).asText(), bytes(header.get(1)));
                }
            }
            sent.add(producer.send(out));
        }
        producer.flush();
        for (Future<RecordMetadata> one : sent) {
            one.get();
            records++;
        }
    }

    private static byte[] bytes(JsonNode base64) {
        return base64 == null || base64.isNull() ? null : Base64.getDecoder().decode(base64.asText());
    }
}
