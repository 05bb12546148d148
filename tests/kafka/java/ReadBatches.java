import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;

/**
 * Reads batches of any format as Kafka's consumer does.
 *
 * <p>One argument: a file of cases, each a length (int32) and as many bytes of one or more batches. Stdout has one
 * JSON object for each case: its batches with their records, or what was thrown. Bytes are in hex; header keys are
 * shown in UTF-8.
 */
public final class ReadBatches {
    private static final ObjectMapper JSON = new ObjectMapper();

    private ReadBatches() {}

    public static void main(String[] args) throws IOException {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        try (DataInputStream in = open(args[0])) {
            for (byte[] bytes = next(in); bytes != null; bytes = next(in)) {
                out.println(JSON.writeValueAsString(read(bytes)));
            }
        }
        out.flush();
    }

    static DataInputStream open(String path) throws IOException {
        return new DataInputStream(new BufferedInputStream(Files.newInputStream(Path.of(path))));
    }

    static byte[] next(DataInputStream in) throws IOException {
        int size;
        try {
            size = in.readInt();
        } catch (EOFException end) {
            return null;
        }
        byte[] bytes = new byte[size];
        in.readFully(bytes);
        return bytes;
    }

    private static Map<String, Object> read(byte[] bytes) {
        Map<String, Object> line = new LinkedHashMap<>();
        List<Object> batches = new ArrayList<>();
        try {
            for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
                batch.ensureValid();
                batches.add(describe(batch));
            }
            line.put("batches", batches);
        } catch (Exception | Error thrown) {
            line.put("error", thrown.toString());
        }
        return line;
    }

    private static Map<String, Object> describe(RecordBatch batch) {
        Map<String, Object> described = new LinkedHashMap<>();
        described.put("magic", batch.magic());
        described.put("codec", batch.compressionType().id);
        described.put("timestampType", batch.timestampType().id);
        described.put("maxTimestamp", batch.maxTimestamp());
        described.put("baseOffset", batch.baseOffset());
        described.put("lastOffset", batch.lastOffset());
        described.put("control", batch.isControlBatch());
        List<Object> records = new ArrayList<>();
        for (Record record : batch) {
            record.ensureValid();
            List<List<String>> headers = new ArrayList<>();
            for (Header header : record.headers()) {
                headers.add(Arrays.asList(header.key(), hex(header.value())));
            }
            records.add(Arrays.asList(
                    record.offset(),
                    record.timestamp(),
                    hex(bytes(record.key())),
                    hex(bytes(record.value())),
                    headers,
                    record.sequence()));
        }
        described.put("records", records);
        return described;
    }

    private static byte[] bytes(ByteBuffer buffer) {
        if (buffer == null) {
            return null;
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(bytes);
    }
}
