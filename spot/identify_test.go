package spot_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
)

// unreadable is a detector that can say why it is blind.
type unreadable interface {
	nstance.SpotDetector
	Unreadable() (time.Time, error)
}

// TestServiceThatFindsNothing: what answers 404 to everything, such as a proxy, is no metadata
// service that announces nothing.
func TestServiceThatFindsNothing(t *testing.T) {
	for name, detector := range map[string]func(*testing.T, http.Handler) unreadable{
		"aws":   func(t *testing.T, h http.Handler) unreadable { return newAWS(t, h) },
		"gcp":   func(t *testing.T, h http.Handler) unreadable { return newGCP(t, h) },
		"azure": func(t *testing.T, h http.Handler) unreadable { return newAzure(t, h) },
	} {
		bubble(t, name, func(t *testing.T) {
			d := detector(t, http.NotFoundHandler())
			notices, errs := follow(t, d).after(t, time.Minute)
			require.Empty(t, notices)
			require.NotEmpty(t, errs)
			_, err := d.Unreadable()
			require.Error(t, err)
			require.NotErrorIs(t, err, nstance.Invalid)
		})
	}
}

// TestPriorityIsNotNeeded: a machine whose priority is not said has events, too.
func TestPriorityIsNotNeeded(t *testing.T) {
	bubble(t, "azure", func(t *testing.T) {
		s := azure()
		s.SetRaw(imds.AzureCompute, `{"name": "web-1", "vmId": "x"}`)
		s.SetRaw(imds.AzureEvents, events(1, event("A", "Preempt", "Started", "", "web-1")))
		d := newAzure(t, s)
		notices, errs := follow(t, d).after(t, time.Minute)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		_, err := d.Interruptible(t.Context())
		require.ErrorIs(t, err, nstance.Internal)
	})
}
