package gcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/gcp/internal/adc/adctest"
	"github.com/nstance-go/nstance/gcp/internal/discovery"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/provider/testcloud/inmemory"
)

// inBubble returns a cloud and its provider, for a synctest bubble.
func inBubble(t *testing.T, o *gcetest.Options, latency time.Duration) (*gcetest.Cloud, *gcp.Provider) {
	t.Helper()
	o.Token = token
	cloud := gcetest.New(o)
	t.Cleanup(func() { require.NoError(t, cloud.Close()) })
	p, err := gcp.New(t.Context(), zone, &gcp.Options{
		Project: project, HTTP: &http.Client{Transport: authorized{inmemory.Transport{Handler: discovery.Handler(t, cloud), Latency: latency}, token}},
	})
	require.NoError(t, err)
	return cloud, p
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestStockout: missing capacity is classified at the create, and in the operation after
// the machine was accepted.
func TestStockout(t *testing.T) {
	none := func() *testcloud.Capacity {
		c := &testcloud.Capacity{}
		c.Set(testcloud.Shape{Type: "e2-small", Zone: zone, Spot: true}, 0)
		return c
	}
	_, p := newCloud(t, &gcetest.Options{Capacity: none()})
	s := spec(t)
	s.Market = nstance.Spot
	_, err := p.Create(t.Context(), s)
	require.ErrorIs(t, err, nstance.Capacity)
	s.Market = nstance.OnDemand
	_, err = p.Create(t.Context(), s)
	require.NoError(t, err, "another market")

	synctest.Test(t, func(t *testing.T) {
		cloud, p := inBubble(t, &gcetest.Options{Capacity: none(), Delays: testcloud.Delays{Start: time.Second}}, 0)
		s := spec(t)
		s.Market = nstance.Spot
		m, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, nstance.StatusPending, m.Status)
		pass(time.Second)
		_, err = p.Get(t.Context(), s.ID)
		require.ErrorIs(t, err, nstance.NotFound)
		require.Equal(t, nstance.LossCapacity, nstance.LossCauseOf(err), "%v", err)
		require.Empty(t, cloud.Disks())
	})
}

// TestCauses checks the causes of failed accepted machines.
func TestCauses(t *testing.T) {
	for code, want := range map[string]nstance.LossCause{
		"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": nstance.LossCapacity, "IP_SPACE_EXHAUSTED": nstance.LossCapacity, "QUOTA_EXCEEDED": nstance.LossQuota,
		"INVALID_FIELD_VALUE": nstance.LossInvalid, "PERMISSIONS_ERROR": nstance.LossInvalid, "INTERNAL_ERROR": nstance.LossHost,
		"RESOURCE_OPERATION_RATE_EXCEEDED": nstance.LossThrottled, "SOMETHING_NEW": nstance.LossInvalid, "UNSUPPORTED_OPERATION": nstance.LossInvalid,
		"RESOURCE_ALREADY_EXISTS": nstance.LossRequested,
	} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cloud, p := inBubble(t, &gcetest.Options{Delays: testcloud.Delays{Start: time.Second}}, 0)
				cloud.FailOperation("insert", gcetest.OperationError{Code: code, Message: "No."})
				s := spec(t)
				_, err := p.Create(t.Context(), s)
				require.NoError(t, err)
				pass(time.Second)
				_, err = p.Get(t.Context(), s.ID)
				require.ErrorIs(t, err, nstance.NotFound)
				require.Equal(t, want, nstance.LossCauseOf(err))
			})
		})
	}
}

