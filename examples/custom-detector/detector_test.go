package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/spot/spottest"
)

// A rack is the controller in the hands of the suite: a spottest.Cloud.
type rack struct {
	t    *testing.T
	path string
	spot bool
	now  *eviction
	away bool // the file is gone
}

func (r *rack) SetSpot(spot bool) { r.spot = spot; r.write() }
func (r *rack) Withdraw()         { r.now = nil; r.write() }
func (r *rack) Restore()          { r.away = false; r.write() }

func (r *rack) Reclaim(action string, deadline time.Time) {
	r.now = &eviction{ID: "ev-1", Action: action, At: deadline}
	r.write()
}

func (r *rack) Corrupt() {
	require.NoError(r.t, os.WriteFile(r.path, []byte(`{"spot": true, "evic`), 0o600))
}

func (r *rack) Break() {
	r.away = true
	require.NoError(r.t, os.Remove(r.path))
}

func (r *rack) write() {
	if !r.away {
		require.NoError(r.t, publish(r.path, r.spot, r.now))
	}
}

func TestFileDetector(t *testing.T) {
	spottest.Run(t, func(t *testing.T) (nstance.SpotDetector, spottest.Cloud) {
		r := &rack{t: t, path: filepath.Join(t.TempDir(), "eviction.json"), spot: true}
		r.write()
		detect := func(*testing.T) nstance.SpotDetector {
			return &FileDetector{Path: r.path, Interval: 10 * time.Millisecond}
		}
		return detect(t), spottest.Restartable(r, detect)
	})
}

func Example() {
	main()
	// Output:
	// spot capacity: true
	// rack/ev-17: reclaim by poweroff at 2130-01-01T12:00:00Z
	// rack/ev-17: reclaim by poweroff at 2130-01-01T11:00:00Z
	// rack/ev-17 is withdrawn
}
