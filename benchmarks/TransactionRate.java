// Measures the transactions of the Java producer, as benchmarks/transaction_worker.py does for the
// other clients, and prints a line of JSON.
//
//   java -cp <Kafka's jars> TransactionRate.java SERVERS TOPIC TRANSACTIONS PER_TRANSACTION SIZE

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Properties;
import java.util.stream.Collectors;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class TransactionRate {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        int transactions = Integer.parseInt(args[2]);
        int each = Integer.parseInt(args[3]);
        byte[] value = new byte[Integer.parseInt(args[4])];
        Arrays.fill(value, (byte) 'v');
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("transactional.id", topic + "-java");
        settings.put("batch.size", "131072");
        settings.put("linger.ms", "5");
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            producer.initTransactions();
            int warmUp = Math.max(3, transactions / 5);
            run(producer, topic, value, warmUp, each);
            long cpu = cpuTime();
            long started = System.nanoTime();
            double[] latencies = run(producer, topic, value, transactions, each);
            double seconds = (System.nanoTime() - started) / 1e9;
            double used = (cpuTime() - cpu) / 1e9;
            String all = Arrays.stream(latencies).mapToObj(Double::toString)
                .collect(Collectors.joining(","));
            System.out.printf("{\"seconds\": %f, \"cpu\": %f, \"warm_up\": %d, \"latencies\": [%s]}%n",
                seconds, used, warmUp, all);
        }
    }

    private static double[] run(KafkaProducer<byte[], byte[]> producer, String topic, byte[] value,
                                int transactions, int each) {
        double[] latencies = new double[transactions];
        for (int number = 0; number < transactions; number++) {
            long started = System.nanoTime();
            producer.beginTransaction();
            for (int record = 0; record < each; record++) {
                producer.send(new ProducerRecord<>(topic, value));
            }
            producer.commitTransaction();
            latencies[number] = (System.nanoTime() - started) / 1e9;
        }
        return latencies;
    }

    private static long cpuTime() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory
            .getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
