package wire_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/wire"
)

func TestCheckNotice(t *testing.T) {
	const years = 3 * 366 * 24 * time.Hour
	for field, spoil := range map[string]func(w *apiv1.Notice){
		"kind":       func(w *apiv1.Notice) { w.Kind = "" },
		"event_id":   func(w *apiv1.Notice) { w.EventId = "" },
		"action":     func(w *apiv1.Notice) { w.Action = "terminate\n" },
		"source":     func(w *apiv1.Notice) { w.Source = "\x1b[2J" },
		"time_left":  func(w *apiv1.Notice) { w.TimeLeft = durationpb.New(years) },
		"not_before": func(w *apiv1.Notice) { w.NotBefore = timestamppb.New(now.Add(years)) },
	} {
		w := wire.NoticeAt(announced(), now)
		require.NoError(t, wire.CheckNotice(w, now))
		spoil(w)
		err := wire.CheckNotice(w, now)
		require.ErrorIs(t, err, nstance.Invalid, field)
		require.ErrorContains(t, err, field+":")
	}
	for name, change := range map[string]func(w *apiv1.Notice){
		"a kind of a newer agent": func(w *apiv1.Notice) { w.Kind = "hibernate" },
		"a clock that was set":    func(w *apiv1.Notice) { w.TimeLeft, w.SinceDetected = durationpb.New(-years), durationpb.New(years) },
		"no time":                 func(w *apiv1.Notice) { w.TimeLeft, w.NotBefore = nil, nil },
		"a long event ID is cut":  func(w *apiv1.Notice) { w.EventId = strings.Repeat("é", 1000) },
	} {
		w := wire.NoticeAt(announced(), now)
		change(w)
		require.NoError(t, wire.CheckNotice(w, now), name)
	}
	require.Equal(t, "a b", wire.Printable("a\nb"))
}

// FuzzNoticeReceived: whatever an agent sends as a notice is refused, or becomes one that
// can be kept, shown and sent on.
func FuzzNoticeReceived(f *testing.F) {
	for _, w := range []*apiv1.Notice{
		{}, wire.NoticeAt(announced(), now), {Kind: "reclaim", EventId: "e\x00"},
		{Kind: "new", EventId: "e", TimeLeft: &durationpb.Duration{Seconds: 1 << 62, Nanos: -1}},
		{Kind: "stop", EventId: "e", SinceDetected: &durationpb.Duration{Seconds: -1 << 62}, NotBefore: &timestamppb.Timestamp{Seconds: 1 << 62}},
	} {
		b, err := proto.Marshal(w)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var w apiv1.Notice
		if proto.Unmarshal(b, &w) != nil || wire.CheckNotice(&w, now) != nil {
			return
		}
		n := wire.NoticeReceived(&w, now)
		require.NotEmpty(t, n.Kind)
		for _, text := range []string{string(n.Kind), n.EventID, n.Action, n.Source} {
			require.LessOrEqual(t, len(text), 256)
			require.False(t, strings.ContainsFunc(text, unicode.IsControl))
		}
		require.False(t, n.DetectedAt.After(now))
		limit := now.Add(367 * 24 * time.Hour)
		require.False(t, n.Deadline.After(limit))
		require.False(t, n.NotBefore.After(limit))
		require.False(t, n.DrainBy(now).After(limit))
		_, err := json.Marshal(n)
		require.NoError(t, err)
		again := wire.NoticeReceived(roundTrip(t, wire.NoticeAt(n, now)), now)
		require.True(t, notice.Repeats(again, n))
	})
}
