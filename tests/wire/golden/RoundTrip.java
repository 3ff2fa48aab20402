import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;

/**
 * Lets Kafka's own classes read and write: messages from standard input, batches of its own.
 *
 *   python -m tests.wire.golden.samples | java -cp kafka-clients-4.3.1.jar:... RoundTrip.java > golden.txt
 */
public class RoundTrip {
    static String hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    /** A line "request|response key version hex" comes back with the bytes Kafka writes. */
    static void message(String line) {
        String[] part = line.split(" ", -1);
        ApiMessageType type = ApiMessageType.fromApiKey(Short.parseShort(part[1]));
        short version = Short.parseShort(part[2]);
        ApiMessage message = part[0].equals("request") ? type.newRequest() : type.newResponse();
        ByteBuffer input = ByteBuffer.wrap(HexFormat.of().parseHex(part[3]));
        message.read(new ByteBufferAccessor(input), version);
        if (input.hasRemaining()) throw new IllegalStateException("left over: " + line);
        ByteBuffer output = MessageUtil.toByteBufferAccessor(message, version).buffer();
        System.out.println(part[0] + " " + part[1] + " " + part[2] + " " + hex(output));
    }

    /** Three records: nulls, empty values, headers, timestamps going down. */
    static void batch(CompressionType type) {
        byte[] value = "value-".repeat(20).getBytes(StandardCharsets.UTF_8);
        MemoryRecords records = MemoryRecords.withRecords(
            RecordBatch.MAGIC_VALUE_V2, 0L, Compression.of(type).build(),
            TimestampType.CREATE_TIME, 4000L, (short) 3, 17,
            RecordBatch.NO_PARTITION_LEADER_EPOCH, true,
            new SimpleRecord(1700000000123L, null, value),
            new SimpleRecord(1700000000100L, new byte[0], null),
            new SimpleRecord(1700000000101L, "key".getBytes(StandardCharsets.UTF_8), new byte[0],
                new Header[] {
                    new RecordHeader("h", null),
                    new RecordHeader("é", "x".getBytes(StandardCharsets.UTF_8)),
                }));
        System.out.println("batch " + type.id + " " + hex(records.buffer()));
    }

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) message(line);
        for (CompressionType type : CompressionType.values()) batch(type);
    }
}
