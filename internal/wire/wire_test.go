package wire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

const id = nstance.InstanceID("acc06bgm7733st2576nx5jht4ecjw")

var now = time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)

func announced() nstance.Notice {
	return nstance.Notice{
		Kind: nstance.Reclaim, Action: "terminate", Deadline: now.Add(2 * time.Minute), NotBefore: now,
		Source: "aws/spot", EventID: "e1", DetectedAt: now, Cancelled: true, Machines: []string{"vm-1", "vm-2"},
	}
}

func happened() nstance.Event {
	d, n := drained(), announced()
	return nstance.Event{
		Seq: 9, Time: now, Type: nstance.EventDrainStarted, Tenant: "blue", Group: "web", Instance: id, Replaces: id,
		Reason: "r", Code: nstance.Capacity, Error: "e", Drain: &d, Notice: &n, Count: 7,
	}
}

func reported() nstance.Report {
	n := announced()
	n.Cancelled = false
	return nstance.Report{
		Version: wire.ReportVersion, InstanceID: id, Sequence: 5, Timestamp: now, UptimeSeconds: 90.5,
		OneMinute:  nstance.Usage{CPUPercent: 12.5, MemoryPercent: 50, DiskPercent: 99.5, Load: 3.25},
		ConfigHash: "v1:sha256:00", Software: "0.3.0", Notices: []nstance.Notice{n}, CanDrain: true,
		Probes: []nstance.ProbeResult{{Name: "p", OK: true, Message: "fine"}, {Name: "q", Message: "refused"}},
		Files:  []nstance.FileStatus{{Path: "/etc/a", Digest: "d", Error: "changed on the machine"}}, FilesError: "no space left", MetadataError: "403",
	}
}

func drained() nstance.Drain {
	return nstance.Drain{
		Instance: id, Group: nstance.GroupKey{Tenant: "blue", Group: "web"}, ProviderID: "i-1", Generation: 3,
		StartedAt: now, Deadline: now.Add(time.Minute), Voluntary: true, Executor: nstance.ExecutorAgent, CordonOnly: true,
		Causes: []nstance.Cause{{Kind: nstance.CauseNotice, EventID: "e1", Message: "aws/spot"}, {Kind: nstance.CauseRollout}},
	}
}

// roundTrip returns m as its receiver gets it.
func roundTrip[M proto.Message](t testing.TB, m M) M {
	t.Helper()
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	got := m.ProtoReflect().New().Interface()
	require.NoError(t, proto.Unmarshal(b, got))
	return got.(M)
}

func TestRoundTrip(t *testing.T) {
	d, n := drained(), announced()
	t.Run("notice", func(t *testing.T) { require.Equal(t, n, wire.NoticeOf(roundTrip(t, wire.Notice(n)))) })
	t.Run("drain", func(t *testing.T) { require.Equal(t, &d, wire.DrainOf(roundTrip(t, wire.Drain(&d)))) })
	t.Run("no drain", func(t *testing.T) {
		require.Nil(t, wire.Drain(nil))
		require.Nil(t, wire.DrainOf(nil))
	})
	t.Run("event", func(t *testing.T) {
		e := happened()
		require.Equal(t, e, wire.EventOf(roundTrip(t, wire.Event(e))))
		require.Equal(t, nstance.Event{Type: nstance.EventReady}, wire.EventOf(roundTrip(t, wire.Event(nstance.Event{Type: nstance.EventReady}))))
	})
	t.Run("report", func(t *testing.T) {
		r := reported()
		w := roundTrip(t, wire.Report(r))
		require.Len(t, w.GetNotices().GetNotices(), 1)
		require.Equal(t, r.Notices[0], wire.NoticeOf(w.GetNotices().GetNotices()[0]))
		r.Notices = nil // they are converted by themselves
		require.Equal(t, r, wire.ReportOf(id, 5, w))
	})
	t.Run("credential", func(t *testing.T) {
		c := nstance.Credential{Chain: [][]byte{{1}, {2}}, Roots: [][]byte{{3}}, Serial: "ab", NotAfter: now}
		require.Equal(t, c, wire.CredentialOf(roundTrip(t, wire.Credential(c))))
	})
	t.Run("addresses", func(t *testing.T) {
		addrs := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
		require.Equal(t, addrs, wire.AddressesOf(wire.Addresses(addrs)))
		require.Equal(t, addrs[:1], wire.AddressesOf([]string{"10.0.0.1", "nonsense"}))
		require.Len(t, wire.AddressesOf(strings.Fields(strings.Repeat("10.0.0.1 ", 100))), 16)
	})
}

