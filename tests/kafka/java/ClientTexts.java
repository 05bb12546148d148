import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.common.config.SaslConfigs;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

/**
 * How Java and Kafka's client read texts of a configuration: properties files, and {@code sasl.jaas.config}.
 *
 * <p>{@code FILE}: a JSON object a line, of which {@code op} says what {@code text} is; stdout has an answer a line: its
 * pairs, or null if it is refused.
 */
public final class ClientTexts {
    private static final ObjectMapper JSON = new ObjectMapper();

    private ClientTexts() {}

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            JsonNode question = JSON.readTree(line);
            String text = question.get("text").asText();
            out.println(JSON.writeValueAsString(question.get("op").asText().equals("jaas") ? jaas(text) : properties(text)));
        }
        out.flush();
    }

    private static Map<String, String> properties(String text) throws Exception {
        Properties found = new Properties();
        try {
            found.load(new StringReader(text));
        } catch (IllegalArgumentException malformed) {
            return null;
        }
        Map<String, String> pairs = new TreeMap<>();
        found.forEach((key, value) -> pairs.put((String) key, (String) value));
        return pairs;
    }

    private static Map<String, Object> jaas(String text) {
        try {
            JaasContext context = JaasContext.loadClientContext(Map.of(SaslConfigs.SASL_JAAS_CONFIG, new Password(text)));
            Map<String, Object> pairs = new TreeMap<>(context.configurationEntries().get(0).getOptions());
            pairs.put("", context.configurationEntries().get(0).getLoginModuleName());
            return pairs;
        } catch (RuntimeException refused) {
            return null;
        }
    }
}
