package gcp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestTypesThatCannotMove: machines of these types end when their host is maintained, in
// either market; all others move.
func TestTypesThatCannotMove(t *testing.T) {
	moves := map[string]bool{
		"e2-small": true, "n2-standard-2": true, "n1-standard-1": true,
		"g2-standard-4": false, "g4-standard-48": false, "a2-highgpu-1g": false, "a3-highgpu-8g": false, "a4-highgpu-8g": false, "ct5lp-hightpu-1t": false, // by the type's accelerators
		"h3-standard-88": false, "c3-standard-192-metal": false, // by the cloud's refusal
	}
	var types []gcetest.MachineType
	for name := range moves {
		types = append(types, gcetest.MachineType{Name: name, Arch: nstance.AMD64})
	}
	for name, moves := range moves {
		for _, market := range []nstance.MarketType{nstance.OnDemand, nstance.Spot} {
			t.Run(name+" "+string(market), func(t *testing.T) {
				_, url := serve(t, &gcetest.Options{Types: types})
				p := open(t, url, "")
				for range 2 {
					s := spec(t)
					s.InstanceType, s.Market = name, market
					_, err := p.Create(t.Context(), s)
					require.NoError(t, err)
					again, err := p.Create(t.Context(), s)
					require.NoError(t, err)
					require.Equal(t, s.ID, again.ID)
					want := "MIGRATE"
					if !moves || market == nstance.Spot {
						want = "TERMINATE"
					}
					require.Equal(t, want, onHostMaintenance(t, url, s.ID))
				}
			})
		}
	}
}

func onHostMaintenance(t *testing.T, url string, id nstance.InstanceID) string {
	t.Helper()
	var out struct {
		Scheduling struct{ OnHostMaintenance string }
	}
	require.Eventually(t, func() bool {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s/compute/v1/projects/%s/zones/%s/instances/%s", url, project, zone, id), nil)
		require.NoError(t, err)
		q.Header.Set("Authorization", "Bearer "+token)
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			return false
		}
		defer func() { _ = r.Body.Close() }()
		return r.StatusCode == http.StatusOK && json.NewDecoder(r.Body).Decode(&out) == nil
	}, time.Minute, time.Millisecond)
	return out.Scheduling.OnHostMaintenance
}

// TestTypeThatCannotBeRead: a create does not need the type's properties.
func TestTypeThatCannotBeRead(t *testing.T) {
	faults := &testcloud.Faults{}
	cloud, p := newCloud(t, &gcetest.Options{Types: []gcetest.MachineType{{Name: "g2-standard-4"}}, Faults: faults})
	faults.Next("machineTypes.get", testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"error": {"code": 403, "message": "Required 'compute.machineTypes.get' permission", "errors": [{"reason": "forbidden"}]}}`))
	}})
	s := spec(t)
	s.InstanceType = "g2-standard-4"
	_, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.Len(t, cloud.Machines(), 1)
}

func TestZones(t *testing.T) {
	for zone, region := range map[string]string{"us-central1-a": "us-central1", "us-central1-ai1a": "us-central1", "us-south1-ai1b": "us-south1", "europe-west12-c": "europe-west12"} {
		settings := provider.Settings{Zone: zone, Region: region, Options: []byte(`{"project": "test-project"}`)}
		require.NoError(t, gcp.Kind().Check(settings), zone)
		require.NoError(t, gcp.Kind().CheckSpec(settings, spec(t)), zone)
		settings.Region = "us-east1"
		require.Error(t, gcp.Kind().Check(settings), zone)
		cloud := gcetest.New(&gcetest.Options{Zones: []string{zone}, Token: token})
		server := httptest.NewServer(cloud)
		p, err := gcp.New(t.Context(), zone, &gcp.Options{Project: project, Endpoint: server.URL, HTTP: &http.Client{Transport: authorized{http.DefaultTransport, token}}})
		require.NoError(t, err)
		_, err = p.Create(t.Context(), spec(t))
		require.NoError(t, err, zone)
		server.Close()
		require.NoError(t, cloud.Close())
	}
	for _, zone := range []string{"", "us-central1", "us-central1-", "US-central1-a", "us-central1-a/b", "a"} {
		require.Error(t, gcp.Kind().Check(provider.Settings{Zone: zone, Options: []byte(`{"project": "test-project"}`)}), zone)
	}
}

// TestRefusedByType: what a machine type cannot have is refused by validation where it shows
// offline, and by the cloud.
func TestRefusedByType(t *testing.T) {
	for args, field := range map[string]string{
		`{"disk_type": "nonsense"}`:                                   "",
		`{"disk_type": "hyperdisk-balanced"}`:                         "args.disk_type",
		`{"disk_type": "hyperdisk-ml"}`:                               "args.disk_type",
		`{"disk_size_gb": 1}`:                                         "",
		`{"accelerators": [{"type": "nvidia-tesla-t4", "count": 1}]}`: "args.accelerators",
		`{"accelerators": [{"type": "nonsense", "count": 3}]}`:        "args.accelerators",
		`{"service_account": "nope@example.iam.gserviceaccount.com"}`: "",
		`{"min_cpu_platform": "Intel Ice Lake"}`:                      "args.min_cpu_platform",
		`{"nested_virtualization": true}`:                             "args.nested_virtualization",
		`{"threads_per_core": 1}`:                                     "args.threads_per_core",
		`{"graceful_shutdown": "100ms"}`:                              "args.graceful_shutdown",
		`{"network": "nope"}`:                                         "",
	} {
		t.Run(args, func(t *testing.T) {
			cloud, p := newCloud(t, nil)
			s := spec(t)
			s.Args = json.RawMessage(args)
			if strings.Contains(args, "network") {
				s.Subnet = ""
			}
			err := gcp.Kind().CheckSpec(provider.Settings{Zone: zone, Options: []byte(`{"project": "test-project"}`)}, s)
			if field == "" {
				require.NoError(t, err)
			} else {
				var e *nstance.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, field, e.Field)
				require.NotEmpty(t, e.Remedy)
			}
			_, err = p.Create(t.Context(), s)
			require.Equal(t, nstance.Invalid, nstance.CodeOf(err), "%v", err)
			require.Empty(t, cloud.Machines())
		})
	}
}

// TestRefusedOnceByAnotherClock: a create that is refused is sent once, wherever the cloud's
// clock is. TestFailedOperationIsSkipped has what is passed over.
func TestRefusedOnceByAnotherClock(t *testing.T) {
	for _, offset := range []time.Duration{-time.Hour, -5 * time.Second, 0, 5 * time.Second, time.Hour} {
		t.Run(offset.String(), func(t *testing.T) {
			inserts := 0
			cloud := gcetest.New(&gcetest.Options{ClockOffset: offset, Token: token})
			t.Cleanup(func() { require.NoError(t, cloud.Close()) })
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					inserts++
				}
				cloud.ServeHTTP(w, r)
			}))
			t.Cleanup(server.Close)
			none := gcetest.OperationError{Code: "ZONE_RESOURCE_POOL_EXHAUSTED", Message: "none left"}
			cloud.FailOperation("insert", none, none, none, none)
			_, err := open(t, server.URL, "").Create(t.Context(), spec(t))
			require.Equal(t, nstance.Capacity, nstance.CodeOf(err), "%v", err)
			require.Equal(t, 1, inserts)
		})
	}
}
