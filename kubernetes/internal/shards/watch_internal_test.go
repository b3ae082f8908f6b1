package shards

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/wire"
)

// mirrored starts the mirror of the drain of an instance.
func mirrored(t *testing.T) (*Shard, nstance.Drain) {
	s := New(Options{Drains: drain.New(nil)})
	d := nstance.Drain{
		Instance: "i", Generation: 3, Executor: nstance.ExecutorOperator, Voluntary: true, Deadline: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Causes: []nstance.Cause{{Kind: nstance.CauseRollout}},
	}
	s.observe(t.Context(), nstance.Event{Type: nstance.EventDrainStarted, Instance: "i", Drain: &d})
	return s, d
}

// TestMirrorOfEvents: what each event about an instance does to the mirror of its drain. All have
// the instance asked for.
func TestMirrorOfEvents(t *testing.T) {
	tighter := func(d *nstance.Drain) { d.Deadline, d.Voluntary = d.Deadline.Add(-time.Minute), false }
	const stays, isOver, again = "stays", "is over", "may begin again"
	for typ, want := range map[nstance.EventType]string{
		nstance.EventDrainStarted: stays, nstance.EventDrainTightened: stays, nstance.EventDrainReassigned: stays,
		nstance.EventDrainCancelled: again, nstance.EventWakeRequested: again, // waking ends the drain before parking
		nstance.EventDeleteRequested: isOver, nstance.EventDeleted: isOver, nstance.EventMachineGone: isOver,
		nstance.EventDrainAcknowledged: stays, nstance.EventNoticeReceived: stays, nstance.EventRegistered: stays, nstance.EventAlarm: stays,
	} {
		t.Run(string(typ), func(t *testing.T) {
			s, d := mirrored(t)
			clear(s.stale)
			var after nstance.Seq
			for e := range s.opts.Drains.Watch(t.Context(), "", 0) {
				if after = e.Seq; e.Type == nstance.DrainSynced {
					break
				}
			}
			s.observe(t.Context(), nstance.Event{Type: typ, Instance: "i"})
			require.True(t, s.stale["i"])
			got, ok := s.opts.Drains.Of("i")
			require.Equal(t, want == stays, ok)
			if ok {
				require.Equal(t, d, got)
			}
			if !ok { // a node is given back after the one, and not after the other
				type end struct {
					nstance.DrainEventType
					what string
				}
				for e, err := range s.opts.Drains.Watch(t.Context(), "", after) {
					require.NoError(t, err)
					require.Contains(t, []end{{nstance.DrainCancelled, again}, {nstance.DrainEnded, isOver}}, end{e.Type, want})
					break
				}
			}
			require.Equal(t, want == stays, s.opts.Drains.Start(t.Context(), d) == nil, "the same generation")
			d.Generation++
			require.NoError(t, s.opts.Drains.Start(t.Context(), d), "the next one")

			s, d = mirrored(t)
			tighter(&d)
			d.Executor = nstance.ExecutorAgent
			s.observe(t.Context(), nstance.Event{Type: typ, Instance: "i", Drain: &d})
			got, _ = s.opts.Drains.Of("i")
			changes := slices.Contains([]nstance.EventType{nstance.EventDrainStarted, nstance.EventDrainTightened, nstance.EventDrainReassigned}, typ)
			require.Equal(t, changes, reflect.DeepEqual(got, d), "it is as the event says")

			other, _ := mirrored(t)
			other.observe(t.Context(), nstance.Event{Type: typ, Instance: "j"})
			_, ok = other.opts.Drains.Of("i")
			require.True(t, ok, "another instance's")
			other.observe(t.Context(), nstance.Event{Type: typ})
			require.NotContains(t, other.stale, nstance.InstanceID(""))

			alone := New(Options{}) // which mirrors none
			alone.observe(t.Context(), nstance.Event{Type: typ, Instance: "i", Drain: &d})
			require.True(t, alone.stale["i"])
		})
	}
}

