package cache_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/cache"
)

// The file is the journal of a server of version 0.1. It is never written again.
const previous = "testdata/v0.1.db"

var makePrevious = flag.Bool("make-previous", false, "write "+previous+", which only its own version may")

// remembered is what stands in it, beside a health report, which no version after
// 0.1 reads or writes.
func remembered() []nstance.Event {
	full := event("full")
	full.Seq, full.Replaces, full.Code, full.Error = 1, "i0", nstance.Capacity, "sold out"
	full.Notice = &nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "e1", Deadline: noon, DetectedAt: noon}
	full.Drain = &nstance.Drain{Instance: "i1", Generation: 3, Deadline: noon}
	other := nstance.Event{Seq: 2, Time: noon.Add(time.Minute), Type: nstance.EventAlarm, Tenant: "acme", Reason: "nobody's"}
	return []nstance.Event{full, other}
}

func TestMakePrevious(t *testing.T) {
	if !*makePrevious {
		return // it stands, and must not change
	}
	c, err := cache.Open(previous, nil)
	require.NoError(t, err)
	for _, e := range remembered() {
		c.Append(e)
	}
	write(t, c)
	require.NoError(t, c.Close())
}

func TestPrevious(t *testing.T) {
	data, err := os.ReadFile(previous)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "journal.db")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	c := open(t, path, nil)
	require.Empty(t, c.Rebuilt(), "it is used as it is")
	require.Empty(t, c.Problems())
	require.Equal(t, remembered(), events(t, c, cache.Filter{}))
	require.Len(t, events(t, c, cache.Filter{Tenant: "acme"}), 1)
	require.Len(t, events(t, c, cache.Filter{Instance: "i1"}), 1)
	c.Append(event("later"))
	write(t, c)
	all := events(t, c, cache.Filter{})
	require.Len(t, all, 3)
	require.EqualValues(t, 3, all[2].Seq, "numbers go on")
}