// TestReclaimed: the reclaim of a spot machine is reported as such, also when the
// machine is gone, and also after its delete.
func TestReclaimed(t *testing.T) {
	for _, args := range []string{`{}`, `{"termination_action": "STOP"}`, `{"spot_model": "PREEMPTIBLE"}`} {
		t.Run(args, func(t *testing.T) {
			cloud, p := newCloud(t, nil)
			s := spec(t)
			s.Market, s.Args = nstance.Spot, json.RawMessage(args)
			m, err := p.Create(t.Context(), s)
			require.NoError(t, err)
			require.NoError(t, cloud.Reclaim(cloud.Machines()[0].Handle, 0))
			if args != `{}` {
				m, err = p.Get(t.Context(), s.ID)
				require.NoError(t, err)
				require.True(t, m.Status.Dead())
				require.Equal(t, nstance.LossReclaimed, m.Cause)
				for m, err := range p.List(t.Context(), s.Owner) {
					require.NoError(t, err)
					require.Equal(t, nstance.LossReclaimed, m.Cause)
				}
				require.NoError(t, p.Delete(t.Context(), m))
			}
			_, err = p.Get(t.Context(), s.ID)
			require.ErrorIs(t, err, nstance.NotFound)
			require.Equal(t, nstance.LossReclaimed, nstance.LossCauseOf(err))
			require.Equal(t, nstance.LossReclaimed, nstance.LossCauseOf(p.Delete(t.Context(), m)))
			require.Empty(t, cloud.Disks())
		})
	}
	t.Run("host", func(t *testing.T) {
		cloud, p := newCloud(t, nil)
		s := spec(t)
		_, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		require.NoError(t, cloud.Fail(cloud.Machines()[0].Handle))
		m, err := p.Get(t.Context(), s.ID)
		require.NoError(t, err)
		require.Equal(t, nstance.LossHost, m.Cause)
	})
}

