package spot_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/spot"
	"github.com/nstance-go/nstance/spot/spottest"
)

const quick = 10 * time.Millisecond

func TestAWSConformance(t *testing.T) {
	for name, o := range map[string]spottest.Options{
		"tokens required": {RequireToken: true},
		"tokens optional": {},
		"version 1 only":  {NoTokens: true},
		"tokens of 1 s":   {RequireToken: true, MaxTokenTTL: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			spottest.Run(t, func(t *testing.T) (nstance.SpotDetector, spottest.Cloud) {
				o.Spot = true
				s := spottest.NewServer(t, &o)
				detect := func(t *testing.T) nstance.SpotDetector {
					d, err := spot.NewAWS(&spot.Options{BaseURL: s.URL, PollInterval: quick})
					require.NoError(t, err)
					return d
				}
				return detect(t), spottest.Restartable(s, detect)
			})
		})
	}
}

func TestGCPConformance(t *testing.T) {
	spottest.Run(t, func(t *testing.T) (nstance.SpotDetector, spottest.Cloud) {
		s := spottest.NewServer(t, &spottest.Options{Protocol: imds.GCP, Spot: true})
		detect := func(t *testing.T) nstance.SpotDetector {
			d, err := spot.NewGCP(&spot.Options{BaseURL: s.URL, PollInterval: quick})
			require.NoError(t, err)
			return d
		}
		return detect(t), spottest.Restartable(s, detect)
	})
}

func TestAzureConformance(t *testing.T) {
	spottest.Run(t, func(t *testing.T) (nstance.SpotDetector, spottest.Cloud) {
		s := spottest.NewServer(t, &spottest.Options{Protocol: imds.Azure, Spot: true})
		detect := func(t *testing.T) nstance.SpotDetector {
			d, err := spot.NewAzure(&spot.Options{BaseURL: s.URL, PollInterval: quick})
			require.NoError(t, err)
			return d
		}
		return detect(t), spottest.Restartable(s, detect)
	})
}
