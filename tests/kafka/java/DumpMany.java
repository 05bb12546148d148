import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.tools.DumpLogSegments;

/**
 * Runs DumpLogSegments many times in one JVM, each run's stdout to a file of its own.
 *
 * <p>One argument: a JSON file {@code [{"out": path, "args": [...]}]}. A JVM for each of some hundred files would
 * cost minutes.
 */
public final class DumpMany {
    private DumpMany() {}

    public static void main(String[] args) throws IOException {
        PrintStream console = System.out;
        for (JsonNode job : new ObjectMapper().readTree(new File(args[0]))) {
            List<String> arguments = new ArrayList<>();
            job.get("args").forEach(argument -> arguments.add(argument.asText()));
            try (PrintStream out = new PrintStream(job.get("out").asText(), StandardCharsets.UTF_8)) {
                System.setOut(out);
                DumpLogSegments.main(arguments.toArray(new String[0]));
            } finally {
                System.setOut(console);
            }
        }
    }
}
