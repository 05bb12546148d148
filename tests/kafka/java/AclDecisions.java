import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.PrintStream;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Decisions of Kafka's StandardAuthorizer.
 *
 * <p>{@code FILE}: a JSON object a line, with "super.users", "everyone", "acls", and lists of "requests" (of which one
 * without a name asks for any resource of the type) and "filters". stdout has an answer a line: whether each request is
 * allowed, and the number of ACLs that match each filter.
 */
public final class AclDecisions {
    private static final ObjectMapper JSON = new ObjectMapper();

    private AclDecisions() {}

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
        out.flush();
    }

    private static List<Integer> answer(JsonNode question) throws Exception {
        List<Integer> answers = new ArrayList<>();
        try (Metrics metrics = new Metrics();
                StandardAuthorizer authorizer = new StandardAuthorizer()) {
            authorizer.withPluginMetrics(new PluginMetricsImpl(metrics, Map.of()));
            authorizer.configure(Map.of(
                    StandardAuthorizer.SUPER_USERS_CONFIG, question.get("super.users").asText(),
                    StandardAuthorizer.ALLOW_EVERYONE_IF_NO_ACL_IS_FOUND_CONFIG, question.get("everyone").asText(),
                    "node.id", "1"));
            Map<Uuid, StandardAcl> acls = new HashMap<>();
            for (JsonNode one : question.get("acls")) {
                acls.put(Uuid.randomUuid(), acl(one));
            }
            authorizer.loadSnapshot(acls);
            authorizer.completeInitialLoad();
            for (JsonNode one : question.get("requests")) {
                answers.add(isAllowed(authorizer, one) ? 1 : 0);
            }
            for (JsonNode one : question.get("filters")) {
                int count = 0;
                for (Object ignored : authorizer.acls(filter(one))) {
                    count++;
                }
                answers.add(count);
            }
        }
        return answers;
    }

    private static String text(JsonNode node, int index) {
        return node.get(index).isNull() ? null : node.get(index).asText();
    }

    private static byte code(JsonNode node, int index) {
        return (byte) node.get(index).asInt();
    }

    private static StandardAcl acl(JsonNode one) {
        return new StandardAcl(
                ResourceType.fromCode(code(one, 0)), text(one, 1), PatternType.fromCode(code(one, 2)), text(one, 3),
                text(one, 4), AclOperation.fromCode(code(one, 5)), AclPermissionType.fromCode(code(one, 6)));
    }

    private static AclBindingFilter filter(JsonNode one) {
        return new AclBindingFilter(
                new ResourcePatternFilter(
                        ResourceType.fromCode(code(one, 0)), text(one, 1), PatternType.fromCode(code(one, 2))),
                new AccessControlEntryFilter(
                        text(one, 3), text(one, 4), AclOperation.fromCode(code(one, 5)),
                        AclPermissionType.fromCode(code(one, 6))));
    }

    private static boolean isAllowed(StandardAuthorizer authorizer, JsonNode one) throws Exception {
        Context context = new Context(text(one, 0), text(one, 1));
        AclOperation operation = AclOperation.fromCode(code(one, 2));
        ResourceType type = ResourceType.fromCode(code(one, 3));
        if (one.get(4).isNull()) {
            return authorizer.authorizeByResourceType(context, operation, type) == AuthorizationResult.ALLOWED;
        }
        ResourcePattern resource = new ResourcePattern(type, text(one, 4), PatternType.LITERAL);
        Action action = new Action(operation, resource, 1, false, false);
        return authorizer.authorize(context, List.of(action)).get(0) == AuthorizationResult.ALLOWED;
    }

    private static final class Context implements AuthorizableRequestContext {
        private final KafkaPrincipal principal;
        private final InetAddress address;

        Context(String principal, String host) throws Exception {
            String[] parts = principal.split(":", 2);
            this.principal = new KafkaPrincipal(parts[0], parts[1]);
            this.address = InetAddress.getByName(host);
        }

        @Override public String listenerName() { return "SASL"; }
        @Override public SecurityProtocol securityProtocol() { return SecurityProtocol.SASL_PLAINTEXT; }
        @Override public KafkaPrincipal principal() { return principal; }
        @Override public InetAddress clientAddress() { return address; }
        @Override public int requestType() { return 0; }
        @Override public int requestVersion() { return 0; }
        @Override public String clientId() { return ""; }
        @Override public int correlationId() { return 0; }
    }
}
