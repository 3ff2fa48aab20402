// Brokers of franz-go's kfake on the loopback interface, for the integration tests.
//
//	kfake -brokers 3 -version v2.4
//
// Prints the addresses of the brokers on one line, separated by commas. Then reads commands from
// standard input, one a line, and answers each with "ok" or "error: ...":
//
//	topic NAME PARTITIONS      create a topic
//	fault KEY CODE COUNT       answer the next COUNT requests of an API with an error code
//	cut KEY COUNT              close the connection of the next COUNT requests, unanswered
//	shuffle                    move the leaders of all partitions
//	coordinators               move the coordinators of all groups and transactional ids
//	add | remove NODE          add or remove a broker
//	addresses                  answer "ok " and the addresses of all brokers
//
// The end of standard input ends the brokers, so that they end with the process that started them.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

func main() {
	brokers := flag.Int("brokers", 3, "number of brokers")
	version := flag.String("version", "", "the newest Kafka release whose APIs are offered, as v2.4")
	verbose := flag.Bool("verbose", false, "log every request on standard error")
	flag.Parse()

	options := []kfake.Opt{
		kfake.NumBrokers(*brokers),
		kfake.AllowAutoTopicCreation(),
		kfake.DefaultNumPartitions(3),
	}
	if *version != "" {
		versions := kversion.FromString(*version)
		if versions == nil {
			fail(fmt.Errorf("-version %q: want one of %v", *version, kversion.VersionStrings()))
		}
		options = append(options, kfake.MaxVersions(versions))
	}
	if *verbose {
		options = append(options, kfake.WithLogger(kfake.BasicLogger(os.Stderr, kfake.LogLevelDebug)))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		fail(err)
	}
	defer cluster.Close()
	fmt.Println(strings.Join(cluster.ListenAddrs(), ","))

	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		answer, err := carryOut(cluster, strings.Fields(commands.Text()))
		if err != nil {
			fmt.Println("error:", err)
		} else {
			fmt.Println(strings.TrimSpace("ok " + answer))
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func carryOut(cluster *kfake.Cluster, words []string) (string, error) {
	if len(words) == 0 {
		return "", errors.New("no command")
	}
	var numbers []int64
	for _, word := range words[1:] {
		if number, err := strconv.ParseInt(word, 10, 32); err == nil {
			numbers = append(numbers, number)
		}
	}
	switch name := words[0]; {
	case name == "topic" && len(words) == 3 && len(numbers) >= 1:
		return "", cluster.CreateTopic(words[1], int32(numbers[len(numbers)-1]), nil)
	case name == "fault" && len(numbers) == 3:
		var code *kerr.Error
		if !errors.As(kerr.ErrorForCode(int16(numbers[1])), &code) {
			return "", fmt.Errorf("no error code %d", numbers[1])
		}
		key := kmsg.Key(numbers[0])
		cluster.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: code, Count: int(numbers[2])})
		return "", nil
	case name == "cut" && len(numbers) == 2:
		var left atomic.Int64
		left.Store(numbers[1])
		cluster.ControlKey(int16(numbers[0]), func(kmsg.Request) (kmsg.Response, error, bool) {
			if left.Add(-1) > 0 {
				cluster.KeepControl()
			}
			return nil, errors.New("the connection is cut by the test"), true
		})
		return "", nil
	case name == "shuffle" && len(words) == 1:
		cluster.ShufflePartitionLeaders()
		return "", nil
	case name == "coordinators" && len(words) == 1:
		cluster.RehashCoordinators()
		return "", nil
	case name == "add" && len(words) == 1:
		_, _, err := cluster.AddNode(-1, 0)
		return "", err
	case name == "remove" && len(numbers) == 1:
		return "", cluster.RemoveNode(int32(numbers[0]))
	case name == "addresses" && len(words) == 1:
		return strings.Join(cluster.ListenAddrs(), ","), nil
	}
	return "", fmt.Errorf("unknown command %q", strings.Join(words, " "))
}
