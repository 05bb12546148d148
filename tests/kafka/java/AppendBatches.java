import java.io.DataInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.VerificationGuard;

/**
 * Appends ready batches to a partition directory through Kafka's own UnifiedLog: the byte-for-byte oracle.
 *
 * <p>{@code --dir D --now-ms N --steps FILE [--leader-epoch 0] [--origin AUTO] [--transaction-version 2]
 * [--log-start 0] [--recovery-point 0] [--clean true] [--config k=v]...}
 *
 * <p>The steps file repeats {@code int32 length, bytes} (length at least 0: one append) or
 * {@code int32 command, int64 argument} (command below 0). stdout has one JSON object for each step and one at the end.
 */
public final class AppendBatches {
    private static final int SET_CLOCK = -1;
    private static final int SET_EPOCH = -2;
    private static final int ROLL = -3;
    private static final int TRUNCATE = -4;
    private static final int DELETE_RECORDS = -5;
    private static final int HIGH_WATERMARK = -6;
    private static final int DELETE_OLD_SEGMENTS = -7;

    private final LogSession session;
    private final String origin;
    private final short transactionVersion;
    private int leaderEpoch;
    private boolean highWatermarkFollows = true;

    private AppendBatches(LogSession session, Map<String, String> options) {
        this.session = session;
        this.origin = options.getOrDefault("origin", "AUTO");
        this.transactionVersion = Short.parseShort(options.getOrDefault("transaction-version", "2"));
        this.leaderEpoch = Integer.parseInt(options.getOrDefault("leader-epoch", "0"));
    }

    public static void main(String[] args) throws IOException {
        Properties config = new Properties();
        Map<String, String> options = LogSession.parse(args, config);
        try (LogSession session = new LogSession(options, config);
                DataInputStream steps =
                        new DataInputStream(Files.newInputStream(Path.of(options.get("steps"))))) {
            AppendBatches run = new AppendBatches(session, options);
            while (steps.available() > 0) {
                Map<String, Object> line = new LinkedHashMap<>();
                try {
                    run.step(steps, line);
                } catch (RuntimeException refused) {
                    line.put("error", refused.getClass().getSimpleName());
                    line.put("message", refused.getMessage());
                }
                LogSession.print(line);
                session.runScheduled(false);
            }
        }
    }

    private void step(DataInputStream steps, Map<String, Object> line) throws IOException {
        int length = steps.readInt();
        if (length < 0) {
            command(length, steps.readLong(), line);
            return;
        }
        byte[] bytes = new byte[length];
        steps.readFully(bytes);
        LogAppendInfo info = append(MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)));
        if (highWatermarkFollows) {
            session.log.updateHighWatermark(session.log.logEndOffset());
        }
        line.put("firstOffset", info.firstOffset());
        line.put("lastOffset", info.lastOffset());
        line.put("maxTimestamp", info.maxTimestamp());
        line.put("logAppendTime", info.logAppendTime());
        line.put("lastStableOffset", session.log.lastStableOffset());
    }

    private LogAppendInfo append(MemoryRecords records) throws IOException {
        if (origin.equals("FOLLOWER")) {
            return session.log.appendAsFollower(records, leaderEpoch);
        }
        AppendOrigin as = origin.equals("AUTO") ? natural(records) : AppendOrigin.valueOf(origin);
        return session.log.appendAsLeader(records, leaderEpoch, as, RequestLocal.noCaching(),
                VerificationGuard.SENTINEL, transactionVersion);
    }

    /** A client cannot send markers and a coordinator sends nothing else here. */
    private static AppendOrigin natural(MemoryRecords records) {
        for (RecordBatch batch : records.batches()) {
            return batch.isControlBatch() ? AppendOrigin.COORDINATOR : AppendOrigin.CLIENT;
        }
        return AppendOrigin.CLIENT;
    }

    private void command(int code, long argument, Map<String, Object> line) throws IOException {
        switch (code) {
            case SET_CLOCK -> session.clock.set(argument);
            case SET_EPOCH -> {
                leaderEpoch = (int) argument;
                // Partition.makeLeader: the epoch starts where the log ends, before any append.
                session.log.assignEpochStartOffset(leaderEpoch, session.log.logEndOffset());
            }
            case ROLL -> session.log.roll(argument < 0 ? Optional.empty() : Optional.of(argument));
            case TRUNCATE -> line.put("truncated", session.log.truncateTo(argument));
            case DELETE_RECORDS -> line.put("moved", session.log.maybeIncrementLogStartOffset(
                    argument, LogStartOffsetIncrementReason.ClientRecordDeletion));
            case HIGH_WATERMARK -> {
                highWatermarkFollows = false;
                session.log.updateHighWatermark(argument);
            }
            case DELETE_OLD_SEGMENTS -> line.put("deleted", session.log.deleteOldSegments());
            default -> throw new IllegalArgumentException("unknown command " + code);
        }
        line.put("command", code);
        line.putAll(session.state());
    }
}
