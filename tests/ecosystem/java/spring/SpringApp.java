import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.ConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.core.ProducerFactory;
import org.springframework.kafka.transaction.KafkaTransactionManager;
import java.util.List;

/** `SpringApp BOOTSTRAP`: copies "lines" to "copies" in transactions (EOSMode.V2) until it is killed. */
public class SpringApp {
    static String bootstrap;

    public static void main(String[] arguments) {
        bootstrap = arguments[0];
        new AnnotationConfigApplicationContext(Copier.class);
    }

    @Configuration
    @EnableKafka
    public static class Copier {
        @Bean
        public ProducerFactory<String, String> producers() {
            Map<String, Object> settings = new HashMap<>();
            settings.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
            settings.put(ProducerConfig.KEY_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
            settings.put(ProducerConfig.VALUE_SERIALIZER_CLASS_CONFIG, StringSerializer.class);
            DefaultKafkaProducerFactory<String, String> made = new DefaultKafkaProducerFactory<>(settings);
            made.setTransactionIdPrefix("copier-");
            return made;
        }

        @Bean
        public ConsumerFactory<String, String> consumers() {
            Map<String, Object> settings = new HashMap<>();
            settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
            settings.put(ConsumerConfig.GROUP_ID_CONFIG, "copiers");
            settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
            settings.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
            settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 6000);
            settings.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 1000);
            settings.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class);
            settings.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, StringDeserializer.class);
            return new DefaultKafkaConsumerFactory<>(settings);
        }

        @Bean
        public KafkaTemplate<String, String> template(ProducerFactory<String, String> producers) {
            return new KafkaTemplate<>(producers);
        }

        @Bean
        public ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory(
                ConsumerFactory<String, String> consumers, ProducerFactory<String, String> producers) {
            ConcurrentKafkaListenerContainerFactory<String, String> made =
                    new ConcurrentKafkaListenerContainerFactory<>();
            made.setConsumerFactory(consumers);
            made.setBatchListener(true);
            made.getContainerProperties().setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers));
            return made;
        }

        @Bean
        public Listener listener(KafkaTemplate<String, String> template) {
            return new Listener(template);
        }
    }

    public static class Listener {
        private final KafkaTemplate<String, String> template;

        Listener(KafkaTemplate<String, String> template) {
            this.template = template;
        }

        @KafkaListener(topics = "lines")
        public void copy(List<ConsumerRecord<String, String>> records) {
            for (ConsumerRecord<String, String> one : records) {
                template.send("copies", one.key(), one.value());
            }
        }
    }
}