// TestRoundTripsHaveEveryField: what is not sent is listed, with its reason. Everything else is set
// in what makes the round trips above.
func TestRoundTripsHaveEveryField(t *testing.T) {
	d := drained()
	for name, c := range map[string]struct {
		value any
		kept  []string // by the receiver or the sender for itself
	}{
		"notice": {announced(), []string{"ReceivedAt", "Warning", "Margin"}}, // what a leader learns of its receipt
		"drain":  {d, nil},
		"cause":  {d.Causes[0], nil},
		"group":  {d.Group, nil},
		"event":  {happened(), nil},
		"report": {reported(), []string{"TerminationNotice"}}, // of its notices
		"usage":  {reported().OneMinute, nil},
		"probe":  {reported().Probes[0], nil},
		"file":   {reported().Files[0], nil},
	} {
		t.Run(name, func(t *testing.T) {
			v := reflect.ValueOf(c.value)
			for i := range v.NumField() {
				field := v.Type().Field(i).Name
				require.Equal(t, slices.Contains(c.kept, field), v.Field(i).IsZero(), field)
			}
		})
	}
}

func TestTimes(t *testing.T) {
	require.Nil(t, wire.Time(time.Time{}))
	require.Zero(t, wire.TimeOf(nil))
	require.Zero(t, wire.TimeOf(&timestamppb.Timestamp{Nanos: -1}), "nonsense")
	require.Equal(t, now, wire.TimeOf(wire.Time(now)))
}

func TestReportIsBounded(t *testing.T) {
	long := strings.Repeat("é", 1000)
	w := &apiv1.HealthReport{
		Version: long, ConfigHash: long, CpuUsage: math.NaN(), MemoryUsage: math.Inf(1), DiskUsage: 250, Load: -1,
	}
	for range 1000 {
		w.Probes = append(w.Probes, &apiv1.ProbeResult{Name: long, Message: long})
	}
	r := wire.ReportOf(id, 1, w)
	require.Len(t, r.Version, 256)
	require.Len(t, r.Probes, 64)
	require.Len(t, wire.NoticeReceived(&apiv1.Notice{EventId: long}, now).EventID, 256)
	require.Len(t, r.Probes[0].Message, 256)
	require.Equal(t, nstance.Usage{DiskPercent: 100}, r.OneMinute)
	_, err := json.Marshal(r)
	require.NoError(t, err, "the journal and the status page can show it")
}

func TestUrgent(t *testing.T) {
	at := func(d time.Duration, kind nstance.NoticeKind) nstance.Notice {
		n := nstance.Notice{Kind: kind, Action: kindAction(kind)}
		if d > 0 {
			n.Deadline = now.Add(d)
		}
		return n
	}
	for name, c := range map[string]struct {
		notices []nstance.Notice
		want    *nstance.TerminationNotice
	}{
		"none":                       {nil, nil},
		"what dooms nothing":         {[]nstance.Notice{at(1, nstance.Rebalance), at(2, nstance.Maintenance)}, nil},
		"what was withdrawn":         {[]nstance.Notice{{Kind: nstance.Reclaim, Cancelled: true}}, nil},
		"the earliest":               {[]nstance.Notice{at(9, nstance.Reclaim), at(3, nstance.Stop), at(5, nstance.Reclaim)}, &nstance.TerminationNotice{Action: "stop", Deadline: now.Add(3)}},
		"a known deadline first":     {[]nstance.Notice{at(0, nstance.Reclaim), at(5, nstance.Stop)}, &nstance.TerminationNotice{Action: "stop", Deadline: now.Add(5)}},
		"and it stays first":         {[]nstance.Notice{at(5, nstance.Stop), at(0, nstance.Reclaim)}, &nstance.TerminationNotice{Action: "stop", Deadline: now.Add(5)}},
		"an unknown one if it's all": {[]nstance.Notice{at(0, nstance.Reclaim)}, &nstance.TerminationNotice{Action: "reclaim"}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, wire.Urgent(c.notices)) })
	}
}

func kindAction(k nstance.NoticeKind) string { return string(k) }

// TestStrayBytes: what is sent on to many must not break their streams.
func TestStrayBytes(t *testing.T) {
	bad := "half \xc3"
	d, n := drained(), announced()
	d.Causes[0].Message, n.Source = bad, bad
	r := nstance.Report{Version: bad, ConfigHash: bad, Notices: []nstance.Notice{n}, Probes: []nstance.ProbeResult{{Name: bad, Message: bad}}}
	roundTrip(t, wire.Event(nstance.Event{Reason: bad, Error: bad, Drain: &d, Notice: &n}))
	roundTrip(t, wire.Report(r))
	st, _ := status.FromError(wire.Status(&nstance.Error{Code: nstance.Capacity, Msg: bad, Field: bad, Remedy: bad}))
	roundTrip(t, st.Proto())
	require.Equal(t, strings.Repeat("x", 255), wire.Text(strings.Repeat("x", 255)+"é"))
}

