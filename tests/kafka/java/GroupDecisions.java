import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.re2j.Pattern;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.Utils;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.PartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * The pure parts of Kafka's consumer groups: assignors, metadata hashes, patterns.
 *
 * <p>{@code FILE}: a JSON object a line, of which {@code op} says what is asked; stdout has an answer a line. Members and
 * partitions keep the order in which they are given. So do topics, as long as their ids are small numbers: Kafka copies
 * them into a HashSet.
 */
public final class GroupDecisions {
    private static final ObjectMapper JSON = new ObjectMapper();

    private GroupDecisions() {}

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            JsonNode question = JSON.readTree(line);
            out.println(JSON.writeValueAsString(answer(question)));
        }
        out.flush();
    }

    private static Object answer(JsonNode question) throws Exception {
        return switch (question.get("op").asText()) {
            case "assign" -> assign(question);
            case "topic hash" -> Utils.computeTopicHash(question.get("name").asText(), new OneTopic(question));
            case "group hash" -> {
                Map<String, Long> hashes = new HashMap<>();
                question.get("hashes").fields().forEachRemaining(one -> hashes.put(one.getKey(), one.getValue().asLong()));
                yield Utils.computeGroupHash(hashes);
            }
            case "pattern" -> pattern(question);
            default -> throw new IllegalArgumentException(question.toString());
        };
    }

    private static Object pattern(JsonNode question) throws Exception {
        String regex = question.get("pattern").asText();
        try {
            var check = Utils.class.getDeclaredMethod("throwIfRegularExpressionIsInvalid", String.class);
            check.setAccessible(true);
            check.invoke(null, regex);
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            return Map.of("error", thrown.getCause().getMessage());
        }
        Pattern compiled = Pattern.compile(regex);
        List<String> topics = new ArrayList<>();
        for (JsonNode topic : question.get("topics")) {
            if (compiled.matcher(topic.asText()).matches()) {
                topics.add(topic.asText());
            }
        }
        return Map.of("topics", topics);
    }

    private static Object assign(JsonNode question) {
        Map<Uuid, Integer> counts = new HashMap<>();
        question.get("partitions").fields().forEachRemaining(
                one -> counts.put(uuid(one.getKey()), one.getValue().asInt()));
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> inverted = new HashMap<>();
        for (JsonNode member : question.get("members")) {
            String id = member.get("id").asText();
            Map<Uuid, Set<Integer>> assigned = new LinkedHashMap<>();
            member.get("assigned").fields().forEachRemaining(one -> {
                Set<Integer> numbers = new LinkedHashSet<>();
                one.getValue().forEach(number -> numbers.add(number.asInt()));
                numbers.forEach(
                        number -> inverted.computeIfAbsent(uuid(one.getKey()), __ -> new HashMap<>()).put(number, id));
                assigned.put(uuid(one.getKey()), Collections.unmodifiableSet(numbers));
            });
            Set<Uuid> topics = new LinkedHashSet<>();
            member.get("topics").forEach(topic -> topics.add(uuid(topic.asText())));
            members.put(
                    id,
                    new MemberSubscriptionAndAssignmentImpl(
                            Optional.empty(),
                            Optional.ofNullable(member.get("instance").textValue()),
                            topics,
                            new Assignment(Collections.unmodifiableMap(assigned))));
        }
        SubscriptionType type = question.get("homogeneous").asBoolean()
                ? SubscriptionType.HOMOGENEOUS
                : SubscriptionType.HETEROGENEOUS;
        PartitionAssignor assignor =
                question.get("assignor").asText().equals("range") ? new RangeAssignor() : new UniformAssignor();
        GroupSpecImpl spec = new GroupSpecImpl(Collections.unmodifiableMap(members), type, inverted);
        long start = System.nanoTime();
        GroupAssignment result = assignor.assign(spec, new Counts(counts));
        long nanos = System.nanoTime() - start;
        Map<String, Map<String, Set<Integer>>> assignments = new HashMap<>();
        result.members().forEach((id, member) -> {
            Map<String, Set<Integer>> topics = new HashMap<>();
            member.partitions().forEach((topic, numbers) -> topics.put(uuid(topic), new TreeSet<>(numbers)));
            assignments.put(id, topics);
        });
        return Map.of("nanos", nanos, "members", assignments);
    }

    /** An id as Python writes it. */
    private static Uuid uuid(String text) {
        java.util.UUID id = java.util.UUID.fromString(text);
        return new Uuid(id.getMostSignificantBits(), id.getLeastSignificantBits());
    }

    private static String uuid(Uuid id) {
        return new java.util.UUID(id.getMostSignificantBits(), id.getLeastSignificantBits()).toString();
    }

    private record Counts(Map<Uuid, Integer> counts) implements SubscribedTopicDescriber {
        @Override
        public int numPartitions(Uuid topicId) {
            return counts.getOrDefault(topicId, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topicId, int partition) {
            return Set.of();
        }
    }

    /** Metadata with one topic: {@code {name, id, racks: [[rack of each replica] of each partition]}}. */
    private static final class OneTopic implements CoordinatorMetadataImage, CoordinatorMetadataImage.TopicMetadata {
        private final JsonNode topic;

        OneTopic(JsonNode topic) {
            this.topic = topic;
        }

        @Override
        public String name() {
            return topic.get("name").asText();
        }

        @Override
        public Uuid id() {
            return uuid(topic.get("id").asText());
        }

        @Override
        public int partitionCount() {
            return topic.get("racks").size();
        }

        @Override
        public List<String> partitionRacks(int partition) {
            List<String> racks = new ArrayList<>();
            topic.get("racks").get(partition).forEach(rack -> racks.add(rack.asText()));
            return racks;
        }

        @Override
        public Set<Uuid> topicIds() {
            return Set.of(id());
        }

        @Override
        public Set<String> topicNames() {
            return Set.of(name());
        }

        @Override
        public Optional<CoordinatorMetadataImage.TopicMetadata> topicMetadata(String name) {
            return Optional.of(this);
        }

        @Override
        public Optional<CoordinatorMetadataImage.TopicMetadata> topicMetadata(Uuid id) {
            return Optional.of(this);
        }

        @Override
        public CoordinatorMetadataDelta emptyDelta() {
            throw new UnsupportedOperationException();
        }

        @Override
        public long version() {
            return 0;
        }

        @Override
        public boolean isEmpty() {
            return false;
        }
    }
}
