package agent_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/spot"
)

// TestUnreadableMetadata: an agent that cannot read its metadata service says so in its reports
// and its health, with what to do, until it can.
func TestUnreadableMetadata(t *testing.T) {
	t.Parallel()
	for name, detector := range map[string]func(*spot.Options) (nstance.SpotDetector, error){
		imds.AWS:   func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewAWS(o) },
		imds.GCP:   func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewGCP(o) },
		imds.Azure: func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewAzure(o) },
	} {
		for _, status := range []int{http.StatusForbidden, http.StatusServiceUnavailable, http.StatusTeapot} {
			t.Run(name+" "+http.StatusText(status), func(t *testing.T) {
				inBubble(t, func(t *testing.T, s *testShard, m *machine) {
					cloud := imds.New(&imds.Options{Protocol: name, Spot: true})
					d, err := detector(&spot.Options{BaseURL: "http://metadata.test", Client: &http.Client{Transport: inProcess{cloud}}})
					require.NoError(t, err)
					m.options.Detector = d
					a, stop := m.start()
					defer stop()
					v := s.awaitSession()
					says := func() string { return v.awaitMessage(t, isReport).GetReport().GetMetadataError() }
					require.Empty(t, says())
					cloud.Fail(status, -1)
					for range 2 {
						says() // an outage of a moment is none
					}
					advance(5 * time.Minute)
					for len(v.received) > 0 {
						<-v.received
					}
					text := says()
					require.NotEmpty(t, text)
					require.Equal(t, text, a.Status().MetadataError)
					if status == http.StatusForbidden {
						require.Contains(t, text, "metadata", "what to do")
					}
					cloud.Recover()
					advance(5 * time.Minute)
					require.Empty(t, a.Status().MetadataError)
					for len(v.received) > 0 {
						<-v.received
					}
					require.Empty(t, says())
				})
			})
		}
	}
}
