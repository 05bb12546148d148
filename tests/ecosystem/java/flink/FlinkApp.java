import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * A job of Flink on a cluster inside this process, until it is killed:
 * `FlinkApp bootstrap guarantee checkpoints input output group fail-after`.
 *
 * It copies values. After `fail-after` records one task fails, once; Flink restarts it from the last checkpoint.
 */
public final class FlinkApp {
    private static volatile boolean hasFailed;
    private static volatile long seen;

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("execution.checkpointing.interval", "500ms");
        configuration.setString("execution.checkpointing.dir", arguments[2]);
        configuration.setString("restart-strategy.type", "fixed-delay");
        configuration.setString("restart-strategy.fixed-delay.attempts", "100");
        configuration.setString("restart-strategy.fixed-delay.delay", "200ms");
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(2, configuration);
        long failAfter = Long.parseLong(arguments[6]);

        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(arguments[0])
            .setTopics(arguments[3])
            .setGroupId(arguments[5])
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .setProperty("isolation.level", "read_committed")
            .build();
        Properties producer = new Properties();
        producer.setProperty("transaction.timeout.ms", "60000");
        boolean once = arguments[1].equals("exactly_once");
        KafkaSink<String> sink = KafkaSink.<String>builder()
            .setBootstrapServers(arguments[0])
            .setKafkaProducerConfig(producer)
            .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                .setTopic(arguments[4])
                .setValueSerializationSchema(new SimpleStringSchema())
                .build())
            .setDeliveryGuarantee(once ? DeliveryGuarantee.EXACTLY_ONCE : DeliveryGuarantee.AT_LEAST_ONCE)
            .setTransactionalIdPrefix(arguments[5])
            .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "source")
            .map(value -> {
                if (++seen > failAfter && !hasFailed) {
                    hasFailed = true;
                    throw new IllegalStateException("the failure that the job was told to have");
                }
                return value;
            })
            .returns(String.class)
            .sinkTo(sink);
        environment.execute();
    }
}