// TestMirrorOfSnapshot: a snapshot without a drain takes back the mirrored one, and one with a
// drain leaves it. What the snapshot does not have is asked for, and kept until then.
func TestMirrorOfSnapshot(t *testing.T) {
	s, d := mirrored(t)
	s.putInstance("i", &apiv1.Instance{Id: "i"})
	s.replaceInstances(t.Context(), map[nstance.InstanceID]*apiv1.Instance{"i": {Id: "i", Drain: wire.Drain(&d)}})
	_, ok := s.opts.Drains.Of("i")
	require.True(t, ok)
	require.NotContains(t, s.stale, nstance.InstanceID("j"))

	clear(s.stale)
	s.replaceInstances(t.Context(), map[nstance.InstanceID]*apiv1.Instance{"j": {Id: "j"}})
	_, ok = s.opts.Drains.Of("i")
	require.True(t, ok, "it is not known whether it is gone")
	require.Equal(t, map[nstance.InstanceID]bool{"i": true}, s.stale)
	_, known := s.Instance("i")
	require.True(t, known)

	s.replaceInstances(t.Context(), map[nstance.InstanceID]*apiv1.Instance{"i": {Id: "i"}})
	_, ok = s.opts.Drains.Of("i")
	require.False(t, ok)
}

// A fakeAPI answers questions about instances, the first ones with an error.
type fakeAPI struct {
	apiv1.OperatorServiceClient
	mu        sync.Mutex
	instances map[string]*apiv1.Instance
	fail      []error // of the next calls
	lists     int
	gets      []string
}

func (f *fakeAPI) next() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.fail) == 0 {
		return nil
	}
	err := f.fail[0]
	f.fail = f.fail[1:]
	return err
}

func (f *fakeAPI) GetInstance(_ context.Context, r *apiv1.GetInstanceRequest, _ ...grpc.CallOption) (*apiv1.GetInstanceResponse, error) {
	if err := f.next(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gets = append(f.gets, r.GetId())
	i := f.instances[r.GetId()]
	if i == nil {
		return nil, nstance.Errorf(nstance.NotFound, "instance %s", r.GetId())
	}
	return &apiv1.GetInstanceResponse{Instance: i}, nil
}

func (f *fakeAPI) ListInstances(_ context.Context, r *apiv1.ListInstancesRequest, _ ...grpc.CallOption) (*apiv1.ListInstancesResponse, error) {
	if err := f.next(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	out := &apiv1.ListInstancesResponse{}
	all := slices.Sorted(maps.Keys(f.instances))
	half := len(all) / 2 // two pages
	if r.GetPage() == "" {
		all, out.NextPage = all[:half], "next"
	} else {
		all = all[half:]
	}
	for _, id := range all {
		out.Instances = append(out.Instances, f.instances[id])
	}
	return out, nil
}

// TestRefreshAsksAgain: what could not be asked for is asked for again, by the next connection
// when another server leads.
func TestRefreshAsksAgain(t *testing.T) {
	for _, n := range []int{1, refreshWidth, refreshWidth + 1, 40} {
		for name, fail := range map[string]error{
			"slowed down": nstance.Errorf(nstance.Throttled, "slow down"), "away": nstance.Errorf(nstance.Unavailable, "away"), "without leader": nstance.Errorf(nstance.Conflict, "another leads"),
		} {
			t.Run(fmt.Sprint(n, " ", name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := New(Options{})
					api := &fakeAPI{instances: map[string]*apiv1.Instance{}, fail: []error{fail}}
					for i := range n {
						id := fmt.Sprintf("i%02d", i)
						api.instances[id] = &apiv1.Instance{Id: id, Group: "web", State: "ready"}
						s.ask(nstance.InstanceID(id))
					}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					ended := make(chan error, 1)
					go func() { ended <- s.refresh(ctx, api) }()
					if name == "without leader" {
						require.ErrorIs(t, <-ended, fail, "the connection ends")
						go func() { ended <- s.refresh(ctx, api) }()
					}
					<-time.After(2 * throttleWait)
					synctest.Wait()
					require.Len(t, s.Instances("web"), n)
					require.Equal(t, n > refreshWidth, api.lists > 0, "many are listed")
					if n > refreshWidth {
						require.Empty(t, api.gets, "and not asked for one by one")
					}
					cancel()
					require.ErrorIs(t, <-ended, context.Canceled)
				})
			})
		}
	}
}

