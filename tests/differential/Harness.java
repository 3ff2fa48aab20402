import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Many Java producers in one process, driven by lines.
 *
 * A line from standard input is "producer TAB number TAB command TAB arguments...". Every command is
 * answered by one line: "producer TAB number TAB ok TAB ..." or "producer TAB number TAB error TAB
 * class TAB code TAB message". Commands of a producer run in order in a thread of its own; a send is
 * answered when its callback ran. Code is the error code of the first exception of the chain that
 * has one, -1 if none has.
 *
 *   open name=value...            new producer
 *   init | begin | commit | abort
 *   send topic partition value    ok partition offset
 *   offsets group topic partition offset
 *   close milliseconds
 */
public class Harness {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private final String name;
    private final ExecutorService thread = Executors.newSingleThreadExecutor();
    private KafkaProducer<String, String> producer;

    private Harness(String name) {
        this.name = name;
    }

    private void answer(String number, String text) {
        synchronized (OUT) {
            OUT.print(name + "\t" + number + "\t" + text + "\n");
            OUT.flush();
        }
    }

    private void fail(String number, Throwable error) {
        int code = -1;
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            code = Errors.forException(cause).code();
            if (code != Errors.UNKNOWN_SERVER_ERROR.code()) break;
        }
        String message = String.valueOf(error.getMessage()).replaceAll("\\s+", " ");
        if (error.getCause() != null) message += " <- " + error.getCause().getClass().getSimpleName();
        answer(number, "error\t" + error.getClass().getSimpleName() + "\t" + code + "\t" + message);
    }

    private void open(String[] part) {
        Properties settings = new Properties();
        for (int at = 3; at < part.length; at++) {
            int split = part[at].indexOf('=');
            settings.put(part[at].substring(0, split), part[at].substring(split + 1));
        }
        StringSerializer text = new StringSerializer();
        producer = new KafkaProducer<>(settings, text, text);
    }

    private void send(String number, String[] part) {
        var record = new ProducerRecord<String, String>(
            part[3], Integer.parseInt(part[4]), null, part[5]);
        producer.send(record, (metadata, error) -> {
            if (error != null) fail(number, error);
            else answer(number, "ok\t" + metadata.partition() + "\t" + metadata.offset());
        });
    }

    /** Runs a command; true if its answer is still to come. */
    @SuppressWarnings("removal") // ConsumerGroupMetadata without a generation
    private boolean run(String number, String[] part) {
        switch (part[2]) {
            case "open" -> open(part);
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "send" -> {
                send(number, part);
                return true;
            }
            case "offsets" -> producer.sendOffsetsToTransaction(
                Map.of(
                    new TopicPartition(part[4], Integer.parseInt(part[5])),
                    new OffsetAndMetadata(Long.parseLong(part[6]))),
                new ConsumerGroupMetadata(part[3]));
            case "close" -> {
                if (producer != null) producer.close(Duration.ofMillis(Long.parseLong(part[3])));
            }
            default -> throw new IllegalArgumentException(part[2]);
        }
        return false;
    }

    private void take(String number, String[] part) {
        thread.execute(() -> {
            try {
                if (!run(number, part)) answer(number, "ok");
            } catch (Throwable error) {
                // A send that throws an API error has not run its callback in every case; the first
                // answer to a number counts.
                fail(number, error);
            }
            if (part[2].equals("close")) thread.shutdown();
        });
    }

    public static void main(String[] args) throws Exception {
        Map<String, Harness> producers = new ConcurrentHashMap<>();
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] part = line.split("\t", -1);
            Harness producer = producers.computeIfAbsent(part[0], Harness::new);
            producer.take(part[1], part);
            if (part[2].equals("close")) producers.remove(part[0]);
        }
        System.exit(0);
    }
}
