package agents

import (
	"bytes"
	"context"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile"
)

// A fakeShard has one instance and keeps what is observed. It is also a provider's watch.
type fakeShard struct {
	loaded  chan struct{}
	results chan error // what the watch yields: nil is notice
	notice  nstance.MachineNotice

	mu       sync.Mutex
	err      error // of Instance
	observed []nstance.Noticed
}

func (s *fakeShard) Await(ctx context.Context) error {
	select {
	case <-s.loaded:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *fakeShard) Observe(f nstance.Fact) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observed = append(s.observed, f.(nstance.Noticed))
}

func (s *fakeShard) Instance(id nstance.InstanceID) (reconcile.InstanceView, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return reconcile.InstanceView{ID: id}, s.err
}

func (s *fakeShard) Abilities() provider.Abilities { return provider.Abilities{Notices: s} }

func (s *fakeShard) WatchNotices(ctx context.Context, _ nstance.Owner) iter.Seq2[nstance.MachineNotice, error] {
	return func(yield func(nstance.MachineNotice, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case err := <-s.results:
				n := s.notice
				if err != nil {
					n = nstance.MachineNotice{}
				}
				if !yield(n, err) {
					return
				}
			}
		}
	}
}

func (*fakeShard) Records() *records.Records                              { return nil }
func (*fakeShard) Runtime(nstance.InstanceID) (v loop.Runtime, err error) { return }
func (*fakeShard) RuntimeHashes() map[nstance.GroupKey]string             { return nil }
func (*fakeShard) FrozenGroups() map[nstance.GroupKey]bool                { return nil }

// withProviderNotices runs the watch over a fake shard. receive has a notice yielded, and
// acks counts its acknowledgements.
func withProviderNotices(t *testing.T, test func(a *Agents, s *fakeShard, receive func(n nstance.Notice), acks, journalled *int)) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeShard{loaded: make(chan struct{}), results: make(chan error)}
		acks, journalled := new(int), new(int)
		a := &Agents{shard: s, Options: Options{Now: time.Now, Log: slog.New(slog.DiscardHandler), Journal: func(e nstance.Event) {
			require.Equal(t, eventtype.NoticeDetected, e.Type)
			*journalled++
		}}}
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go a.watchProviderNotices(ctx)
		test(a, s, func(n nstance.Notice) {
			s.notice = nstance.MachineNotice{ID: "web1", Notice: n, Ack: func() { *acks++ }}
			s.results <- nil
			synctest.Wait()
		}, acks, journalled)
	})
}

var recommendation = nstance.Notice{Kind: nstance.Rebalance, Source: "aws/rebalance/eventbridge", EventID: "bus"}

func TestProviderNoticesWaitForTheShard(t *testing.T) {
	withProviderNotices(t, func(_ *Agents, s *fakeShard, receive func(nstance.Notice), acks, _ *int) {
		s.err = nstance.Errorf(nstance.NotFound, "not loaded")
		synctest.Wait()
		select {
		case s.results <- nil:
			require.Fail(t, "it is read before the shard is known")
		default:
		}
		close(s.loaded)
		receive(recommendation)
		require.Equal(t, 1, *acks, "a machine without record: nothing follows")
		s.err = nstance.Errorf(nstance.Unavailable, "the record cannot be read")
		receive(recommendation)
		require.Equal(t, 1, *acks, "a machine whose record cannot be read")
		require.Empty(t, s.observed)
	})
}

func TestProviderNoticesUntilSettled(t *testing.T) {
	withProviderNotices(t, func(_ *Agents, s *fakeShard, receive func(nstance.Notice), acks, journalled *int) {
		close(s.loaded)
		receive(recommendation)
		receive(recommendation)
		require.Len(t, s.observed, 2, "it is passed on until it is settled")
		require.Equal(t, 1, *journalled)
		require.Zero(t, *acks)
		s.observed[0].Ack()
		s.observed[1].Ack()
		receive(recommendation)
		require.Equal(t, 3, *acks, "settled: at once")
		require.Len(t, s.observed, 2)
	})
}

func TestProviderNoticesBeyondTheLimit(t *testing.T) {
	withProviderNotices(t, func(_ *Agents, s *fakeShard, receive func(nstance.Notice), acks, _ *int) {
		close(s.loaded)
		for i := range noticeBurst + 1 {
			n := recommendation
			n.EventID = string(rune('a' + i))
			receive(n)
		}
		require.Len(t, s.observed, noticeBurst)
		require.Zero(t, *acks, "the provider repeats it")
	})
}

// TestDetectionIsJournalledOnce: what the agent announced before is not detected again.
func TestDetectionIsJournalledOnce(t *testing.T) {
	withProviderNotices(t, func(a *Agents, s *fakeShard, receive func(nstance.Notice), _, journalled *int) {
		close(s.loaded)
		agent := nstance.Notice{Kind: nstance.Rebalance, Source: "aws/rebalance", EventID: "agent"}
		state, _ := a.notices.of("web1").receive(agent)
		a.receiveNotice("web1", state, func() {})
		receive(recommendation)
		require.Len(t, s.observed, 2)
		require.Equal(t, 1, *journalled)
	})
}

// TestProviderNoticeProblemIsLoggedWhenItChanges, and when it comes back.
func TestProviderNoticeProblemIsLoggedWhenItChanges(t *testing.T) {
	withProviderNotices(t, func(a *Agents, s *fakeShard, _ func(nstance.Notice), _, _ *int) {
		var text bytes.Buffer
		a.Log = slog.New(slog.NewTextHandler(&text, nil))
		close(s.loaded)
		for _, msg := range []string{"no permission", "no permission", "throttled", "throttled", "no permission"} {
			s.results <- nstance.Errorf(nstance.Denied, "%s", msg)
			synctest.Wait()
		}
		require.Equal(t, 3, strings.Count(text.String(), "cannot be read"), text.String())
		<-time.After(problemLasts + time.Second)
		s.results <- nstance.Errorf(nstance.Denied, "no permission")
		synctest.Wait()
		require.Equal(t, 4, strings.Count(text.String(), "cannot be read"))
	})
}

func TestProviderNoticeProblems(t *testing.T) {
	withProviderNotices(t, func(a *Agents, s *fakeShard, _ func(nstance.Notice), _, _ *int) {
		close(s.loaded)
		require.Empty(t, a.NoticeProblems())
		s.results <- nstance.Errorf(nstance.Denied, "no permission")
		synctest.Wait()
		require.Equal(t, []string{"notices of the provider cannot be read: no permission"}, a.NoticeProblems())
		<-time.After(problemLasts + time.Second)
		require.Empty(t, a.NoticeProblems(), "it is over")
	})
}

// TestDetectionOfAProviderNotice: one without a time was detected when it came.
func TestDetectionOfAProviderNotice(t *testing.T) {
	withProviderNotices(t, func(_ *Agents, s *fakeShard, receive func(nstance.Notice), _, journalled *int) {
		close(s.loaded)
		receive(recommendation)
		require.Equal(t, time.Now().UTC(), s.observed[0].Notice.DetectedAt)
		end := nstance.Notice{Kind: nstance.Reclaim, Source: "aws/spot/eventbridge", EventID: "end", Cancelled: true, DetectedAt: time.Unix(1, 0)}
		receive(end)
		require.Equal(t, end, s.observed[1].Notice)
		require.Equal(t, 1, *journalled, "the end of a notice is no detection")
	})
}
