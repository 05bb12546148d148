import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MeasurableStat;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.SimpleRate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.quota.QuotaUtils;

/**
 * Kafka's measures of quotas, by a clock of the test.
 *
 * <p>{@code FILE}: a JSON object a line, {@code {kind, samples, seconds, quota, steps: [[ms, value], ...]}}; stdout has a
 * line for each, with the throttle time after each step.
 */
public final class Rates {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Rates() {}

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            out.println(JSON.writeValueAsString(throttleTimes(JSON.readTree(line))));
        }
        out.flush();
    }

    private static List<Long> throttleTimes(JsonNode run) {
        MeasurableStat stat = switch (run.get("kind").asText()) {
            case "rate" -> new Rate();
            case "simple" -> new SimpleRate();
            default -> new TokenBucket();
        };
        Quota quota = Quota.upperBound(run.get("quota").asDouble());
        MetricConfig config = new MetricConfig()
                .samples(run.get("samples").asInt())
                .timeWindow(run.get("seconds").asLong(), TimeUnit.SECONDS)
                .quota(quota);
        MetricName name = new MetricName("name", "group", "", Collections.emptyMap());
        KafkaMetric metric = new KafkaMetric(new Object(), name, stat, config, Time.SYSTEM);
        List<Long> found = new ArrayList<>();
        for (JsonNode step : run.get("steps")) {
            long now = step.get(0).asLong();
            stat.record(config, step.get(1).asDouble(), now);
            double value = stat.measure(config, now);
            if (stat instanceof TokenBucket) {
                found.add(value < 0 ? Math.round(-value / quota.bound() * 1000) : 0);
            } else if (quota.acceptable(value)) {
                found.add(0L);
            } else {
                found.add(QuotaUtils.throttleTime(new QuotaViolationException(metric, value, quota.bound()), now));
            }
        }
        return found;
    }
}
