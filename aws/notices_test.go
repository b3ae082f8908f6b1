package aws_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/provider/testcloud/inmemory"
)

// queueName is that of the test cloud's default catalog.
const queueName = "nstance"

// A watcher reads the notices of a world's provider.
type watcher struct {
	*testing.T
	notices chan nstance.MachineNotice
	errs    chan error
	stop    func()
}

// watch begins a watch for owner's notices, which ends with the test or with stop.
func (w *world) watch(owner nstance.Owner) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	v := &watcher{w.T, make(chan nstance.MachineNotice, 100), make(chan error, 100), func() { cancel(); <-ended }}
	p := w.open(&aws.Options{InterruptionQueue: w.cloud.QueueURL(queueName)})
	go func() {
		defer close(ended)
		for n, err := range provider.AbilitiesOf(p).Notices.WatchNotices(ctx, owner) {
			if err != nil {
				v.errs <- err
			} else {
				v.notices <- n
			}
		}
	}()
	w.Cleanup(v.stop)
	return v
}

const limit = 2 * time.Minute

func (v *watcher) next() nstance.MachineNotice {
	v.Helper()
	select {
	case n := <-v.notices:
		return n
	case err := <-v.errs:
		require.NoError(v, err)
	case <-time.After(limit):
		require.FailNow(v, "no notice")
	}
	panic("unreachable")
}

func (v *watcher) nextError() error {
	v.Helper()
	select {
	case err := <-v.errs:
		return err
	case n := <-v.notices:
		require.FailNow(v, "a notice", "%+v", n)
	case <-time.After(limit):
		require.FailNow(v, "no error")
	}
	return nil
}

// quiet requires that nothing is yielded for d, in a bubble.
func (v *watcher) quiet(d time.Duration) {
	v.Helper()
	select {
	case n := <-v.notices:
		require.FailNow(v, "a notice", "%+v", n)
	case err := <-v.errs:
		require.NoError(v, err)
	case <-time.After(d):
	}
}

// emptied waits until the queue has no message, hidden ones included.
func (w *world) emptied() {
	w.Helper()
	require.Eventually(w, func() bool { return len(w.cloud.Messages(queueName)) == 0 }, limit, 10*time.Millisecond)
}

func (w *world) spot() nstance.Machine {
	w.Helper()
	s := w.spec()
	s.Market = nstance.Spot
	return w.create(s)
}

// TestWatchNotices: what EventBridge puts into the queue is a notice of the machine, and
// stays in the queue until that is acknowledged.
func TestWatchNotices(t *testing.T) {
	w := newWorld(t, &ec2test.Options{EventQueue: queueName})
	m := w.spot()
	start := time.Now().Add(100 * time.Hour).Truncate(time.Second).UTC()
	scheduled := ec2test.ScheduledChange{ID: "X_1", Code: "AWS_EC2_INSTANCE_STOP_SCHEDULED", Status: "upcoming", Start: start, Machines: []string{m.ProviderID}}
	v := w.watch(owner)
	for name, c := range map[string]struct {
		publish func()
		want    nstance.Notice
	}{
		"interruption": {
			func() { require.NoError(t, w.cloud.Reclaim(m.ProviderID, time.Hour)) },
			nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot/eventbridge"},
		},
		"reservation": {
			func() { require.NoError(t, w.cloud.ReclaimReservation(m.ProviderID, time.Now().Add(2*time.Minute))) },
			nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/capacity-reservation/eventbridge"},
		},
		"rebalance": {
			func() { require.NoError(t, w.cloud.RecommendRebalance(m.ProviderID)) },
			nstance.Notice{Kind: nstance.Rebalance, Source: "aws/rebalance/eventbridge"},
		},
		"maintenance": {
			func() { w.cloud.ScheduleChange(scheduled) },
			nstance.Notice{Kind: nstance.Maintenance, Action: scheduled.Code, NotBefore: start, Source: "aws/maintenance/eventbridge", EventID: "aws/maintenance/eventbridge/X_1"},
		},
		"maintenance that was cancelled": {
			func() {
				over := scheduled
				over.Status = "closed"
				w.cloud.ScheduleChange(over)
			},
			nstance.Notice{Kind: nstance.Maintenance, Action: scheduled.Code, NotBefore: start, Source: "aws/maintenance/eventbridge", EventID: "aws/maintenance/eventbridge/X_1", Cancelled: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.publish()
			got := v.next()
			require.Equal(t, m.ID, got.ID)
			require.True(t, strings.HasPrefix(got.Notice.EventID, got.Notice.Source))
			if c.want.Kind == nstance.Reclaim {
				require.WithinDuration(t, time.Now().Add(2*time.Minute), got.Notice.Deadline, 10*time.Second)
				c.want.Deadline = got.Notice.Deadline
			}
			if c.want.EventID == "" {
				c.want.EventID = got.Notice.EventID
			}
			require.Equal(t, c.want, got.Notice)
			require.Len(t, w.cloud.Messages(queueName), 1)
			got.Ack()
			w.emptied()
		})
	}
}

