package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
)

// TestAgentsCannotFloodTheJournal: an agent causes few entries of a type; the journal says
// how many more there were. Other instances, other types and the server's own decisions
// are not touched.
func TestAgentsCannotFloodTheJournal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		said := make(chan nstance.Event, 1)
		term, end := context.WithCancel(t.Context())
		defer end()
		l := newEventLimits(term, time.Now, func(e nstance.Event) { said <- e })
		count := func(e nstance.Event) (n int) {
			for range 1000 {
				if l.admit(e) {
					n++
				}
			}
			return n
		}
		failed := nstance.Event{Type: eventtype.FilesFailed, Tenant: "red", Group: "web", Instance: "a"}
		require.Equal(t, causedBurst, count(failed))
		other := failed
		other.Instance = "b"
		require.True(t, l.admit(other))
		alarm := failed
		alarm.Type = nstance.EventAlarm
		require.True(t, l.admit(alarm))
		decided := failed
		decided.Type = nstance.EventDeleted
		require.Equal(t, 1000, count(decided))
		require.Equal(t, 1000, count(nstance.Event{Type: nstance.EventAlarm}), "of the shard")
		e := <-said // after a minute
		require.Equal(t, eventtype.EventsDropped, e.Type)
		require.Equal(t, nstance.InstanceID("a"), e.Instance)
		require.Equal(t, "970 more entries files_failed within 1m0s: not written", e.Reason)
		require.Equal(t, 1, count(failed), "one a minute")
		require.Equal(t, "999 more entries files_failed within 1m0s: not written", (<-said).Reason)
		count(failed)
		end()
		<-time.After(2 * sayDroppedAfter)
		synctest.Wait()
		require.Empty(t, said, "after the term")
	})
}