func TestErrors(t *testing.T) {
	all := map[nstance.Code]codes.Code{
		nstance.Invalid: codes.InvalidArgument, nstance.NotFound: codes.NotFound, nstance.Conflict: codes.Aborted,
		nstance.Capacity: codes.ResourceExhausted, nstance.Quota: codes.ResourceExhausted, nstance.Throttled: codes.ResourceExhausted,
		nstance.Denied: codes.PermissionDenied, nstance.Ambiguous: codes.Unknown, nstance.Unavailable: codes.Unavailable,
		nstance.Internal: codes.Internal,
	}
	for code, want := range all {
		t.Run(string(code), func(t *testing.T) {
			err := wire.Status(fmt.Errorf("list: %w", nstance.Errorf(code, "no")))
			require.Equal(t, want, status.Code(err))
			st, _ := status.FromError(err)
			back := wire.ErrorOf(status.FromProto(roundTrip(t, st.Proto())).Err())
			require.Equal(t, code, nstance.CodeOf(back), "each code comes back as itself")
			require.EqualError(t, back, "list: no")
		})
	}
	t.Run("nil is success", func(t *testing.T) {
		require.NoError(t, wire.Status(nil))
		require.NoError(t, wire.ErrorOf(nil))
	})
	t.Run("field and remedy arrive", func(t *testing.T) {
		err := wire.ErrorOf(wire.Status(nstance.FieldError("size", "use 0 or more", "is -1")))
		require.EqualError(t, err, "size: is -1 (use 0 or more)")
	})
	t.Run("who leads arrives", func(t *testing.T) {
		err := wire.ErrorOf(wire.Status(fmt.Errorf("list: %w", &nstance.Error{Code: nstance.Unavailable, Msg: "stands by", Leader: "10.0.0.7:8993"})))
		known, ok := errors.AsType[*nstance.Error](err)
		require.True(t, ok)
		require.Equal(t, "10.0.0.7:8993", known.Leader)
	})
	t.Run("a status stays as it is", func(t *testing.T) {
		err := status.Error(codes.DataLoss, "x")
		require.Equal(t, err, wire.Status(err))
	})
	t.Run("errors without a code are internal, those of a context are not", func(t *testing.T) {
		require.Equal(t, codes.Internal, status.Code(wire.Status(io.EOF)))
		require.Equal(t, codes.Unavailable, status.Code(wire.Status(context.Canceled)))
		require.ErrorIs(t, wire.ErrorOf(context.DeadlineExceeded), nstance.Unavailable)
		require.ErrorIs(t, wire.ErrorOf(io.EOF), io.EOF)
	})
	t.Run("a code that nobody knows never looks like success", func(t *testing.T) {
		err := wire.Status(nstance.Errorf("odd", "x"))
		require.Equal(t, codes.Internal, status.Code(err))
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Internal)
	})
	t.Run("statuses of others are classified by their code", func(t *testing.T) {
		for c, want := range map[codes.Code]nstance.Code{
			codes.InvalidArgument: nstance.Invalid, codes.FailedPrecondition: nstance.Invalid, codes.NotFound: nstance.NotFound,
			codes.AlreadyExists: nstance.Conflict, codes.ResourceExhausted: nstance.Throttled, codes.Unauthenticated: nstance.Denied,
			codes.DeadlineExceeded: nstance.Unavailable, codes.Unimplemented: nstance.Internal,
		} {
			err := wire.ErrorOf(status.Error(c, "x"))
			require.Equal(t, want, nstance.CodeOf(err), c)
			var e *nstance.Error
			require.True(t, errors.As(err, &e))
		}
	})
}

// FuzzReport: whatever an agent sends becomes something that can be kept,
// shown, and sent on.
func FuzzReport(f *testing.F) {
	b, err := proto.Marshal(wire.Report(nstance.Report{Version: "1", Notices: []nstance.Notice{announced()}}))
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var w apiv1.HealthReport
		if proto.Unmarshal(b, &w) != nil {
			return
		}
		r := wire.ReportOf(id, 1, &w)
		_, err := json.Marshal(r)
		require.NoError(t, err)
		for _, n := range w.GetNotices().GetNotices() {
			r.Notices = append(r.Notices, wire.NoticeReceived(n, now))
		}
		_, err = json.Marshal(r.Notices)
		require.NoError(t, err)
		again := roundTrip(t, wire.Report(r))
		require.Equal(t, r.OneMinute, wire.ReportOf(id, 1, again).OneMinute)
		require.Len(t, again.GetNotices().GetNotices(), len(r.Notices))
	})
}

// TestMachinesOfAnEvent: a part of their names would say that the event is about fewer.
func TestMachinesOfAnEvent(t *testing.T) {
	var names []string
	for range wire.MaxMachines {
		names = append(names, "vm")
	}
	there := func(names []string) []string {
		return wire.NoticeOf(wire.Notice(nstance.Notice{Machines: names})).Machines
	}
	require.Equal(t, names, there(names))
	require.Empty(t, there(append(names, "one more")))
	require.Empty(t, there([]string{"vm", strings.Repeat("x", 1<<16)}))
	received := &apiv1.Notice{Machines: append(names, "one more")}
	require.Empty(t, wire.NoticeOf(received).Machines)
}

func TestCommands(t *testing.T) {
	for _, argv := range [][]string{nil, {"true"}, {"sh", "-c", "echo \"$1\"", ""}} {
		got, err := wire.CommandOf(wire.Command(argv))
		require.NoError(t, err)
		require.Equal(t, argv, got)
	}
	for _, bad := range []string{"true", "[]", `[""]`, `["", "x"]`, `[1]`, `{"a": "b"}`} {
		_, err := wire.CommandOf(bad)
		require.ErrorIs(t, err, nstance.Invalid, bad)
	}
}
