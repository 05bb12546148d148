import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.kafka.KafkaConstants;
import org.apache.camel.component.kafka.consumer.KafkaManualCommit;
import org.apache.camel.main.Main;

/** `CamelApp BOOTSTRAP`: a route from "lines" to "copies" that commits what it has written, until it is killed. */
public class CamelApp {
    public static void main(String[] arguments) throws Exception {
        String at = "?brokers=" + arguments[0];
        Main main = new Main();
        main.configure().addRoutesBuilder(new RouteBuilder() {
            @Override
            public void configure() {
                from("kafka:lines" + at + "&groupId=copiers&autoOffsetReset=earliest&autoCommitEnable=false"
                        + "&allowManualCommit=true&breakOnFirstError=true&sessionTimeoutMs=6000"
                        + "&heartbeatIntervalMs=1000")
                    .to("kafka:copies" + at + "&requestRequiredAcks=all")
                    .process(exchange -> exchange.getMessage()
                        .getHeader(KafkaConstants.MANUAL_COMMIT, KafkaManualCommit.class).commit());
            }
        });
        main.run();
    }
}
