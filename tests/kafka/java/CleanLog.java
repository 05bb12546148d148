import java.io.IOException;
import java.security.DigestException;
import java.security.NoSuchAlgorithmException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.utils.Throttler;

/**
 * Cleans one partition directory with Kafka's own Cleaner: the oracle for compaction.
 *
 * <p>{@code --dir D --now-ms N [--first-dirty 0] [--first-uncleanable active base] [--map-bytes 1048576]
 * [--log-start 0] [--recovery-point 0] [--config k=v]...} stdout: the round's figures, then the log's state.
 */
public final class CleanLog {
    private static final int IO_BUFFER_BYTES = 1 << 20;

    private CleanLog() {}

    public static void main(String[] args)
            throws IOException, NoSuchAlgorithmException, DigestException {
        Properties config = new Properties();
        Map<String, String> options = LogSession.parse(args, config);
        try (LogSession session = new LogSession(options, config)) {
            int mapBytes = Integer.parseInt(options.getOrDefault("map-bytes", "1048576"));
            Cleaner cleaner = new Cleaner(
                    0, new SkimpyOffsetMap(mapBytes), IO_BUFFER_BYTES, IO_BUFFER_BYTES, 0.9,
                    new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", session.clock),
                    session.clock, partition -> { });
            long firstDirty = Long.parseLong(options.getOrDefault("first-dirty", "0"));
            String bound = options.get("first-uncleanable");
            long firstUncleanable =
                    bound == null ? session.log.activeSegment().baseOffset() : Long.parseLong(bound);
            LogToClean target = new LogToClean(session.log, firstDirty, firstUncleanable, false);
            Map.Entry<Long, CleanerStats> round = cleaner.clean(target);
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("nextDirtyOffset", round.getKey());
            line.put("mapMessagesRead", round.getValue().mapMessagesRead());
            line.put("messagesRead", round.getValue().messagesRead());
            line.put("messagesWritten", round.getValue().messagesWritten());
            line.put("bytesRead", round.getValue().bytesRead());
            line.put("bytesWritten", round.getValue().bytesWritten());
            line.put("invalidMessagesRead", round.getValue().invalidMessagesRead());
            LogSession.print(line);
        }
    }
}