// newBubbleWorld is a world without a socket, for a synctest bubble. change may change
// the answers.
func newBubbleWorld(t *testing.T, o *ec2test.Options, change func(http.ResponseWriter, *http.Request)) *world {
	o.Faults, o.EventQueue = &testcloud.Faults{}, queueName
	w := &world{T: t, cloud: ec2test.New(o), faults: o.Faults, url: "http://aws.test"}
	w.client = &http.Client{Transport: inmemory.Transport{Handler: record(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if change != nil {
			change(rw, r)
		}
		w.cloud.ServeHTTP(rw, r)
	}))}}
	t.Cleanup(func() { require.NoError(t, w.cloud.Close()) })
	w.Provider = w.open(&aws.Options{})
	return w
}

func inBubble(t *testing.T, name string, o ec2test.Options, test func(t *testing.T, w *world)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, newBubbleWorld(t, &o, nil)) })
	})
}

func TestWatchReliably(t *testing.T) {
	inBubble(t, "without an acknowledgement it is yielded again, by the next watch too", ec2test.Options{}, func(t *testing.T, w *world) {
		m := w.spot()
		require.NoError(t, w.cloud.Reclaim(m.ProviderID, 2*time.Minute))
		v := w.watch(owner)
		began := time.Now()
		first, again := v.next(), v.next()
		require.Equal(t, 20*time.Second, time.Since(began))
		require.Equal(t, first.Notice, again.Notice)
		v.stop()
		first.Ack() // of a watch that has ended: it is received once more
		next := w.watch(owner)
		last := next.next()
		require.Equal(t, first.Notice, last.Notice)
		last.Ack()
		next.quiet(10 * time.Minute)
		require.Empty(t, w.cloud.Messages(queueName))
	})
	inBubble(t, "a message that cannot be deleted is received again", ec2test.Options{}, func(t *testing.T, w *world) {
		require.NoError(t, w.cloud.RecommendRebalance(w.spot().ProviderID))
		w.faults.Next("DeleteMessageBatch", testcloud.Fault{Answer: ec2test.QueueRefusal("InternalFailure", "try again")})
		v := w.watch(owner)
		v.next().Ack()
		require.ErrorIs(t, v.nextError(), nstance.Unavailable)
		v.next().Ack()
		v.quiet(time.Minute)
		require.Empty(t, w.cloud.Messages(queueName))
	})
	inBubble(t, "an event about two machines stays until both notices are acknowledged", ec2test.Options{}, func(t *testing.T, w *world) {
		w.cloud.ScheduleChange(ec2test.ScheduledChange{ID: "X_1", Code: "X", Status: "open", Start: time.Now(), Machines: []string{w.spot().ProviderID, w.spot().ProviderID}})
		v := w.watch(owner)
		first, second := v.next(), v.next()
		require.NotEqual(t, first.ID, second.ID)
		first.Ack()
		synctest.Wait()
		require.Len(t, w.cloud.Messages(queueName), 1)
		second.Ack()
		v.quiet(time.Minute)
		require.Empty(t, w.cloud.Messages(queueName))
	})
	inBubble(t, "a batch of messages is one call to EC2 and one deletion", ec2test.Options{}, func(t *testing.T, w *world) {
		for range 10 {
			require.NoError(t, w.cloud.RecommendRebalance(w.spot().ProviderID))
		}
		before := w.faults.Calls()["DescribeInstances"]
		v := w.watch(owner)
		for range 10 {
			v.next().Ack()
		}
		v.quiet(time.Minute)
		require.Equal(t, 1, w.faults.Calls()["DescribeInstances"]-before)
		require.LessOrEqual(t, w.faults.Calls()["DeleteMessageBatch"], 10)
		require.Empty(t, w.cloud.Messages(queueName))
	})
	inBubble(t, "a machine that EC2 does not show yet is looked for again", ec2test.Options{Delays: testcloud.Delays{Visible: 30 * time.Second}}, func(t *testing.T, w *world) {
		m := w.spot()
		require.NoError(t, w.cloud.Reclaim(m.ProviderID, 2*time.Minute))
		require.Equal(t, m.ID, w.watch(owner).next().ID)
	})
	inBubble(t, "an event about a machine that EC2 does not show yet stays when its other notices are acknowledged", ec2test.Options{}, func(t *testing.T, w *world) {
		shown := w.spot()
		<-time.After(time.Minute)
		w.cloud.SetDelays(testcloud.Delays{Visible: 30 * time.Second})
		late := w.spot()
		w.cloud.ScheduleChange(ec2test.ScheduledChange{ID: "X_1", Code: "X", Status: "open", Start: time.Now(), Machines: []string{shown.ProviderID, late.ProviderID}})
		v := w.watch(owner)
		for seen := map[nstance.InstanceID]bool{}; !seen[late.ID]; {
			n := v.next()
			seen[n.ID] = true
			n.Ack()
		}
		v.quiet(5 * time.Minute)
		require.Empty(t, w.cloud.Messages(queueName))
	})
	inBubble(t, "of other owners and other programs: deleted", ec2test.Options{}, func(t *testing.T, w *world) {
		m := w.spot()
		require.NoError(t, w.cloud.RecommendRebalance(m.ProviderID))
		w.cloud.Send(queueName, `{"detail-type": "EC2 Instance State-change Notification", "source": "aws.ec2", "time": "2026-01-01T00:00:00Z", "detail": {}}`)
		stranger := owner
		stranger.Shard = "b"
		v := w.watch(stranger)
		v.quiet(5 * time.Minute)
		require.Empty(t, w.cloud.Messages(queueName))
		require.LessOrEqual(t, w.faults.Calls()["DescribeInstances"], 6, "it is looked for during a minute")
	})
	inBubble(t, "an interruption whose time is over: deleted", ec2test.Options{}, func(t *testing.T, w *world) {
		m := w.spot()
		body, err := json.Marshal(map[string]any{
			"detail-type": "EC2 Spot Instance Interruption Warning", "source": "aws.ec2", "time": time.Now().Add(-2*time.Minute - time.Second).UTC(),
			"detail": map[string]string{"instance-id": m.ProviderID, "instance-action": "terminate"},
		})
		require.NoError(t, err)
		w.cloud.Send(queueName, string(body))
		w.watch(owner).quiet(time.Minute)
		require.Empty(t, w.cloud.Messages(queueName))
	})
}