// TestQuestionThatHangs: a question that hangs, or fails with an unlisted code, does not delay the
// copies of other instances, and the connection stays. The log says so once.
func TestQuestionThatHangs(t *testing.T) {
	for name, answer := range map[string]func(context.Context) error{
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"fails": func(context.Context) error { return nstance.Errorf(nstance.Internal, "out of paper") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				s := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
				api := &oddAPI{fakeAPI: &fakeAPI{instances: map[string]*apiv1.Instance{}}, odd: answer}
				for _, id := range []string{"a", "b", "odd"} {
					api.instances[id] = &apiv1.Instance{Id: id, Group: "web", State: "ready"}
					s.ask(nstance.InstanceID(id))
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- s.refresh(ctx, api) }()
				<-time.After(time.Minute)
				require.Len(t, s.Instances("web"), 2)
				api.mu.Lock()
				api.instances["b"] = &apiv1.Instance{Id: "b", Group: "web", State: "draining"}
				api.mu.Unlock()
				s.ask("b")
				<-time.After(2 * questionLimit)
				synctest.Wait()
				b, _ := s.Instance("b")
				require.Equal(t, "draining", b.GetState())
				cancel()
				require.ErrorIs(t, <-ended, context.Canceled)
				require.Equal(t, 1, strings.Count(log.String(), "asking again"))
			})
		})
	}
}

// An oddAPI answers otherwise about one instance.
type oddAPI struct {
	*fakeAPI
	odd func(context.Context) error
}

func (o *oddAPI) GetInstance(ctx context.Context, r *apiv1.GetInstanceRequest, opts ...grpc.CallOption) (*apiv1.GetInstanceResponse, error) {
	if r.GetId() == "odd" {
		return nil, o.odd(ctx)
	}
	return o.fakeAPI.GetInstance(ctx, r, opts...)
}

// TestRefreshOfEach: what an answer about one instance does to its copy.
func TestRefreshOfEach(t *testing.T) {
	for name, c := range map[string]struct {
		answer *apiv1.Instance // nil: it is not known
		kept   bool
		gone   bool // its machine is
	}{
		"known":      {&apiv1.Instance{Id: "i", State: "ready"}, true, false},
		"unreadable": {&apiv1.Instance{Id: "i", Conditions: []string{wire.Unreadable}}, true, false},
		"failed":     {&apiv1.Instance{Id: "i", State: "failed"}, false, false},
		"deleted":    {&apiv1.Instance{Id: "i", State: "deleted"}, false, true},
		"not known":  {nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := mirrored(t)
			var gone []string
			s.opts.Gone = func(_ nstance.InstanceID, providerID string) { gone = append(gone, providerID) }
			s.putInstance("i", &apiv1.Instance{Id: "i", ProviderId: "node-1", NodeProviderId: "cloud:///node-1", State: "booting"})
			api := &fakeAPI{instances: map[string]*apiv1.Instance{}}
			if c.answer != nil {
				api.instances["i"] = c.answer
			}
			require.NoError(t, s.fetchAll(t.Context(), api, []nstance.InstanceID{"i"}))
			got, known := s.Instance("i")
			require.Equal(t, c.kept, known)
			require.Equal(t, c.gone, slices.Equal(gone, []string{"cloud:///node-1"}))
			_, drains := s.opts.Drains.Of("i")
			require.Equal(t, c.kept, drains)
			if name == "unreadable" {
				require.Equal(t, "booting", got.GetState())
				require.Equal(t, "node-1", got.GetProviderId())
			}
		})
	}
}

// A snapshotStream yields messages of a watch, and ends.
type snapshotStream struct {
	grpc.ClientStream
	messages []*apiv1.WatchInstanceEventsResponse
}

func (s *snapshotStream) Recv() (*apiv1.WatchInstanceEventsResponse, error) {
	if len(s.messages) == 0 {
		return nil, io.EOF
	}
	next := s.messages[0]
	s.messages = s.messages[1:]
	return next, nil
}

// A streamAPI answers a watch with a stream.
type streamAPI struct {
	apiv1.OperatorServiceClient
	stream *snapshotStream
}

func (a streamAPI) WatchInstanceEvents(context.Context, *apiv1.WatchInstanceEventsRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[apiv1.WatchInstanceEventsResponse], error) {
	return a.stream, nil
}

// TestSnapshotCutShort: a drain begins before the snapshot is complete, and may be
// acknowledged before. The instance must be known by then.
func TestSnapshotCutShort(t *testing.T) {
	s, d := mirrored(t)
	d.Instance = "j"
	first := &apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Snapshot{
		Snapshot: &apiv1.Instance{Id: "j", Drain: wire.Drain(&d)},
	}}
	api := streamAPI{stream: &snapshotStream{messages: []*apiv1.WatchInstanceEventsResponse{first}}}
	require.ErrorIs(t, s.watchInstances(t.Context(), api, true), errEnded)
	_, draining := s.opts.Drains.Of("j")
	require.True(t, draining)
	_, known := s.Instance("j")
	require.True(t, known)
	require.False(t, s.Synced())
}
