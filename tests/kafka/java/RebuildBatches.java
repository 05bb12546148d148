import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.internals.ByteBufferOutputStream;

/**
 * Builds batches anew with Kafka's own builder, in any format and codec.
 *
 * <p>{@code IN OUT}: IN has cases of magic, codec, level (-2147483648: the default), timestamp type (int32 each), log
 * append time (int64), and one batch of magic 2 behind its length (int32), whose records, producer and epoch are
 * taken. OUT gets what was built for each, behind its length.
 */
public final class RebuildBatches {
    private RebuildBatches() {}

    public static void main(String[] args) throws IOException {
        try (DataInputStream in = ReadBatches.open(args[0]);
                DataOutputStream out = new DataOutputStream(Files.newOutputStream(Path.of(args[1])))) {
            while (in.available() > 0) {
                byte magic = (byte) in.readInt();
                Compression compression = compression(in.readInt(), in.readInt());
                TimestampType timestampType = in.readInt() == 0 ? TimestampType.CREATE_TIME : TimestampType.LOG_APPEND_TIME;
                long logAppendTime = in.readLong();
                ByteBuffer batch = ByteBuffer.wrap(ReadBatches.next(in));
                MemoryRecords source = MemoryRecords.readableRecords(batch);
                for (MutableRecordBatch one : source.batches()) {
                    byte[] built = rebuild(one, magic, compression, timestampType, logAppendTime);
                    out.writeInt(built.length);
                    out.write(built);
                }
            }
        }
    }

    private static byte[] rebuild(
            RecordBatch batch, byte magic, Compression compression, TimestampType timestampType, long logAppendTime) {
        boolean modern = magic >= RecordBatch.MAGIC_VALUE_V2;
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(
                new ByteBufferOutputStream(1 << 20),
                magic,
                compression,
                magic == RecordBatch.MAGIC_VALUE_V0 ? TimestampType.NO_TIMESTAMP_TYPE : timestampType,
                batch.baseOffset(),
                logAppendTime,
                modern ? batch.producerId() : RecordBatch.NO_PRODUCER_ID,
                modern ? batch.producerEpoch() : RecordBatch.NO_PRODUCER_EPOCH,
                modern ? batch.baseSequence() : RecordBatch.NO_SEQUENCE,
                modern && batch.isTransactional(),
                false,
                batch.partitionLeaderEpoch(),
                Integer.MAX_VALUE);
        for (Record record : batch) {
            Header[] headers = modern ? record.headers() : Record.EMPTY_HEADERS;
            long timestamp = magic == RecordBatch.MAGIC_VALUE_V0 ? RecordBatch.NO_TIMESTAMP : record.timestamp();
            builder.appendWithOffset(record.offset(), timestamp, record.key(), record.value(), headers);
        }
        ByteBuffer built = builder.build().buffer();
        byte[] bytes = new byte[built.remaining()];
        built.get(bytes);
        return bytes;
    }

    private static Compression compression(int codec, int level) {
        boolean usual = level == Integer.MIN_VALUE;
        CompressionType type = CompressionType.forId(codec);
        switch (type) {
            case GZIP:
                return usual ? Compression.gzip().build() : Compression.gzip().level(level).build();
            case LZ4:
                return usual ? Compression.lz4().build() : Compression.lz4().level(level).build();
            case ZSTD:
                return usual ? Compression.zstd().build() : Compression.zstd().level(level).build();
            default:
                return Compression.of(type).build();
        }
    }
}