func TestWatchErrors(t *testing.T) {
	inBubble(t, "what is no event: deleted, one error for a batch", ec2test.Options{}, func(t *testing.T, w *world) {
		for range 3 {
			w.cloud.Send(queueName, "hello")
		}
		v := w.watch(owner)
		err := v.nextError()
		w.refused(nstance.Invalid, err)
		require.ErrorContains(t, err, "3 messages")
		v.quiet(time.Minute)
		require.Empty(t, w.cloud.Messages(queueName))
	})
	inBubble(t, "an event that names too many machines: those that are read, and an error", ec2test.Options{}, func(t *testing.T, w *world) {
		m := w.spot()
		w.cloud.ScheduleChange(ec2test.ScheduledChange{ID: "X_1", Code: "X", Status: "open", Start: time.Now(), Machines: append([]string{m.ProviderID}, make([]string, 1000)...)})
		v := w.watch(owner)
		require.ErrorContains(t, v.nextError(), "1001 entities")
		require.Equal(t, m.ID, v.next().ID)
	})
	inBubble(t, "other events: deleted, one error for a type", ec2test.Options{}, func(t *testing.T, w *world) {
		v := w.watch(owner)
		for n := range 40 {
			w.cloud.Send(queueName, fmt.Sprintf(`{"detail-type": "Type %d", "source": "my.program", "time": "2026-01-01T00:00:00Z"}`, n%20))
		}
		for range 16 {
			require.ErrorContains(t, v.nextError(), "not understood")
		}
		v.quiet(time.Minute)
		require.Empty(t, w.cloud.Messages(queueName))
	})
	inBubble(t, "a queue that cannot be read: with backoff, until it can", ec2test.Options{}, func(t *testing.T, w *world) {
		m := w.spot()
		var refusals []testcloud.Fault
		for range 20 {
			refusals = append(refusals, testcloud.Fault{Answer: ec2test.QueueRefusal("AccessDenied", "no")})
		}
		w.faults.Next("ReceiveMessage", refusals...)
		require.NoError(t, w.cloud.RecommendRebalance(m.ProviderID))
		v := w.watch(owner)
		began := time.Now()
		for range 20 {
			w.refused(nstance.Denied, v.nextError())
		}
		require.Greater(t, time.Since(began), 5*time.Minute)
		require.Equal(t, m.ID, v.next().ID)
	})
	inBubble(t, "machines that cannot be read: the messages stay", ec2test.Options{}, func(t *testing.T, w *world) {
		m := w.spot()
		require.NoError(t, w.cloud.RecommendRebalance(m.ProviderID))
		w.faults.Next("DescribeInstances", testcloud.Fault{Answer: ec2test.Refusal("RequestLimitExceeded", "slower")})
		v := w.watch(owner)
		w.refused(nstance.Throttled, v.nextError())
		began := time.Now()
		require.Equal(t, m.ID, v.next().ID)
		require.LessOrEqual(t, time.Since(began), 5*time.Second, "before it would be received again")
		require.Len(t, w.cloud.Messages(queueName), 1)
	})
	inBubble(t, "machines that cannot be read for long: until they are received again", ec2test.Options{}, func(t *testing.T, w *world) {
		m := w.spot()
		require.NoError(t, w.cloud.RecommendRebalance(m.ProviderID))
		for range 10 {
			w.faults.Next("DescribeInstances", testcloud.Fault{Answer: ec2test.Refusal("RequestLimitExceeded", "slower")})
		}
		v := w.watch(owner)
		for range 10 {
			w.refused(nstance.Throttled, v.nextError())
		}
		v.next().Ack()
		v.quiet(10 * time.Minute)
		require.Empty(t, w.cloud.Messages(queueName))
	})
	t.Run("a queue that does not exist", func(t *testing.T) {
		catalog := ec2test.DefaultCatalog(region)
		catalog.Queues = nil
		err := newWorld(t, &ec2test.Options{Catalog: catalog}).watch(owner).nextError()
		require.Equal(t, nstance.Invalid, nstance.CodeOf(err))
		require.ErrorContains(t, err, "options.interruption_queue")
	})
}

