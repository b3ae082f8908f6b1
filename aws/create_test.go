package aws_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// recorded returns a provider for w's cloud, and the calls that it makes.
func (w *world) recorded() (*aws.Provider, *[]url.Values) {
	var calls []url.Values
	var mu sync.Mutex
	cloud := record(w.cloud)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if form, err := url.ParseQuery(string(body)); err == nil {
			mu.Lock()
			calls = append(calls, form)
			mu.Unlock()
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		cloud.ServeHTTP(rw, r)
	}))
	w.Cleanup(server.Close)
	p, err := aws.New(account(), &aws.Options{Endpoint: server.URL, ELBEndpoint: server.URL, STSEndpoint: server.URL, SSMEndpoint: server.URL})
	require.NoError(w, err)
	return p, &calls
}

// tagged returns the tags of a launch, by resource.
func tagged(call url.Values) map[string]map[string]string {
	out := map[string]map[string]string{}
	for key, values := range call {
		at, isKey := strings.CutSuffix(key, ".Key")
		if !isKey || !strings.HasPrefix(at, "TagSpecification.") {
			continue
		}
		spec, _, _ := strings.Cut(at, ".Tag.")
		resource := call.Get(spec + ".ResourceType")
		if out[resource] == nil {
			out[resource] = map[string]string{}
		}
		out[resource][values[0]] = call.Get(at + ".Value")
	}
	return out
}

// TestGuestShutdown: a machine that is to be parked, in whatever mode, survives that its guest
// powers itself off; any other ends with it. A hibernated machine whose hibernation fails is
// shut down by its guest.
func TestGuestShutdown(t *testing.T) {
	w := newWorld(t, nil)
	p, calls := w.recorded()
	for park, want := range map[nstance.ParkMode]string{"": "terminate", nstance.ParkStopped: "stop", nstance.ParkHibernated: "stop"} {
		s := w.spec()
		s.Park, s.Args = park, []byte(`{"volumes": [{"device": "/dev/xvda", "size_gib": 16, "encrypted": true}]}`)
		m, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		sent := (*calls)[len(*calls)-1]
		require.Equal(t, want, sent.Get("InstanceInitiatedShutdownBehavior"), "park %q", park)
		require.Equal(t, map[bool]string{true: "true"}[park == nstance.ParkHibernated], sent.Get("HibernationOptions.Configured"), "park %q", park)
		require.NotEmpty(t, m.ProviderID)
	}
}

func TestRepeatIsByteEqual(t *testing.T) {
	w := newWorld(t, nil)
	p, calls := w.recorded()
	s := w.spec()
	s.Args = []byte(`{"tags": {"b": "2", "a": "1", "c": "3", "Name": "web"}}`)
	for range 5 {
		_, err := p.Create(t.Context(), s)
		require.NoError(t, err)
	}
	require.Len(t, *calls, 5)
	for _, again := range *calls {
		require.Equal(t, (*calls)[0].Encode(), again.Encode())
	}
	require.Equal(t, s.Token, (*calls)[0].Get("ClientToken"))
	require.Len(t, w.cloud.Machines(), 1)
}

// TestLaunchRequest checks the request for each market and way of parking.
func TestLaunchRequest(t *testing.T) {
	w := newWorld(t, nil)
	p, calls := w.recorded()
	launch := func(change func(*nstance.MachineSpec)) url.Values {
		s := w.spec()
		change(&s)
		_, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		return (*calls)[len(*calls)-1]
	}
	onDemand := launch(func(s *nstance.MachineSpec) { s.MaxPrice = "0.5" })
	require.Equal(t, "1", onDemand.Get("MinCount"))
	require.Equal(t, "1", onDemand.Get("MaxCount"))
	require.Equal(t, "required", onDemand.Get("MetadataOptions.HttpTokens"))
	require.Equal(t, "terminate", onDemand.Get("InstanceInitiatedShutdownBehavior"))
	require.NotContains(t, onDemand.Encode(), "InstanceMarketOptions")
	require.NotContains(t, onDemand.Encode(), "Hibernation")

	spot := launch(func(s *nstance.MachineSpec) { s.Market, s.MaxPrice = nstance.Spot, "0.5" })
	for key, want := range map[string]string{
		"MarketType": "spot", "SpotOptions.SpotInstanceType": "one-time", "SpotOptions.InstanceInterruptionBehavior": "terminate", "SpotOptions.MaxPrice": "0.5",
	} {
		require.Equal(t, want, spot.Get("InstanceMarketOptions."+key), key)
	}

	parked := launch(func(s *nstance.MachineSpec) { s.Park = nstance.ParkStopped })
	require.Equal(t, "stop", parked.Get("InstanceInitiatedShutdownBehavior"))
	require.NotContains(t, parked.Encode(), "Hibernation")
}

