import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's Java clients as a process that does what it is told: {@code BOOTSTRAP}; jobs come in by standard input, a JSON
 * object a line, and what happens goes out, a JSON array a line. tests/clients/__init__.py says which.
 */
public final class ClientDriver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration SHORT = Duration.ofMillis(50);

    private final String bootstrap;
    private final PrintStream out = new PrintStream(System.out, true, java.nio.charset.StandardCharsets.UTF_8);
    private final BlockingQueue<JsonNode> jobs = new LinkedBlockingQueue<>();
    private volatile CountDownLatch stop = new CountDownLatch(1);
    private volatile CountDownLatch go = new CountDownLatch(1);

    private ClientDriver(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        ClientDriver driver = new ClientDriver(args[0]);
        Thread reader = new Thread(driver::read, "orders");
        reader.setDaemon(true);
        reader.start();
        driver.say("client", version());
        while (true) {
            driver.work(driver.jobs.take());
        }
    }

    /** Of the client; the class that knows it has another package from 4.4 on. */
    private static String version() throws IOException {
        Properties found = new Properties();
        try (InputStream resource = KafkaProducer.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            found.load(resource);
        }
        return found.getProperty("version");
    }

    private void read() {
        try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                switch (line.strip()) {
                    case "stop" -> stop.countDown();
                    case "go" -> go.countDown();
                    default -> jobs.add(JSON.readTree(line));
                }
            }
        } catch (IOException error) {
            say("error", error.getClass().getSimpleName(), String.valueOf(error.getMessage()));
        }
        Runtime.getRuntime().halt(0);
    }

    private void work(JsonNode job) throws Exception {
        try {
            switch (job.get("do").asText()) {
                case "produce" -> produce(job);
                case "consume" -> consume(job);
                case "member" -> member(job);
                case "transact" -> transact(job);
                case "relay" -> relay(job);
                case "admin" -> admin(job);
                default -> throw new IllegalArgumentException("unknown job " + job);
            }
        } catch (ExecutionException error) {
            refuse(error.getCause());
        } catch (KafkaException error) {
            refuse(error);
        }
        stop = new CountDownLatch(1);
        go = new CountDownLatch(1);
        say("done");
    }

    private void refuse(Throwable error) {
        say("error", error.getClass().getSimpleName(), String.valueOf(error.getMessage()));
    }

    private synchronized void say(Object... what) {
        try {
            out.println(JSON.writeValueAsString(what));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private Properties config() {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("reconnect.backoff.max.ms", "200");
        return config;
    }

    // Producing

    private void produce(JsonNode job) throws InterruptedException {
        Properties config = config();
        int timeout = job.path("timeout_ms").asInt(60_000);
        config.put("acks", Integer.toString(job.path("acks").asInt(-1)));
        config.put("compression.type", job.path("codec").asText("none"));
        config.put("enable.idempotence", Boolean.toString(job.path("idempotent").asBoolean(false)));
        config.put("max.request.size", Integer.toString(job.path("max_request").asInt(1_000_000)));
        config.put("max.block.ms", Integer.toString(timeout));
        config.put("request.timeout.ms", Integer.toString(Math.min(timeout, 30_000)));
        config.put("delivery.timeout.ms", Integer.toString(timeout + 5_000));
        config.put("linger.ms", Integer.toString(job.path("linger_ms").asInt(5)));
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            if (job.has("records")) {
                int number = 0;
                for (JsonNode record : job.get("records")) {
                    producer.send(given(job.get("topic").asText(), record), tell(number++));
                }
            } else {
                count(producer, job);
            }
            producer.flush();
        }
    }

    private void count(KafkaProducer<byte[], byte[]> producer, JsonNode job) throws InterruptedException {
        long started = System.nanoTime();
        int first = job.get("numbers").get(0).asInt();
        int size = job.path("size").asInt(0);
        for (int number = first; number < job.get("numbers").get(1).asInt(); number++) {
            if (job.has("rate")) {
                long due = started + (number - first) * 1_000_000_000L / job.get("rate").asInt();
                stop.await(due - System.nanoTime(), TimeUnit.NANOSECONDS);
            }
            if (stop.getCount() == 0) {
                break;
            }
            byte[] digits = Integer.toString(number).getBytes();
            byte[] value = Arrays.copyOf(digits, Math.max(size, digits.length));
            Arrays.fill(value, digits.length, value.length, (byte) ' ');
            int partition = number % job.get("partitions").asInt();
            producer.send(new ProducerRecord<>(job.get("topic").asText(), partition, null, value), tell(number));
        }
    }

    private Callback tell(int number) {
        return (found, error) -> {
            if (error != null) {
                say("refused", number, error.getClass().getSimpleName());
            } else {
                say("acked", number, found.partition(), found.offset());
            }
        };
    }

    private static ProducerRecord<byte[], byte[]> given(String topic, JsonNode record) {
        Long timestamp = record.get(3).isNull() ? null : record.get(3).asLong();
        ProducerRecord<byte[], byte[]> made = new ProducerRecord<>(
                topic, record.get(0).asInt(), timestamp, bytes(record.get(1)), bytes(record.get(2)));
        record.get(4).forEach(header -> made.headers().add(header.get(0).asText(), bytes(header.get(1))));
        return made;
    }

    private void transact(JsonNode job) {
        String topic = job.get("topic").asText();
        Properties config = config();
        config.put("transactional.id", topic);
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            int number = 0;
            for (JsonNode commit : job.get("commits")) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, String.valueOf(number).getBytes()));
                if (commit.asBoolean()) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                say("ended", number++);
            }
        }
    }

    private void relay(JsonNode job) throws InterruptedException {
        Properties reading = config();
        reading.put("group.id", job.get("group").asText());
        reading.put("auto.offset.reset", "earliest");
        reading.put("isolation.level", "read_committed");
        reading.put("max.poll.records", "20");
        if (job.has("protocol")) {
            reading.put("group.protocol", job.get("protocol").asText());
        } else {
            reading.put("session.timeout.ms", job.get("session_ms").asText());
            reading.put("heartbeat.interval.ms", Integer.toString(job.get("session_ms").asInt() / 6));
        }
        Properties writing = config();
        writing.put("transactional.id", job.get("group").asText());
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(reading);
                KafkaProducer<byte[], byte[]> producer =
                        new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            consumer.subscribe(List.of(job.get("source").asText()));
            int relayed = 0;
            while (stop.getCount() > 0) {
                var found = consumer.poll(SHORT);
                if (found.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<byte[], byte[]> record : found) {
                    producer.send(new ProducerRecord<>(
                            job.get("target").asText(), record.partition(), null, record.value()));
                    offsets.put(new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (relayed >= job.path("hold").asInt(Integer.MAX_VALUE)) {
                    producer.flush();
                    say("held");
                    go.await();
                }
                producer.commitTransaction();
                relayed += found.count();
                say("relayed", found.count());
            }
        }
    }

    // Consuming

    private KafkaConsumer<byte[], byte[]> consumer(Properties config) {
        config.put("enable.auto.commit", "false");
        config.put("fetch.max.wait.ms", "100");
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private void consume(JsonNode job) {
        Properties config = config();
        config.put("auto.offset.reset", job.path("reset").asText("earliest"));
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(config)) {
            Map<TopicPartition, JsonNode> places = new HashMap<>();
            job.get("starts").properties().forEach(entry -> places.put(
                    new TopicPartition(job.get("topic").asText(), Integer.parseInt(entry.getKey())), entry.getValue()));
            consumer.assign(places.keySet());
            places.forEach((place, start) -> {
                switch (start.asText()) {
                    case "earliest" -> consumer.seekToBeginning(List.of(place));
                    case "latest" -> consumer.seekToEnd(List.of(place));
                    default -> consumer.seek(place, start.asLong());
                }
            });
            int left = job.get("count").asInt();
            while (left > 0 && stop.getCount() > 0) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(SHORT)) {
                    if (left-- > 0) {
                        say(record);
                    }
                }
            }
        }
    }

    private void say(ConsumerRecord<byte[], byte[]> record) {
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(Arrays.asList(header.key(), text(header.value())));
        }
        say("record", record.partition(), record.offset(), record.timestamp(), text(record.key()),
                text(record.value()), headers);
    }

    private void member(JsonNode job) throws InterruptedException {
        Properties config = config();
        config.put("group.id", job.get("group").asText());
        config.put("auto.offset.reset", "earliest");
        config.put("max.poll.interval.ms", Integer.toString(job.path("poll_ms").asInt(60_000)));
        config.put("max.poll.records", "1");
        if (job.has("protocol")) {
            config.put("group.protocol", job.get("protocol").asText());
        } else {
            config.put("session.timeout.ms", job.get("session_ms").asText());
            config.put("heartbeat.interval.ms", Integer.toString(job.get("session_ms").asInt() / 6));
            config.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer."
                    + (job.path("cooperative").asBoolean() ? "CooperativeStickyAssignor" : "RangeAssignor"));
        }
        if (job.has("instance")) {
            config.put("group.instance.id", job.get("instance").asText());
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(config)) {
            consumer.subscribe(List.of(job.get("topic").asText()));
            TreeSet<Integer> before = null;
            while (stop.getCount() > 0) {
                var found = consumer.poll(SHORT);
                TreeSet<Integer> now = new TreeSet<>();
                consumer.assignment().forEach(place -> now.add(place.partition()));
                if (!now.equals(before)) {
                    say("assigned", now);
                    before = now;
                }
                for (ConsumerRecord<byte[], byte[]> record : found) {
                    say("read", record.partition(), record.offset());
                    if (job.path("hold").asLong(-1) == record.offset()) {
                        go.await();
                    }
                    commit(consumer, record);
                }
            }
        }
    }

    private void commit(KafkaConsumer<byte[], byte[]> consumer, ConsumerRecord<byte[], byte[]> record) {
        TopicPartition place = new TopicPartition(record.topic(), record.partition());
        try {
            consumer.commitSync(Map.of(place, new OffsetAndMetadata(record.offset() + 1)));
            say("committed", record.partition(), record.offset());
        } catch (KafkaException error) {
            say("not committed", error.getClass().getSimpleName());
        }
    }

    // Admin

    private void admin(JsonNode job) throws ExecutionException, InterruptedException {
        Properties config = config();
        if (job.get("op").asText().equals("at")) {
            say("result", at(job));
            return;
        }
        try (AdminCalls calls = new AdminCalls(config)) {
            say("result", calls.answer(job));
        }
    }

    private List<Long> at(JsonNode job) {
        TopicPartition place = new TopicPartition(job.get("topic").asText(), 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(config())) {
            return Arrays.asList(
                    consumer.offsetsForTimes(Map.of(place, job.get("time").asLong())).get(place).offset(),
                    consumer.beginningOffsets(List.of(place)).get(place),
                    consumer.endOffsets(List.of(place)).get(place));
        }
    }

    private static byte[] bytes(JsonNode base64) {
        return base64.isNull() ? null : Base64.getDecoder().decode(base64.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
