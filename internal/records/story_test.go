package records_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// TestAsleep: what a record says of the sleep of a machine, and of the certificates from before it.
func TestAsleep(t *testing.T) {
	stopped, running := nstance.ParkStopped, nstance.ParkRunning
	for name, c := range map[string]struct {
		standby               *records.Standby
		asleep, machineAsleep bool
		outlived              []string
	}{
		"no stand-by member":      {nil, false, false, nil},
		"never parked":            {&records.Standby{Mode: stopped, Serial: "a"}, false, false, nil},
		"parked":                  {&records.Standby{Mode: stopped, Phase: nstance.Parking, Serial: "a"}, true, true, nil},
		"parked, and runs":        {&records.Standby{Mode: running, Phase: nstance.Parking}, true, false, nil},
		"woken":                   {&records.Standby{Mode: stopped, Phase: nstance.Waking, Serial: "a", PendingSerial: "b"}, false, false, []string{"a", "b"}},
		"woken, only one issued":  {&records.Standby{Mode: stopped, Phase: nstance.Waking, Serial: "a"}, false, false, []string{"a"}},
		"woken, one pending":      {&records.Standby{Mode: stopped, Phase: nstance.Waking, PendingSerial: "b"}, false, false, []string{"b"}},
		"woken, none was issued":  {&records.Standby{Mode: stopped, Phase: nstance.Waking}, false, false, nil},
		"woken, and it never was": {&records.Standby{Mode: running, Phase: nstance.Waking, Serial: "a"}, false, false, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			rec := newInstance(1)
			rec.Standby = c.standby
			require.Equal(t, c.asleep, rec.Asleep())
			require.Equal(t, c.machineAsleep, rec.MachineAsleep())
			var outlived []string
			for _, serial := range []string{"", "a", "b", "c"} {
				if rec.Outlived(serial) {
					outlived = append(outlived, serial)
				}
			}
			require.Equal(t, c.outlived, outlived)
		})
	}
}

// TestRemembersDrains: notices that are taken back and drains that are cancelled stay on record, the
// latest ones, and a cancelled drain's generation is used no more.
func TestRemembersDrains(t *testing.T) {
	notice := func(id string) nstance.Notice { return nstance.Notice{EventID: id} }
	local := born.In(time.FixedZone("east", 3600))
	rec := newInstance(1)
	rec.StandingNotices([]nstance.Notice{notice("a"), notice("b")}, local)
	require.Empty(t, rec.Cancelled, "nothing was taken back")
	rec.StandingNotices([]nstance.Notice{notice("b"), notice("c")}, local)
	require.Equal(t, []nstance.Notice{notice("b"), notice("c")}, rec.Notices)
	require.Equal(t, []records.PastDrain{{Notices: []nstance.Notice{notice("a")}, EndedAt: born.UTC()}}, rec.Cancelled)
	rec.StandingNotices(rec.Notices, local)
	require.Len(t, rec.Cancelled, 1, "the same once more")

	d := nstance.Drain{Instance: rec.ID, Generation: 4}
	rec.Drain, rec.Generation, rec.Drifted = &d, 4, []string{"image"}
	rec.CancelDrain(local)
	require.Equal(t, records.PastDrain{Drain: d, Notices: []nstance.Notice{notice("b"), notice("c")}, EndedAt: born.UTC()}, rec.Cancelled[1])
	require.Nil(t, rec.Drain)
	require.Empty(t, rec.Notices)
	require.Empty(t, rec.Drifted)
	require.EqualValues(t, 5, rec.Generation)

	for i := range 10 {
		rec.Drain = &nstance.Drain{Generation: uint64(10 + i)}
		rec.CancelDrain(born)
	}
	require.Len(t, rec.Cancelled, records.MaxCancelled)
	require.EqualValues(t, 19, rec.Cancelled[records.MaxCancelled-1].Drain.Generation, "the latest")
	require.EqualValues(t, 12, rec.Cancelled[0].Drain.Generation)
}

// TestKeepsStory: what a record has is not written over.
func TestKeepsStory(t *testing.T) {
	first := records.Story{ReadyAt: born, Drifted: []string{"image"}, PricePerHour: 0.5}
	second := records.Story{ReadyAt: born.Add(time.Hour), Drifted: []string{"args"}, PricePerHour: 0.7}
	rec := newInstance(1)
	rec.KeepStory(records.Story{})
	require.Equal(t, newInstance(1), rec)
	for _, s := range []records.Story{first, second, {}} {
		rec.KeepStory(s)
		require.Equal(t, first, records.Story{ReadyAt: rec.ReadyAt, Drifted: rec.Drifted, PricePerHour: rec.PricePerHour})
	}
}
