package server_test

import (
	"context"
	"iter"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/ledger"
)

// A noticeChannel is a detector that yields the notices of a channel.
type noticeChannel chan nstance.Notice

func (noticeChannel) Interruptible(context.Context) (bool, error) { return true, nil }

func (c noticeChannel) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case n := <-c:
				if !yield(n, nil) {
					return
				}
			}
		}
	}
}

// A cuttableLine connects an agent with servers until it is cut.
type cuttableLine struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

func (l *cuttableLine) dial(ctx context.Context, addr string) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, nstance.Errorf(nstance.Unavailable, "the line is cut")
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err == nil {
		l.conns = append(l.conns, conn)
	}
	return conn, err
}

func (l *cuttableLine) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// TestDrainedWithoutServer: an agent that reaches no server empties its machine by
// itself, and reports that to the shard afterwards, also where an operator executes drains.
func TestDrainedWithoutServer(t *testing.T) {
	t.Parallel()
	for _, executor := range []nstance.Executor{nstance.ExecutorAgent, nstance.ExecutorOperator} {
		t.Run(string(executor), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, setup{webSize: 1, shard: often})
			if executor == nstance.ExecutorOperator {
				w.watch(w.admin(), &apiv1.WatchInstanceEventsRequest{DrainExecutor: true}).snapshot()
			}
			notices, line, began := noticeChannel(make(chan nstance.Notice)), &cuttableLine{}, make(chan nstance.Drain, 2)
			m := w.applyUserData(w.awaitMachine(nstance.DefaultTenant))
			m.setOptions()
			m.options.Detector, m.options.Dial = notices, line.dial
			m.options.Drain = func(_ context.Context, d nstance.Drain) (nstance.Outcome, string) {
				began <- d
				return nstance.OutcomeDrained, "nothing is left"
			}
			m.start()
			w.awaitEvent(nstance.EventReady, m.id)

			line.setCut(true)
			seen := time.Now()
			notices <- nstance.Notice{Kind: nstance.Reclaim, Source: "test", EventID: "e1", DetectedAt: seen, Deadline: seen.Add(20 * time.Second)}
			d := receive(t, began)
			require.GreaterOrEqual(t, time.Since(seen), 5*time.Second, "a server may be back soon")
			require.Zero(t, d.Generation)
			line.setCut(false)

			e := w.awaitEvent(nstance.EventDrainedWithoutServer, m.id)
			require.Equal(t, "drained, for notice e1", e.Reason)
			require.Equal(t, executor, w.awaitEvent(nstance.EventDrainStarted, m.id).Drain.Executor)
			w.awaitEvent(nstance.EventDeleted, m.id)
			require.Equal(t, 1, w.countEvents(nstance.EventDrainedWithoutServer))
			require.Empty(t, began, "not emptied twice")
			life := w.lifeOf(m.id)
			require.Equal(t, nstance.ExecutorAgent, life.Drained.By)
			require.Equal(t, "drained_without_server: nothing is left", life.Drained.Message)
			require.Equal(t, ledger.Drained, life.Outcome)
		})
	}
}

// lifeOf returns what the ledger says of an instance that has ended.
func (w *world) lifeOf(id nstance.InstanceID) (found ledger.Life) {
	w.Helper()
	require.Eventually(w, func() bool {
		for day, err := range ledger.NewReader(w.store, "s1").Days(w.Context(), time.Time{}, time.Time{}) {
			require.NoError(w, err)
			for _, l := range day.Lives {
				if l.ID == id {
					found = l
					return true
				}
			}
		}
		return false
	}, eventually, 10*time.Millisecond)
	return found
}