// TestManyWarnings: hundreds of machines that are reclaimed at once learn of it with most of
// their two minutes left, and EC2 is asked for many at a time, within its rate limit.
func TestManyWarnings(t *testing.T) {
	const machines, latency = 500, 50 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		w := newBubbleWorld(t, &ec2test.Options{}, func(http.ResponseWriter, *http.Request) { <-time.After(latency) })
		want := map[nstance.InstanceID]bool{}
		for range machines {
			m := w.spot()
			want[m.ID] = true
			require.NoError(t, w.cloud.Reclaim(m.ProviderID, time.Hour))
		}
		before := w.faults.Calls()["DescribeInstances"]
		began := time.Now()
		v := w.watch(owner)
		for len(want) > 0 {
			n := v.next()
			delete(want, n.ID)
			n.Ack()
		}
		require.LessOrEqual(t, time.Since(began), 2*time.Second)
		require.LessOrEqual(t, w.faults.Calls()["DescribeInstances"]-before, 5)
		v.quiet(time.Minute)
		require.Empty(t, w.cloud.Messages(queueName), "each is deleted")
	})
}

// TestWatchWithoutQueue: nothing is called, and the watch ends with its context.
func TestWatchWithoutQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newBubbleWorld(t, &ec2test.Options{}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		for range w.WatchNotices(ctx, owner) {
			require.Fail(t, "it yields something")
		}
		require.Equal(t, time.Hour, time.Since(began))
		require.Empty(t, w.faults.Calls())
	})
}

