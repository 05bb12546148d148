// franz-go: `franz BOOTSTRAP`. It does the jobs transact, member and relay of tests/clients/__init__.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type job struct {
	Do          string `json:"do"`
	Topic       string `json:"topic"`
	Commits     []bool `json:"commits"`
	Group       string `json:"group"`
	Instance    string `json:"instance"`
	Protocol    string `json:"protocol"`
	Cooperative bool   `json:"cooperative"`
	SessionMs   int    `json:"session_ms"`
	Hold        *int64 `json:"hold"`
	Source      string `json:"source"`
	Target      string `json:"target"`
}

// driver has what a job needs: ctx ends with the word "stop", held with the word "go".
type driver struct {
	bootstrap string
	ctx       context.Context
	held      context.Context
}

var output sync.Mutex

func say(what ...any) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Println(string(line))
}

func nameOf(err error) string {
	if code, ok := errors.AsType[*kerr.Error](err); ok {
		return code.Message
	}
	return fmt.Sprintf("%T", err)
}

// transact writes one record in each transaction.
func (d *driver) transact(j job) error {
	ctx := context.Background()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(d.bootstrap),
		kgo.TransactionalID(j.Topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for number, commit := range j.Commits {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		record := &kgo.Record{Topic: j.Topic, Value: []byte(strconv.Itoa(number))}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
		if err := client.EndTransaction(ctx, kgo.TransactionEndTry(commit)); err != nil {
			return err
		}
		say("ended", number)
	}
	return nil
}

// inGroup has the options of a member. A member of the protocol "consumer" lets the broker assign and time it out.
func (d *driver) inGroup(j job, topic string) []kgo.Opt {
	balancer := kgo.RangeBalancer()
	if j.Cooperative {
		balancer = kgo.CooperativeStickyBalancer()
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(d.bootstrap),
		kgo.ConsumerGroup(j.Group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(balancer),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}
	if j.Protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	} else {
		session := time.Duration(j.SessionMs) * time.Millisecond
		options = append(options, kgo.SessionTimeout(session), kgo.HeartbeatInterval(min(session/6, time.Second/2)))
	}
	if j.Instance != "" {
		options = append(options, kgo.InstanceID(j.Instance))
	}
	return options
}

// assignment says which partitions a member has, whenever that changes.
type assignment struct {
	mutex sync.Mutex
	now   []int32
}

func (a *assignment) change(change func(now []int32) []int32) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.now = change(a.now)
	slices.Sort(a.now)
	say("assigned", append([]int32{}, a.now...))
}

func (d *driver) member(j job) error {
	has := &assignment{}
	gained := func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
		if more := given[j.Topic]; len(more) > 0 {
			has.change(func(now []int32) []int32 { return append(now, more...) })
		}
	}
	lost := func(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
		if less := taken[j.Topic]; len(less) > 0 {
			has.change(func(now []int32) []int32 {
				return slices.DeleteFunc(now, func(one int32) bool { return slices.Contains(less, one) })
			})
		}
	}
	options := append(d.inGroup(j, j.Topic),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(gained),
		kgo.OnPartitionsRevoked(lost),
		kgo.OnPartitionsLost(lost),
	)
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	for d.ctx.Err() == nil {
		client.PollRecords(d.ctx, 1).EachRecord(func(record *kgo.Record) {
			say("read", record.Partition, record.Offset)
			if j.Hold != nil && *j.Hold == record.Offset {
				<-d.held.Done()
			}
			if err := client.CommitRecords(context.Background(), record); err != nil {
				say("not committed", nameOf(err))
			} else {
				say("committed", record.Partition, record.Offset)
			}
		})
	}
	return nil
}

func (d *driver) relay(j job) error {
	ctx := context.Background()
	options := append(d.inGroup(j, j.Source),
		kgo.TransactionalID(j.Group),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	session, err := kgo.NewGroupTransactSession(options...)
	if err != nil {
		return err
	}
	defer session.Close()
	relayed := int64(0)
	for d.ctx.Err() == nil {
		records := session.PollRecords(d.ctx, 20).Records()
		if len(records) == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		for _, record := range records {
			copied := &kgo.Record{Topic: j.Target, Partition: record.Partition, Value: record.Value}
			session.Produce(ctx, copied, nil)
		}
		if j.Hold != nil && relayed >= *j.Hold {
			if err := session.Client().Flush(ctx); err != nil {
				return err
			}
			say("held")
			<-d.held.Done()
		}
		committed, err := session.End(ctx, kgo.TryCommit)
		if err != nil {
			return err
		}
		if committed {
			relayed += int64(len(records))
			say("relayed", len(records))
		}
	}
	return nil
}

// version is that of the module in the go.mod that this program was built with.
func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, one := range info.Deps {
		if one.Path == "github.com/twmb/franz-go" {
			return strings.TrimPrefix(one.Version, "v")
		}
	}
	return "unknown"
}

func main() {
	jobs := make(chan string)
	words := make(chan string, 16)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if word := lines.Text(); word == "stop" || word == "go" {
				words <- word
			} else {
				jobs <- word
			}
		}
		os.Exit(0)
	}()
	say("client", version())
	for line := range jobs {
		var j job
		if err := json.Unmarshal([]byte(line), &j); err != nil {
			panic(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		held, release := context.WithCancel(ctx)
		d := &driver{os.Args[1], ctx, held}
		done := make(chan error, 1)
		go func() {
			done <- map[string]func(job) error{"transact": d.transact, "member": d.member, "relay": d.relay}[j.Do](j)
		}()
		for running := true; running; {
			select {
			case word := <-words:
				if word == "stop" {
					stop()
				}
				release()
			case err := <-done:
				if err != nil {
					say("error", nameOf(err), err.Error())
				}
				running = false
			}
		}
		release()
		stop()
		say("done")
	}
}
