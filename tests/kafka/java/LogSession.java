import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's own UnifiedLog over one partition directory: no broker, one thread, a clock that stands still.
 *
 * <p>Everything that decides which bytes reach the disk is an argument, so two runs give the same files.
 */
final class LogSession implements AutoCloseable {
    private static final int EXPIRY_MS = 86_400_000;
    private static final int MAX_TXN_TIMEOUT_MS = 900_000;
    private static final ObjectMapper JSON = new ObjectMapper();

    final FixedClock clock;
    final UnifiedLog log;
    private final Inline scheduler = new Inline();

    LogSession(Map<String, String> options, Properties config) throws IOException {
        clock = new FixedClock(Long.parseLong(options.get("now-ms")));
        log = UnifiedLog.create(
                new File(options.get("dir")),
                new LogConfig(config),
                Long.parseLong(options.getOrDefault("log-start", "0")),
                Long.parseLong(options.getOrDefault("recovery-point", "0")),
                scheduler,
                new BrokerTopicStats(),
                clock,
                MAX_TXN_TIMEOUT_MS,
                new ProducerStateManagerConfig(EXPIRY_MS, false),
                EXPIRY_MS,
                new LogDirFailureChannel(1),
                Boolean.parseBoolean(options.getOrDefault("clean", "true")),
                Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
    }

    /** Runs what the log asked to be done soon (flush after a roll) or, at the end, also later (file deletes). */
    void runScheduled(boolean alsoDelayed) {
        scheduler.run(alsoDelayed);
    }

    /** As the broker's clean shutdown does: trim the indexes, flush all, then close (producer snapshot). */
    @Override
    public void close() throws IOException {
        runScheduled(true);
        print(state());
        log.prepareActiveSegmentForClose();
        log.flush(true);
        log.close();
        scheduler.pool.shutdownNow();
    }

    Map<String, Object> state() throws IOException {
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("logStartOffset", log.logStartOffset());
        out.put("logEndOffset", log.logEndOffset());
        out.put("lastStableOffset", log.lastStableOffset());
        out.put("recoveryPoint", log.recoveryPoint());
        List<Long> bases = new ArrayList<>();
        log.logSegments().forEach(segment -> bases.add(segment.baseOffset()));
        out.put("segments", bases);
        return out;
    }

    static void print(Map<String, Object> line) throws IOException {
        System.out.println(JSON.writeValueAsString(line));
    }

    /** Splits {@code --name value} pairs; every {@code --config key=value} goes to the topic's properties. */
    static Map<String, String> parse(String[] args, Properties config) {
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i + 1 < args.length; i += 2) {
            String name = args[i].substring(2);
            if (name.equals("config")) {
                String[] pair = args[i + 1].split("=", 2);
                config.put(pair[0], pair[1]);
            } else {
                options.put(name, args[i + 1]);
            }
        }
        return options;
    }

    /** A clock that moves only when told. */
    static final class FixedClock implements Time {
        private long nowMs;

        FixedClock(long nowMs) {
            this.nowMs = nowMs;
        }

        void set(long ms) {
            nowMs = ms;
        }

        @Override
        public long milliseconds() {
            return nowMs;
        }

        @Override
        public long nanoseconds() {
            return TimeUnit.MILLISECONDS.toNanos(nowMs);
        }

        @Override
        public void sleep(long ms) {
            nowMs += ms;
        }

        @Override
        public void waitObject(Object obj, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException("one thread: nobody could fulfil the condition");
        }
    }

    /** Collects one-shot tasks for the caller's thread; periodic ones (producer expiry) never run. */
    static final class Inline implements Scheduler {
        private record Task(Runnable body, long delayMs) {}

        final ScheduledThreadPoolExecutor pool = new ScheduledThreadPoolExecutor(1);
        private final List<Task> tasks = new ArrayList<>();

        void run(boolean alsoDelayed) {
            List<Task> due = new ArrayList<>(tasks);
            due.removeIf(task -> !alsoDelayed && task.delayMs() > 0);
            tasks.removeAll(due);
            due.forEach(task -> task.body().run());
        }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            if (periodMs < 0) {
                tasks.add(new Task(task, delayMs));
            }
            // UnifiedLog.close() cancels what it was given, so it must be a real future.
            return pool.schedule(() -> { }, Long.MAX_VALUE, TimeUnit.NANOSECONDS);
        }

        @Override
        public void startup() {}

        @Override
        public void shutdown() {}

        @Override
        public void resizeThreadPool(int size) {}
    }
}
