// The franz-go producer as a client of the benchmarks. It sends the records of one case and prints
// a line of JSON. The first line of standard input is the job; see benchmarks/franz.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type job struct {
	Servers       []string          `json:"servers"`
	Topic         string            `json:"topic"`
	Values        []string          `json:"values"`
	Keys          []string          `json:"keys"`
	Headers       map[string]string `json:"headers"`
	Codec         string            `json:"codec"`
	Acks          string            `json:"acks"`
	Idempotent    bool              `json:"idempotent"`
	Records       int               `json:"records"`
	Seconds       float64           `json:"seconds"`
	WarmUp        int               `json:"warm_up"`
	WarmUpSeconds float64           `json:"warm_up_seconds"`
	BatchBytes    int32             `json:"batch_bytes"`
	LingerMs      int               `json:"linger_ms"`
	MaxBuffered   int               `json:"max_buffered"`
}

// result has the same fields as the results of the Python clients. Its counters of requests and
// batches cover only the timed part.
type result struct {
	Count     int     `json:"count"`
	WarmUp    int     `json:"warm_up"`
	Seconds   float64 `json:"seconds"`
	CpuUs     float64 `json:"cpu_us"`
	RssMib    float64 `json:"rss_mib"`
	Requests  int64   `json:"requests"`
	Batches   int64   `json:"batches"`
	BytesSent int64   `json:"bytes_sent"`
}

// counters counts the Produce requests, batches and bytes on the wire.
type counters struct{ requests, batches, bytes atomic.Int64 }

func (c *counters) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, n int, _, _ time.Duration, err error) {
	if key == 0 && err == nil {
		c.requests.Add(1)
		c.bytes.Add(int64(n))
	}
}

func (c *counters) OnProduceBatchWritten(kgo.BrokerMetadata, string, int32, kgo.ProduceBatchMetrics) {
	c.batches.Add(1)
}

func codec(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "none":
		return kgo.NoCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "lz4":
		return kgo.Lz4Compression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	}
	return kgo.NoCompression(), fmt.Errorf("codec %q is not known", name)
}

func options(j *job, counted *counters) ([]kgo.Opt, error) {
	compression, err := codec(j.Codec)
	if err != nil {
		return nil, err
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(j.Servers...),
		kgo.DefaultProduceTopic(j.Topic),
		kgo.ProducerBatchCompression(compression),
		kgo.ProducerBatchMaxBytes(j.BatchBytes),
		kgo.ProducerLinger(time.Duration(j.LingerMs) * time.Millisecond),
		kgo.MaxBufferedRecords(j.MaxBuffered),
		kgo.RecordDeliveryTimeout(2 * time.Minute),
		kgo.WithHooks(counted),
	}
	switch j.Acks {
	case "0":
		opts = append(opts, kgo.RequiredAcks(kgo.NoAck()))
	case "1":
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()))
	default:
		opts = append(opts, kgo.RequiredAcks(kgo.AllISRAcks()))
	}
	if !j.Idempotent {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	return opts, nil
}

// fire sends until the limit of records or seconds, then waits for every outcome.
func fire(client *kgo.Client, j *job, values, keys [][]byte, headers []kgo.RecordHeader, records int, seconds float64) (int, error) {
	var (
		pending sync.WaitGroup
		failed  atomic.Pointer[error]
		sent    int
		ends    = time.Now().Add(time.Duration(seconds * float64(time.Second)))
	)
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		}
		pending.Done()
	}
	for sent < records {
		if sent%1000 == 0 && !time.Now().Before(ends) {
			break
		}
		record := &kgo.Record{Value: values[sent%len(values)], Headers: headers}
		if len(keys) > 0 {
			record.Key = keys[sent%len(keys)]
		}
		pending.Add(1)
		client.Produce(context.Background(), record, promise)
		sent++
	}
	pending.Wait()
	if err := failed.Load(); err != nil {
		return sent, *err
	}
	return sent, nil
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func peakMib() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return float64(usage.Maxrss) / 1024
}

func toBytes(texts []string) [][]byte {
	all := make([][]byte, len(texts))
	for i, text := range texts {
		all[i] = []byte(text)
	}
	return all
}

func run() error {
	var j job
	if err := json.NewDecoder(bufio.NewReader(os.Stdin)).Decode(&j); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	counted := &counters{}
	opts, err := options(&j, counted)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	values, keys := toBytes(j.Values), toBytes(j.Keys)
	var headers []kgo.RecordHeader
	for name, value := range j.Headers {
		headers = append(headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	warm, err := fire(client, &j, values, keys, headers, j.WarmUp, j.WarmUpSeconds)
	if err != nil {
		return err
	}
	runtime.GC()
	requests, batches, bytes := counted.requests.Load(), counted.batches.Load(), counted.bytes.Load()
	used, started := cpuSeconds(), time.Now()
	count, err := fire(client, &j, values, keys, headers, j.Records, j.Seconds)
	if err != nil {
		return err
	}
	seconds := time.Since(started).Seconds()
	return json.NewEncoder(os.Stdout).Encode(result{
		Count:     count,
		WarmUp:    warm,
		Seconds:   seconds,
		CpuUs:     (cpuSeconds() - used) / float64(count) * 1e6,
		RssMib:    peakMib(),
		Requests:  counted.requests.Load() - requests,
		Batches:   counted.batches.Load() - batches,
		BytesSent: counted.bytes.Load() - bytes,
	})
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
