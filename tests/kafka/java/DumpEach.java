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
 * As {@code DumpMany}, on damaged files: a run that ends with an exception is one more outcome.
 *
 * <p>One argument: a JSON file {@code [{"out": path, "args": [...]}]}. Beside each {@code out} comes {@code out + ".err"}
 * with stderr, and at its end a line {@code threw <exception>} where the tool's process would have ended with code 1.
 */
public final class DumpEach {
    private DumpEach() {}

    public static void main(String[] args) throws IOException {
        PrintStream console = System.out;
        PrintStream errors = System.err;
        for (JsonNode job : new ObjectMapper().readTree(new File(args[0]))) {
            List<String> arguments = new ArrayList<>();
            job.get("args").forEach(argument -> arguments.add(argument.asText()));
            String target = job.get("out").asText();
            try (PrintStream out = new PrintStream(target, StandardCharsets.UTF_8);
                    PrintStream err = new PrintStream(target + ".err", StandardCharsets.UTF_8)) {
                System.setOut(out);
                System.setErr(err);
                try {
                    DumpLogSegments.main(arguments.toArray(new String[0]));
                } catch (Exception | OutOfMemoryError thrown) {
                    err.println("threw " + thrown);
                }
            } finally {
                System.setOut(console);
                System.setErr(errors);
            }
        }
    }
}