// TestScheduling checks the request for each market.
func TestScheduling(t *testing.T) {
	for name, c := range map[string]struct {
		market nstance.MarketType
		args   string
		warned time.Duration
		want   string
	}{
		"on-demand":   {nstance.OnDemand, `{}`, 0, `{"provisioningModel":"STANDARD","onHostMaintenance":"MIGRATE","automaticRestart":true}`},
		"spot":        {nstance.Spot, `{}`, 2 * time.Minute, `{"provisioningModel":"SPOT","preemptible":true,"automaticRestart":false,"onHostMaintenance":"TERMINATE","instanceTerminationAction":"DELETE","preemptionNoticeDuration":{"seconds":"120"}}`},
		"no notice":   {nstance.Spot, `{"preemption_notice":"0s","termination_action":"STOP"}`, 0, `{"provisioningModel":"SPOT","preemptible":true,"automaticRestart":false,"onHostMaintenance":"TERMINATE","instanceTerminationAction":"STOP"}`},
		"preemptible": {nstance.Spot, `{"spot_model":"PREEMPTIBLE"}`, 0, `{"provisioningModel":"STANDARD","preemptible":true,"automaticRestart":false,"onHostMaintenance":"TERMINATE"}`},
		"graceful":    {nstance.OnDemand, `{"graceful_shutdown":"1m","max_run_duration":"1h"}`, 0, `{"provisioningModel":"STANDARD","onHostMaintenance":"MIGRATE","automaticRestart":true,"instanceTerminationAction":"DELETE","maxRunDuration":{"seconds":"3600"},"gracefulShutdown":{"enabled":true,"maxDuration":{"seconds":"60"}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := serve(t, nil)
			p := open(t, url, "")
			s := spec(t)
			s.Market, s.Args = c.market, json.RawMessage(c.args)
			m, err := p.Create(t.Context(), s)
			require.NoError(t, err)
			require.Equal(t, c.market, m.Market)
			require.Equal(t, c.warned, m.ReclaimWarning)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/compute/v1/projects/"+project+"/zones/"+zone+"/instances/"+string(m.ID), nil)
			require.NoError(t, err)
			answer, err := authorized{http.DefaultTransport, token}.RoundTrip(r)
			require.NoError(t, err)
			defer answer.Body.Close()
			var i struct{ Scheduling json.RawMessage }
			require.NoError(t, json.NewDecoder(answer.Body).Decode(&i))
			require.JSONEq(t, c.want, string(i.Scheduling))
		})
	}
}

// TestLostAnswer: a create with a lost answer makes one machine.
func TestLostAnswer(t *testing.T) {
	faults := &testcloud.Faults{}
	cloud, p := newCloud(t, &gcetest.Options{Faults: faults})
	s := spec(t)
	faults.Next("instances.insert", testcloud.Fault{Lost: testcloud.LostRequest}, testcloud.Fault{Lost: testcloud.LostAnswer})
	_, err := p.Create(t.Context(), s)
	require.ErrorIs(t, err, nstance.Ambiguous)
	require.Empty(t, cloud.Machines())
	_, err = p.Create(t.Context(), s)
	require.ErrorIs(t, err, nstance.Ambiguous)
	require.Len(t, cloud.Machines(), 1)
	m, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, s.ID, m.ID)
	require.Len(t, cloud.Machines(), 1)
}

// TestFailedOperationIsSkipped: a create repeated after a failure is a new attempt; the
// cloud would return its failed operation for ever.
func TestFailedOperationIsSkipped(t *testing.T) {
	for _, offset := range []time.Duration{-time.Hour, 0, time.Hour} {
		t.Run(offset.String(), func(t *testing.T) { failedOperationIsSkipped(t, offset) })
	}
}

func failedOperationIsSkipped(t *testing.T, offset time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		cloud, p := inBubble(t, &gcetest.Options{ClockOffset: offset}, 0)
		internal := gcetest.OperationError{Code: "INTERNAL_ERROR", Message: "Internal error."}
		cloud.FailOperation("insert", internal, internal)
		s := spec(t)
		for range 2 {
			_, err := p.Create(t.Context(), s)
			require.ErrorIs(t, err, nstance.Unavailable)
			pass(time.Minute)
		}
		m, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		cloud.FailOperation("delete", internal)
		require.ErrorIs(t, p.Delete(t.Context(), m), nstance.Unavailable)
		pass(time.Minute)
		require.NoError(t, p.Delete(t.Context(), m))
		require.Empty(t, cloud.Machines())
		_, err = p.Create(t.Context(), s)
		require.ErrorIs(t, err, nstance.Conflict, "the machine existed and is gone")
		require.Empty(t, cloud.Machines())
	})
}

// TestUnseen: a machine that the cloud does not show yet is not gone.
func TestUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := inBubble(t, &gcetest.Options{Delays: testcloud.Delays{Visible: time.Minute, Start: time.Minute}}, 0)
		s := spec(t)
		m, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		require.ErrorIs(t, p.Delete(t.Context(), m), nstance.Unavailable)
		other := s
		other.InstanceType = "e2-standard-2"
		_, err = p.Create(t.Context(), other)
		require.ErrorIs(t, err, nstance.Conflict)
		pass(time.Minute)
		require.NoError(t, p.Delete(t.Context(), m))
		require.ErrorIs(t, p.Delete(t.Context(), m), nstance.NotFound)
	})
}

// TestMadeAndNotShown: a machine whose create the cloud has carried out, and that it does not show
// yet, is not gone.
func TestMadeAndNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := inBubble(t, &gcetest.Options{Delays: testcloud.Delays{Visible: 20 * time.Second}}, 0)
		s := spec(t)
		for range 2 {
			m, err := p.Create(t.Context(), s)
			require.NoError(t, err)
			require.Equal(t, nstance.StatusPending, m.Status)
		}
		pass(20 * time.Second)
		_, err := p.Get(t.Context(), s.ID)
		require.NoError(t, err)
	})
}

// TestDeletedAtOnce: a machine with time to shut down has been drained, and is deleted without it.
func TestDeletedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, p := inBubble(t, &gcetest.Options{}, 0)
		s := spec(t)
		s.Args = json.RawMessage(`{"graceful_shutdown": "1h"}`)
		m, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		pass(time.Second)
		require.NoError(t, p.Delete(t.Context(), m))
		pass(time.Second)
		require.Empty(t, cloud.Machines())
	})
}

// TestDeletedWhileBooting: a machine deleted while it boots is gone, not pending for
// ever.
func TestDeletedWhileBooting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := inBubble(t, &gcetest.Options{Delays: testcloud.Delays{Start: time.Minute, Delete: time.Second}}, 0)
		m, err := p.Create(t.Context(), spec(t))
		require.NoError(t, err)
		require.NoError(t, p.Delete(t.Context(), m))
		require.NoError(t, p.Delete(t.Context(), m), "again while it is under way")
		pass(time.Second)
		require.ErrorIs(t, p.Delete(t.Context(), m), nstance.NotFound)
	})
}

// TestForeign404 checks that only the machine's own path is absent.
func TestForeign404(t *testing.T) {
	faults := &testcloud.Faults{}
	_, p := newCloud(t, &gcetest.Options{Faults: faults})
	m, err := p.Create(t.Context(), spec(t))
	require.NoError(t, err)
	for _, text := range []string{"projects/test-project", "projects/other/zones/us-central1-a/instances/" + string(m.ID), "projects/test-project/zones/us-central1-b/instances/" + string(m.ID)} {
		answer := testcloud.Fault{Answer: gcetest.Refuse(http.StatusNotFound, "notFound", "The resource '"+text+"' was not found")}
		faults.Next("instances.get", answer, answer)
		_, err = p.Get(t.Context(), m.ID)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorIs(t, p.Delete(t.Context(), m), nstance.Invalid)
	}
}

// TestIncompleteList: an incomplete list is an error.
func TestIncompleteList(t *testing.T) {
	faults := &testcloud.Faults{}
	_, p := newCloud(t, &gcetest.Options{Faults: faults})
	for warning, want := range map[string]nstance.Code{"UNREACHABLE": nstance.Unavailable, "PARTIAL_SUCCESS": nstance.Unavailable, "LIST_OVERHEAD_QUOTA_EXCEED": nstance.Throttled, "NO_RESULTS_ON_PAGE": ""} {
		faults.Next("instances.list", testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"kind":"compute#instanceList","warning":{"code":"` + warning + `","message":"x"}}`))
		}})
		var err error
		for _, err = range p.List(t.Context(), spec(t).Owner) {
			require.Error(t, err)
		}
		require.Equal(t, want, nstance.CodeOf(err), warning)
	}
}