// TestMarks: every resource of a launch has every mark.
func TestMarks(t *testing.T) {
	w := newWorld(t, nil)
	p, calls := w.recorded()
	s := w.spec()
	s.Market, s.Args = nstance.Spot, []byte(`{"tags": {"team": "x"}}`)
	_, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	got := tagged((*calls)[0])
	for _, resource := range []string{"instance", "volume", "network-interface", "spot-instances-request"} {
		require.Equal(t, map[string]string{
			"nstance:managed": "true", "nstance:instance-id": string(s.ID), "nstance:installation": "i1", "nstance:cluster-id": "c", "nstance:shard": "a",
			"nstance:tenant": "default", "nstance:group": "web", "nstance:kind": "tst", "nstance:created-at": s.CreatedAt.Format("2006-01-02T15:04:05.999999999Z07:00"),
			"nstance:epoch": "7", "team": "x",
		}, got[resource], resource)
	}
	require.Len(t, got, 4)
}

// TestOlderMachine checks the answers to a token that EC2 has seen with other
// parameters: a refusal, or the existing machine.
func TestOlderMachine(t *testing.T) {
	for name, answers := range map[string]bool{"refused": false, "answered": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &ec2test.Options{OldMachineOnMismatch: answers, NoTagsUnasked: answers})
			s := w.spec()
			made := w.create(s)
			for _, change := range []func(*nstance.MachineSpec){
				func(s *nstance.MachineSpec) { s.InstanceType = "c5.large" },
				func(s *nstance.MachineSpec) { s.Image = "ami-0abcdef1234567892" },
				func(s *nstance.MachineSpec) { s.Owner.Installation = "another" },
				func(s *nstance.MachineSpec) { s.Owner.Tenant = "another" },
			} {
				other := s
				change(&other)
				_, err := w.Create(t.Context(), other)
				w.refused(nstance.Conflict, err)
			}
			m, err := w.Get(t.Context(), s.ID)
			require.NoError(t, err)
			require.Equal(t, made.ProviderID, m.ProviderID)
			require.Len(t, w.cloud.Machines(), 1)
		})
	}
}

// TestTokenOfTerminatedMachine: its machine is lost, also for a repeat.
func TestTokenOfTerminatedMachine(t *testing.T) {
	w := newWorld(t, &ec2test.Options{Delays: testcloud.Delays{Linger: -1}})
	s := w.spec()
	m := w.create(s)
	require.NoError(t, w.cloud.Fail(m.ProviderID))
	_, err := w.Create(t.Context(), s)
	w.refused(nstance.Conflict, err)
	_, err = w.Get(t.Context(), s.ID)
	w.refused(nstance.NotFound, err)
	require.Equal(t, nstance.LossHost, nstance.LossCauseOf(err))
	require.Empty(t, w.cloud.Machines())
}

// TestLostAnswer: the machine exists, and a repeat returns it.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t, nil)
	s := w.spec()
	w.faults.Next("RunInstances", testcloud.Fault{Lost: testcloud.LostAnswer})
	_, err := w.Create(t.Context(), s)
	w.refused(nstance.Ambiguous, err)
	m, err := w.Get(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, m.ProviderID, w.create(s).ProviderID)
	require.Equal(t, 2, w.faults.Calls()["RunInstances"])
}

// TestCapacityIsRequestedOnce: the SDK's own retryer would call three times, and use up
// the rate limit.
func TestCapacityIsRequestedOnce(t *testing.T) {
	capacity := &testcloud.Capacity{}
	capacity.Set(testcloud.Shape{Type: "m5.large", Zone: region + "a"}, 0)
	w := newWorld(t, &ec2test.Options{Capacity: capacity})
	_, err := w.Create(t.Context(), w.spec())
	w.refused(nstance.Capacity, err)
	require.Equal(t, 1, w.faults.Calls()["RunInstances"])
}
