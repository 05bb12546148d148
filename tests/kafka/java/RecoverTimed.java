import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;

/**
 * How long Kafka's own log takes to load partition directories as after a crash: every segment from offset 0 on is
 * recovered.
 *
 * <p>{@code --dirs D1,D2,... --now-ms N [--config k=v]...}: one directory after the other, in one JVM, so that the
 * first can warm it up. stdout: for each the seconds until it was open, and of CPU; then the log's state.
 */
public final class RecoverTimed {
    private RecoverTimed() {}

    public static void main(String[] args) throws IOException {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        Properties config = new Properties();
        Map<String, String> options = LogSession.parse(args, config);
        options.put("clean", "false");
        for (String dir : options.get("dirs").split(",")) {
            options.put("dir", dir);
            long start = System.nanoTime();
            long used = system.getProcessCpuTime();
            try (LogSession session = new LogSession(options, config)) {
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("seconds", (System.nanoTime() - start) / 1e9);
                line.put("cpuSeconds", (system.getProcessCpuTime() - used) / 1e9);
                LogSession.print(line);
            }
        }
    }
}
