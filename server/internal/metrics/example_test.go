package metrics_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server/internal/metrics"
)

func Example() {
	m := metrics.New(func() metrics.State { return metrics.State{Leading: true, LeaseAge: 1500 * time.Millisecond} })
	m.Event(nstance.Event{Type: nstance.EventReady})

	page := httptest.NewRecorder()
	m.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "nstance_lease_age") || strings.HasPrefix(line, "nstance_events") {
			fmt.Print(line)
		}
	}
	// Output:
	// nstance_events_total{type="ready"} 1
	// nstance_lease_age_seconds 1.5
}