// TestIncompletePage: a list is incomplete when any of its pages is, the last one or not.
func TestIncompletePage(t *testing.T) {
	faults := &testcloud.Faults{}
	_, p := newCloud(t, &gcetest.Options{Faults: faults})
	m, err := p.Create(t.Context(), spec(t))
	require.NoError(t, err)
	for warning, want := range map[string]nstance.Code{"UNREACHABLE": nstance.Unavailable, "PARTIAL_SUCCESS": nstance.Unavailable, "LIST_OVERHEAD_QUOTA_EXCEED": nstance.Throttled, "NO_RESULTS_ON_PAGE": ""} {
		faults.Next("instances.list", testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"kind":"compute#instanceList","items":[{"name":"a"}],"nextPageToken":"YQ","warning":{"code":"` + warning + `","message":"x"}}`))
		}})
		var listed []nstance.InstanceID
		var last error
		for got, err := range p.List(t.Context(), m.Owner) {
			if last = err; err == nil {
				listed = append(listed, got.ID)
			}
		}
		require.Equal(t, want, nstance.CodeOf(last), warning)
		if want == "" {
			require.Equal(t, []nstance.InstanceID{m.ID}, listed, "the second page counts too")
		}
	}
}

// TestListEnds: a hanging list ends with its caller's context, unlike the SDK's own.
func TestListEnds(t *testing.T) {
	faults := &testcloud.Faults{}
	_, p := newCloud(t, &gcetest.Options{Faults: faults})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	faults.Next("instances.list", testcloud.Fault{Wait: make(chan struct{})})
	var err error
	for _, err = range p.List(ctx, spec(t).Owner) {
		require.Error(t, err)
	}
	require.ErrorIs(t, err, nstance.Unavailable)
}

// TestCopies: a machine with our labels under another name is foreign.
func TestCopies(t *testing.T) {
	cloud, url := serve(t, nil)
	p := open(t, url, "")
	s := spec(t)
	_, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	labels, err := json.Marshal(map[string]string{
		"nstance-managed": "true", "nstance-instance-id": string(s.ID), "nstance-installation": s.Owner.Installation,
		"nstance-cluster-id": string(s.Owner.Cluster), "nstance-shard": string(s.Owner.Shard), "nstance-tenant": string(s.Owner.Tenant),
	})
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/compute/v1/projects/"+project+"/zones/"+zone+"/instances", strings.NewReader(`{
		"name": "copy", "machineType": "zones/us-central1-a/machineTypes/e2-small", "labels": `+string(labels)+`,
		"disks": [{"boot": true, "initializeParams": {"sourceImage": "`+image+`"}}], "networkInterfaces": [{}]}`))
	require.NoError(t, err)
	answer, err := authorized{http.DefaultTransport, token}.RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Len(t, cloud.Machines(), 2)
	n := 0
	for m, err := range p.List(t.Context(), s.Owner) {
		require.NoError(t, err)
		require.Equal(t, s.ID, m.ID)
		n++
	}
	require.Equal(t, 1, n)
}

// TestPark checks stopping, suspending and waking.
func TestPark(t *testing.T) {
	capacity := &testcloud.Capacity{}
	cloud, p := newCloud(t, &gcetest.Options{Capacity: capacity})
	for _, mode := range p.ParkModes() {
		m, err := p.Create(t.Context(), spec(t))
		require.NoError(t, err)
		for range 2 { // parked, woken, and once more
			require.NoError(t, p.Park(t.Context(), m, mode))
			require.NoError(t, p.Park(t.Context(), m, mode), "again")
			found, err := p.Get(t.Context(), m.ID)
			require.NoError(t, err)
			require.Equal(t, nstance.StatusStopped, found.Status)
			require.Equal(t, nstance.LossRequested, found.Cause)
			require.NoError(t, p.Wake(t.Context(), m))
			require.NoError(t, p.Wake(t.Context(), m), "again")
			found, err = p.Get(t.Context(), m.ID)
			require.NoError(t, err)
			require.Equal(t, nstance.StatusRunning, found.Status)
		}
		require.NoError(t, p.Park(t.Context(), m, mode))
		cloud.FailOperation(map[nstance.ParkMode]string{nstance.ParkStopped: "start", nstance.ParkHibernated: "resume"}[mode], gcetest.OperationError{Code: "ZONE_RESOURCE_POOL_EXHAUSTED", Message: "x"})
		require.ErrorIs(t, p.Wake(t.Context(), m), nstance.Capacity)
		found, err := p.Get(t.Context(), m.ID)
		require.NoError(t, err)
		require.Equal(t, nstance.LossCapacity, found.Cause)
		gone := m
		gone.ID = spec(t).ID
		gone.ProviderID = ""
		require.ErrorIs(t, p.Park(t.Context(), gone, mode), nstance.NotFound)
		require.ErrorIs(t, p.Wake(t.Context(), gone), nstance.NotFound)
		other := m
		other.Owner.Tenant = "other"
		require.ErrorIs(t, p.Park(t.Context(), other, mode), nstance.Conflict)
	}
	s := spec(t)
	s.Market = nstance.Spot
	m, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.ErrorIs(t, p.Park(t.Context(), m, nstance.ParkStopped), nstance.Invalid)
}

func TestConsole(t *testing.T) {
	cloud, p := newCloud(t, nil)
	m, err := p.Create(t.Context(), spec(t))
	require.NoError(t, err)
	out, err := p.ConsoleOutput(t.Context(), m)
	require.NoError(t, err)
	require.Contains(t, string(out), "Booting "+string(m.ID))
	require.NoError(t, cloud.Print(cloud.Machines()[0].Handle, strings.Repeat("x", clip.MaxConsole)+"end"))
	out, err = p.ConsoleOutput(t.Context(), m)
	require.NoError(t, err)
	require.Len(t, out, clip.MaxConsole)
	require.True(t, strings.HasSuffix(string(out), "xend"))
	require.NoError(t, p.Delete(t.Context(), m))
	_, err = p.ConsoleOutput(t.Context(), m)
	require.ErrorIs(t, err, nstance.NotFound)
}

func TestNoToken(t *testing.T) {
	adctest.CheckNoToken(t, func(file string) func(context.Context) error {
		p, err := gcp.New(t.Context(), zone, &gcp.Options{Project: project, CredentialsFile: file})
		require.NoError(t, err)
		return func(ctx context.Context) error {
			_, err := p.Get(ctx, spec(t).ID)
			return err
		}
	})
}

// TestCredentialsFile: a service account's key is used, and invalid files are refused.
func TestCredentialsFile(t *testing.T) {
	cloud := gcetest.New(&gcetest.Options{Account: "nstance@test-project.iam.gserviceaccount.com"})
	t.Cleanup(func() { require.NoError(t, cloud.Close()) })
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	connect := func(key []byte) error {
		file := t.TempDir() + "/key.json"
		writeFile(t, file, key)
		p, err := gcp.New(t.Context(), zone, &gcp.Options{Project: project, Endpoint: server.URL, CredentialsFile: file})
		if err != nil {
			return err
		}
		_, err = p.Create(t.Context(), spec(t))
		return err
	}
	require.NoError(t, connect(cloud.KeyFile(server.URL)))
	other := gcetest.New(&gcetest.Options{Account: "nstance@test-project.iam.gserviceaccount.com"})
	require.ErrorIs(t, connect(other.KeyFile(server.URL)), nstance.Denied)
	require.ErrorIs(t, connect([]byte(`{"type": "something"}`)), nstance.Invalid)
	require.ErrorIs(t, connect([]byte(`type`)), nstance.Invalid)
}

// TestCreateAtOnce: 100 simultaneous creates take as long as one.
func TestCreateAtOnce(t *testing.T) {
	d := createAtOnce(t)
	t.Logf("100 creates with calls of 200 ms: %s", d)
	require.Less(t, d, time.Second)
}

// createAtOnce creates 100 machines at once and returns the duration.
func createAtOnce(t *testing.T) (d time.Duration) {
	var specs []nstance.MachineSpec
	for range 100 {
		specs = append(specs, spec(t))
	}
	synctest.Test(t, func(t *testing.T) {
		cloud := gcetest.New(&gcetest.Options{Token: token, Delays: testcloud.Delays{Start: 20 * time.Second}, Mutations: 1500, Reads: 1500})
		t.Cleanup(func() { require.NoError(t, cloud.Close()) })
		inner, err := gcp.New(t.Context(), zone, &gcp.Options{
			Project: project, HTTP: &http.Client{Transport: authorized{inmemory.Transport{Handler: cloud, Latency: 200 * time.Millisecond}, token}},
		})
		require.NoError(t, err)
		kind := gcp.Kind()
		p, err := provider.New(inner, &provider.Options{Rate: kind.Rate, Burst: kind.Burst, MaxUserData: kind.MaxUserData})
		require.NoError(t, err)
		start := time.Now()
		var wg sync.WaitGroup
		for _, s := range specs {
			ok, _ := p.Reserve(time.Now())
			require.True(t, ok, "the budget permits 100 at once")
			wg.Go(func() {
				_, err := p.Create(t.Context(), s)
				require.NoError(t, err)
			})
		}
		wg.Wait()
		d = time.Since(start)
		require.Len(t, cloud.Machines(), 100)
	})
	return d
}

func writeFile(t *testing.T, file string, b []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, b, 0o600))
}
