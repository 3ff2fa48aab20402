import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/**
 * A broker plug-in that writes each pushed payload to a file: NUMBER-INSTANCE-TERMINATING.bin in
 * the folder of the setting telemetry.folder.
 *
 *   javac -cp kafka-clients-4.3.1.jar TelemetryToFiles.java
 */
public class TelemetryToFiles implements MetricsReporter, ClientTelemetry {
    private final AtomicInteger number = new AtomicInteger();
    private Path folder;

    @Override
    public void configure(Map<String, ?> configs) {
        folder = Path.of(configs.get("telemetry.folder").toString());
    }

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return (context, payload) -> {
            ByteBuffer data = payload.data().duplicate();
            byte[] bytes = new byte[data.remaining()];
            data.get(bytes);
            String name = String.format("%05d-%s-%s", number.incrementAndGet(),
                payload.clientInstanceId(), payload.isTerminating());
            try {
                // Renamed once complete, so that a reader sees whole files only.
                Path part = Files.write(folder.resolve(name + ".part"), bytes);
                Files.move(part, folder.resolve(name + ".bin"), StandardCopyOption.ATOMIC_MOVE);
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        };
    }

    @Override
    public void init(List<KafkaMetric> metrics) { }

    @Override
    public void metricChange(KafkaMetric metric) { }

    @Override
    public void metricRemoval(KafkaMetric metric) { }

    @Override
    public void close() { }
}
