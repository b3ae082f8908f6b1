package spot_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/spot"
	"github.com/nstance-go/nstance/spot/spottest"
)

// benchInterval is a hundredth of the default, so that the benchmark ends. The measured
// overhead does not depend on it.
const benchInterval = spot.DefaultPollInterval / 100

// BenchmarkNoticeAWS measures from a notice becoming visible to its being yielded. The
// floor is the poll interval: over-ms is the overhead.
func BenchmarkNoticeAWS(b *testing.B) {
	s := spottest.NewServer(b, &spottest.Options{RequireToken: true, Spot: true})
	d, err := spot.NewAWS(&spot.Options{BaseURL: s.URL, PollInterval: benchInterval})
	require.NoError(b, err)
	benchmark(b, s, d, benchInterval)
}

// BenchmarkNoticeGCP has no floor except the round trip: it uses long polls.
func BenchmarkNoticeGCP(b *testing.B) {
	s := spottest.NewServer(b, &spottest.Options{Protocol: imds.GCP, Spot: true})
	d, err := spot.NewGCP(&spot.Options{BaseURL: s.URL, PollInterval: time.Millisecond})
	require.NoError(b, err)
	benchmark(b, s, d, 0)
}

func benchmark(b *testing.B, s *spottest.Server, d nstance.SpotDetector, floor time.Duration) {
	ctx, cancel := context.WithCancel(b.Context())
	notices := make(chan nstance.Notice)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n, err := range d.Watch(ctx) {
			if err != nil {
				b.Error(err)
				continue
			}
			notices <- n
		}
	}()
	deadline := time.Now().Add(time.Hour)
	took := make([]time.Duration, 0, b.N)
	for i := 0; b.Loop(); i++ {
		<-time.After(rand.N(benchInterval)) // or each notice would come right after a poll
		start := time.Now()
		s.Reclaim("terminate", deadline.Add(time.Duration(i)*time.Second))
		<-notices
		took = append(took, time.Since(start))
		s.Withdraw()
		<-notices
	}
	cancel()
	<-ended
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
	b.ReportMetric(ms(p99), "p99-ms")
	b.ReportMetric(ms(p99-floor), "p99-over-floor-ms")
	b.ReportMetric(0, "ns/op") // one iteration is a notice and its withdrawal
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