// TestDeadlineByOwnClock: the time of an event is by AWS's clock, which the answer's date
// shows.
func TestDeadlineByOwnClock(t *testing.T) {
	for _, ahead := range []time.Duration{-10 * time.Minute, -2 * time.Minute, 10 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) { deadlineByOwnClock(t, ahead) })
	}
}

func deadlineByOwnClock(t *testing.T, ahead time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		w := newBubbleWorld(t, &ec2test.Options{}, func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Amz-Target") == "AmazonSQS.ReceiveMessage" {
				rw.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
			}
		})
		m := w.spot()
		w.cloud.Send(queueName, fmt.Sprintf(`{"detail-type": "EC2 Spot Instance Interruption Warning", "source": "aws.ec2", "time": %q,
			"detail": {"instance-id": %q, "instance-action": "terminate"}}`, time.Now().Add(ahead).UTC().Format(time.RFC3339), m.ProviderID))
		require.WithinDuration(t, time.Now().Add(2*time.Minute), w.watch(owner).next().Notice.Deadline, 2*time.Second)
	})
}

// TestUnknownMachineByOwnClock: how long a message waits for its machine to be shown is by
// AWS's clock, as its time is.
func TestUnknownMachineByOwnClock(t *testing.T) {
	for _, ahead := range []time.Duration{-10 * time.Minute, -2 * time.Minute, 0, 10 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newBubbleWorld(t, &ec2test.Options{Delays: testcloud.Delays{Visible: 30 * time.Second}}, func(rw http.ResponseWriter, r *http.Request) {
					if r.Header.Get("X-Amz-Target") == "AmazonSQS.ReceiveMessage" {
						rw.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
					}
				})
				m := w.spot()
				for _, machine := range []string{m.ProviderID, "i-0123456789abcdef0"} {
					w.cloud.Send(queueName, fmt.Sprintf(`{"detail-type": "EC2 Instance Rebalance Recommendation", "source": "aws.ec2", "time": %q,
						"detail": {"instance-id": %q}}`, time.Now().Add(ahead).UTC().Format(time.RFC3339), machine))
				}
				v := w.watch(owner)
				n := v.next()
				require.Equal(t, m.ID, n.ID)
				n.Ack()
				v.quiet(5 * time.Minute)
				require.Empty(t, w.cloud.Messages(queueName), "that of another owner does not stay for ever")
			})
		})
	}
}
