import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** The operations of an {@code admin} job, by Kafka's Java admin client: only what all of 3.9, 4.3 and 4.4 have. */
final class AdminCalls implements AutoCloseable {
    private final Admin admin;

    AdminCalls(Properties config) {
        admin = Admin.create(config);
    }

    @Override
    public void close() {
        admin.close();
    }

    Object answer(JsonNode job) throws ExecutionException, InterruptedException {
        String topic = job.path("topic").asText();
        String group = job.path("group").asText();
        switch (job.get("op").asText()) {
            case "create" -> admin.createTopics(List.of(created(job))).all().get();
            case "delete" -> admin.deleteTopics(List.of(topic)).all().get();
            case "grow" -> admin.createPartitions(
                    Map.of(topic, NewPartitions.increaseTo(job.get("total").asInt()))).all().get();
            case "alter" -> alter(topic, job.get("config"));
            case "delete_group" -> admin.deleteConsumerGroups(List.of(group)).all().get();
            case "config_of" -> {
                return configOf(topic, job.get("names"));
            }
            case "partitions" -> {
                return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
            }
            case "groups" -> {
                TreeSet<String> names = new TreeSet<>();
                admin.listConsumerGroups().all().get().forEach(one -> names.add(one.groupId()));
                return names;
            }
            case "group" -> {
                ConsumerGroupDescription found =
                        admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                return List.of(found.state().toString(), "consumer", found.members().size());
            }
            case "offsets" -> {
                Map<Integer, Long> found = new TreeMap<>();
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                        .forEach((place, one) -> found.put(place.partition(), one.offset()));
                return found;
            }
            case "delete_records" -> {
                TopicPartition place = new TopicPartition(topic, 0);
                RecordsToDelete before = RecordsToDelete.beforeOffset(job.get("before").asLong());
                return admin.deleteRecords(Map.of(place, before)).lowWatermarks().get(place).get().lowWatermark();
            }
            default -> throw new IllegalArgumentException("unknown operation " + job);
        }
        return "ok";
    }

    private static NewTopic created(JsonNode job) {
        NewTopic topic = new NewTopic(
                job.get("topic").asText(), Optional.of(job.get("partitions").asInt()), Optional.of((short) 1));
        Map<String, String> config = new HashMap<>();
        job.path("config").properties().forEach(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        return topic.configs(config);
    }

    private void alter(String topic, JsonNode config) throws ExecutionException, InterruptedException {
        List<AlterConfigOp> changes = new ArrayList<>();
        config.properties().forEach(entry -> changes.add(new AlterConfigOp(
                new ConfigEntry(entry.getKey(), entry.getValue().asText()), AlterConfigOp.OpType.SET)));
        admin.incrementalAlterConfigs(Map.of(resource(topic), changes)).all().get();
    }

    private Map<String, String> configOf(String topic, JsonNode names)
            throws ExecutionException, InterruptedException {
        Config config = admin.describeConfigs(List.of(resource(topic))).all().get().get(resource(topic));
        Map<String, String> found = new TreeMap<>();
        names.forEach(name -> found.put(name.asText(), config.get(name.asText()).value()));
        return found;
    }

    private static ConfigResource resource(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }
}
