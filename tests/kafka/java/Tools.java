import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Kafka's command line tools one after the other in one JVM, because each start of one costs a second.
 *
 * <p>{@code STEPS.json}: a list of {@code {main, args, in, until}}; stdout has a JSON object for each, {@code {code, out,
 * err}}. A tool runs again until {@code until} is in what it prints.
 */
public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long PATIENCE_NANOS = 60_000_000_000L;

    private Tools() {}

    /** What a tool says when it would end its process. */
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1L;

        Ended(String message) {
            super(message);
        }
    }

    /** The code that the tool first wanted to end with: many take what we throw for an error, and end once more. */
    private static Integer ended;

    /** Scala's tools keep the standard output that they find first: it is one and the same for all steps. */
    private static final class Switched extends OutputStream {
        private ByteArrayOutputStream target = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int one) {
            target.write(one);
        }

        @Override
        public synchronized void write(byte[] bytes, int start, int count) {
            target.write(bytes, start, count);
        }

        synchronized String taken() {
            String text = target.toString(StandardCharsets.UTF_8);
            target = new ByteArrayOutputStream();
            return text;
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream stdout = System.out;
        catchExits();
        Switched out = new Switched();
        Switched err = new Switched();
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        for (JsonNode step : JSON.readTree(new File(args[0]))) {
            String until = step.path("until").asText("");
            long end = System.nanoTime() + PATIENCE_NANOS;
            Map<String, Object> told;
            do {
                System.setIn(new ByteArrayInputStream(step.path("in").asText("").getBytes(StandardCharsets.UTF_8)));
                int code = run(step);
                told = Map.of("code", code, "out", out.taken(), "err", err.taken());
            } while (!told.get("out").toString().contains(until) && System.nanoTime() < end);
            stdout.println(JSON.writeValueAsString(told));
        }
        stdout.flush();
        // What the tools would still do at the end of their own process is of no use here.
        Runtime.getRuntime().halt(0);
    }

    /** Kafka 4.4 moved its {@code Exit} into a package of internals, and older tools run here too. */
    private static void catchExits() throws ReflectiveOperationException {
        Class<?> exit;
        try {
            exit = Class.forName("org.apache.kafka.common.utils.internals.Exit");
        } catch (ClassNotFoundException before44) {
            exit = Class.forName("org.apache.kafka.common.utils.Exit");
        }
        Class<?> procedure = Class.forName(exit.getName() + "$Procedure");
        Object caught = Proxy.newProxyInstance(Tools.class.getClassLoader(), new Class<?>[] {procedure}, (self, method, args) -> {
            ended = ended == null ? (Integer) args[0] : ended;
            throw new Ended((String) args[1]);
        });
        exit.getMethod("setExitProcedure", procedure).invoke(null, caught);
    }

    private static int run(JsonNode step) throws ReflectiveOperationException {
        ended = null;
        List<String> arguments = new ArrayList<>();
        step.get("args").forEach(one -> arguments.add(one.asText()));
        try {
            Class.forName(step.get("main").asText())
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                thrown.getCause().printStackTrace();
                ended = ended == null ? -1 : ended;
            } else if (thrown.getCause().getMessage() != null) {
                System.err.println(thrown.getCause().getMessage());
            }
        }
        return ended == null ? 0 : ended;
    }
}
