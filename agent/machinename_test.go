package agent_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/spot"
)

// TestSessionNamesTheMachine: a session says what the cloud calls the machine, so that the
// server knows a machine that has everything of another one but its name.
func TestSessionNamesTheMachine(t *testing.T) {
	t.Parallel()
	for name, detector := range map[string]func(*spot.Options) (nstance.SpotDetector, error){
		imds.AWS:   func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewAWS(o) },
		imds.GCP:   func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewGCP(o) },
		imds.Azure: func(o *spot.Options) (nstance.SpotDetector, error) { return spot.NewAzure(o) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *testShard, m *machine) {
				cloud := imds.New(&imds.Options{Protocol: name, InstanceID: "machine-7"})
				d, err := detector(&spot.Options{BaseURL: "http://metadata.test", Client: &http.Client{Transport: inProcess{cloud}}})
				require.NoError(t, err)
				m.options.Detector = d
				_, stop := m.start()
				defer stop()
				require.Equal(t, []string{name + "/machine-7"}, machineOf(s.awaitSession()))
			})
		})
	}
	t.Run("without metadata service", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.Detector = spot.None{}
			_, stop := m.start()
			defer stop()
			require.Empty(t, machineOf(s.awaitSession()))
		})
	})
	t.Run("with one that refuses at first", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			cloud := imds.New(&imds.Options{Protocol: imds.AWS, InstanceID: "machine-7"})
			cloud.Fail(http.StatusServiceUnavailable, 3)
			d, err := spot.NewAWS(&spot.Options{BaseURL: "http://metadata.test", Client: &http.Client{Transport: inProcess{cloud}}})
			require.NoError(t, err)
			m.options.Detector = d
			_, stop := m.start()
			defer stop()
			s.awaitSession() // nothing waits for it
		})
	})
}

func machineOf(v *serverSession) []string {
	named, _ := metadata.FromIncomingContext(v.stream.Context())
	return named.Get(wire.SessionMachine)
}
