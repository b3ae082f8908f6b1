package server_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

// TestDrill: a drill that is due interrupts the oldest member as a cloud would, and is on
// record as a rehearsal.
func TestDrill(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	type state struct {
		records.Header
		Groups map[string]map[string]any `json:"groups"`
	}
	_, err := records.NewDoc[state](store, layout.StateKey(zone), nil).Update(t.Context(), func(s *state) error {
		due := map[string]any{"drilled_at": time.Now().Add(-25 * time.Hour).UTC()}
		s.Groups = map[string]map[string]any{"default/web": due, "blue/db": due}
		return nil
	})
	require.NoError(t, err)
	text := replaceOnce(t, fmt.Sprintf(configuration, "", 1), `"size": 1}`, `"size": 1, "drill": {"every": "1d", "notice": "1m"}}`)
	text = replaceOnce(t, text, `"db": {"template": "vm", "size": 1,`, `"db": {"template": "vm", "size": 1, "drill": {"every": "1d", "notice": "1m"},`)
	w := newWorld(t, setup{store: store, config: text})
	agent := w.awaitMachine(nstance.DefaultTenant)
	api := w.admin()
	require.Contains(t, w.awaitEvent(eventtype.DrillSkipped, "").Reason, "0 of 1 members are ready")
	require.Zero(t, w.countEvents(eventtype.DrillStarted))
	w.connectReady(agent)
	w.awaitEvent(eventtype.DrillStarted, "")
	var replacement nstance.InstanceID
	require.Eventually(t, func() bool {
		resp, err := api.ListInterruptions(t.Context(), &apiv1.ListInterruptionsRequest{})
		require.NoError(t, err)
		if len(resp.GetInterruptions()) == 0 {
			return false
		}
		i := resp.GetInterruptions()[0]
		require.Equal(t, "rehearsal/drill", i.GetNotice().GetSource())
		require.True(t, i.GetRehearsal())
		replacement = nstance.InstanceID(i.GetReplacement())
		return replacement != ""
	}, eventually, 5*time.Millisecond, "it is replaced at once")

	w.awaitEvent(nstance.EventCreated, replacement)
	w.connectReady(replacement)
	w.connectReady(w.awaitMachine("blue"))
	require.Eventually(t, func() bool { return w.countEvents(eventtype.DrillStarted) == 2 }, eventually, time.Millisecond, "of the other group")
	require.False(t, w.hasEvent(func(e nstance.Event) bool { return e.Type == nstance.EventNoticeReceived && e.Instance == replacement }), "the next drill is not due")
}
