import java.io.IOException;
import java.security.DigestException;
import java.security.NoSuchAlgorithmException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.utils.Throttler;

/**
 * How long Kafka's own Cleaner takes, with the buffers that a broker gives it by default.
 *
 * <p>{@code --dirs D1,D2,... --now-ms N [--config k=v]...}: cleans one partition directory after the other, in one JVM,
 * so that the first can warm it up. stdout: for each the seconds of its round, then the log's state.
 */
public final class CleanTimed {
    private static final int MAP_BYTES = 128 << 20;
    private static final int IO_BUFFER_BYTES = 512 * 1024 / 2;
    private static final int MAX_MESSAGE_BYTES = 1048588;

    private CleanTimed() {}

    public static void main(String[] args)
            throws IOException, NoSuchAlgorithmException, DigestException {
        Properties config = new Properties();
        Map<String, String> options = LogSession.parse(args, config);
        Cleaner cleaner = new Cleaner(
                0, new SkimpyOffsetMap(MAP_BYTES), IO_BUFFER_BYTES, MAX_MESSAGE_BYTES, 0.9,
                new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM),
                Time.SYSTEM, partition -> { });
        for (String dir : options.get("dirs").split(",")) {
            options.put("dir", dir);
            try (LogSession session = new LogSession(options, config)) {
                LogToClean target =
                        new LogToClean(session.log, 0, session.log.activeSegment().baseOffset(), false);
                long start = System.nanoTime();
                Map.Entry<Long, CleanerStats> round = cleaner.clean(target);
                long nanos = System.nanoTime() - start;
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("seconds", nanos / 1e9);
                line.put("bytesRead", round.getValue().bytesRead());
                line.put("messagesWritten", round.getValue().messagesWritten());
                LogSession.print(line);
            }
        }
    }
}
