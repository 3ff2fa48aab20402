// Measures the Java producer with a serializer, a callback, a partitioner or an interceptor, which
// ProducerPerformance does not support. It reads the job from standard input (see
// benchmarks/java.py) and prints a line of JSON.
//
//   java -cp <Kafka's jars> ProduceRate.java < job.json

import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Partitioner;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class ProduceRate {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static class JsonSerializer implements Serializer<Object> {
        @Override
        public byte[] serialize(String topic, Object data) {
            try {
                return JSON.writeValueAsBytes(data);
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        }
    }

    public static class FirstPartition implements Partitioner {
        @Override
        public int partition(String topic, Object key, byte[] keyBytes, Object value,
                             byte[] valueBytes, Cluster cluster) {
            return 0;
        }

        @Override
        public void close() { }

        @Override
        public void configure(Map<String, ?> configs) { }
    }

    public static class NothingDone implements ProducerInterceptor<Object, Object> {
        @Override
        public ProducerRecord<Object, Object> onSend(ProducerRecord<Object, Object> record) {
            return record;
        }

        @Override
        public void onAcknowledgement(RecordMetadata metadata, Exception error) { }

        @Override
        public void close() { }

        @Override
        public void configure(Map<String, ?> configs) { }
    }

    private final AtomicLong delivered = new AtomicLong();
    private final AtomicReference<Exception> failed = new AtomicReference<>();

    public static void main(String[] args) throws Exception {
        // Java's source launcher has its own class loader. Kafka must use it to find these classes.
        Thread.currentThread().setContextClassLoader(ProduceRate.class.getClassLoader());
        JsonNode job = JSON.readTree(System.in);
        Properties settings = new Properties();
        job.get("settings").fields().forEachRemaining(
            setting -> settings.put(setting.getKey(), setting.getValue().asText()));
        settings.put("key.serializer", ByteArraySerializer.class);
        String kind = job.get("serializer").asText();
        settings.put("value.serializer", switch (kind) {
            case "text" -> StringSerializer.class;
            case "json" -> JsonSerializer.class;
            default -> ByteArraySerializer.class;
        });
        if (job.get("partitioner").asText().equals("callable")) {
            settings.put("partitioner.class", FirstPartition.class);
        } else if (job.get("partitioner").asText().equals("round-robin")) {
            settings.put("partitioner.class",
                "org.apache.kafka.clients.producer.RoundRobinPartitioner");
        }
        if (job.get("hook").asText().equals("interceptor")) {
            settings.put("interceptor.classes", NothingDone.class.getName());
        }
        List<Object> values = new java.util.ArrayList<>();
        for (JsonNode value : job.get("values")) {
            values.add(switch (kind) {
                case "text" -> value.asText();
                case "json" -> JSON.convertValue(value, Map.class);
                default -> value.asText().getBytes("UTF-8");
            });
        }
        boolean callback = job.get("callback").asBoolean();
        int records = job.get("records").asInt();
        try (KafkaProducer<byte[], Object> producer = new KafkaProducer<>(settings)) {
            ProduceRate rate = new ProduceRate();
            String topic = job.get("topic").asText();
            rate.run(producer, topic, values, job.get("warm_up").asInt(), callback);
            long used = cpuTime();
            long started = System.nanoTime();
            rate.run(producer, topic, values, records, callback);
            double seconds = (System.nanoTime() - started) / 1e9;
            System.out.printf("{\"count\": %d, \"seconds\": %f, \"cpu_us\": %f}%n",
                records, seconds, (cpuTime() - used) / 1e3 / records);
        }
    }

    private void run(KafkaProducer<byte[], Object> producer, String topic, List<Object> values,
                     int records, boolean callback) throws Exception {
        long before = delivered.get();
        Callback settled = (metadata, error) -> {
            if (error != null) {
                failed.compareAndSet(null, error);
            }
            delivered.incrementAndGet();
        };
        for (int number = 0; number < records; number++) {
            producer.send(new ProducerRecord<>(topic, values.get(number % values.size())),
                callback ? settled : null);
        }
        producer.flush();
        if (failed.get() != null) {
            throw failed.get();
        }
        if (callback && delivered.get() - before != records) {
            throw new IllegalStateException((delivered.get() - before) + " of " + records
                + " callbacks were called");
        }
    }

    private static long cpuTime() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory
            .getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
