package gcp_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/provider/testcloud/inmemory"
)

const (
	second       = "us-central1-b"
	secondSubnet = "default?zone=" + second
)

// A zoneOutage is a network in which one zone may not answer: calls fail, or hang until their
// callers leave.
type zoneOutage struct {
	base  http.RoundTripper
	down  atomic.Value // a zone
	hangs atomic.Bool

	calls     atomic.Int64 // all of them
	crashAt   int64        // the call at which the process ends; 0: none
	delivered bool         // whether that call arrives
}

// errCrashed is what the calls of a process that has ended return.
var errCrashed = errors.New("the process has ended")

func (z *zoneOutage) RoundTrip(r *http.Request) (*http.Response, error) {
	switch n := z.calls.Add(1); {
	case z.crashAt == 0 || n < z.crashAt:
	case n == z.crashAt && z.delivered:
		if answer, err := z.base.RoundTrip(r); err == nil {
			_ = answer.Body.Close()
		}
		return nil, errCrashed
	default:
		return nil, errCrashed
	}
	down, _ := z.down.Load().(string)
	if down == "" || !strings.Contains(r.URL.Path, "/zones/"+down+"/") {
		return z.base.RoundTrip(r)
	}
	if z.hangs.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return inmemory.Transport{Handler: gcetest.Refuse(http.StatusServiceUnavailable, "backendError", "zone "+down+" is down")}.RoundTrip(r)
}

func (z *zoneOutage) crashed() bool { return z.crashAt > 0 && z.calls.Load() >= z.crashAt }

// A twoZones is a cloud, and the providers of one shard that has both of its zones.
type twoZones struct {
	t      *testing.T
	cloud  *gcetest.Cloud
	outage *zoneOutage
	faults *testcloud.Faults
	*gcp.Provider
}

func newTwoZones(t *testing.T, o *gcetest.Options) *twoZones {
	t.Helper()
	o.Token, o.Faults = token, &testcloud.Faults{}
	cloud := gcetest.New(o)
	t.Cleanup(func() { require.NoError(t, cloud.Close()) })
	w := &twoZones{t: t, cloud: cloud, faults: o.Faults, outage: &zoneOutage{base: authorized{inmemory.Transport{Handler: cloud}, token}}}
	w.restart()
	return w
}

// restart replaces the provider by one that remembers nothing.
func (w *twoZones) restart() { w.Provider = w.of(zone, second) }

func (w *twoZones) of(own string, further ...string) *gcp.Provider {
	w.t.Helper()
	p, err := gcp.New(w.t.Context(), own, &gcp.Options{Project: project, Zones: further, HTTP: &http.Client{Transport: w.outage}})
	require.NoError(w.t, err)
	return p
}

func specIn(t *testing.T, subnet string) nstance.MachineSpec {
	t.Helper()
	s := spec(t)
	s.Subnet = subnet
	return s
}

func inTwoZones(t *testing.T, o *gcetest.Options, test func(w *twoZones)) {
	synctest.Test(t, func(t *testing.T) { test(newTwoZones(t, o)) })
}

// TestMachinesOfTwoZones: a machine is in the zone of its subnet, found by its ID alone, and
// handled there, also by a provider that has not made it.
func TestMachinesOfTwoZones(t *testing.T) {
	inTwoZones(t, &gcetest.Options{Delays: testcloud.Delays{Stop: time.Millisecond}}, func(w *twoZones) {
		ctx := w.t.Context()
		for subnet, in := range map[string]string{"default": zone, secondSubnet: second, "projects/" + project + "/regions/us-central1/" + "subnetworks/" + secondSubnet: second} {
			s := specIn(w.t, subnet)
			made, err := w.Create(ctx, s)
			require.NoError(w.t, err)
			require.Equal(w.t, in, made.Zone)
			require.Equal(w.t, "gce://"+project+"/"+in+"/"+string(s.ID), made.ProviderID)
			again, err := w.Create(ctx, s)
			require.NoError(w.t, err)
			require.Equal(w.t, made.ProviderID, again.ProviderID)
			w.restart()
			found, err := w.Get(ctx, s.ID)
			require.NoError(w.t, err)
			require.Equal(w.t, made.ProviderID, found.ProviderID)
			require.Equal(w.t, in, w.cloud.Machines()[0].Zone)
			require.NoError(w.t, w.Park(ctx, found, nstance.ParkStopped))
			pass(time.Second)
			require.NoError(w.t, w.Wake(ctx, found))
			_, err = w.ConsoleOutput(ctx, found)
			require.NoError(w.t, err)
			require.NoError(w.t, w.Delete(ctx, nstance.Machine{ID: s.ID, Owner: s.Owner}), "without a handle")
			pass(time.Second)
			require.ErrorIs(w.t, w.Delete(ctx, found), nstance.NotFound)
			require.Empty(w.t, w.cloud.Machines())
		}
	})
}

// TestZoneDown: while a zone does not answer, machines of the others are seen and made, and
// no machine is absent, also to a provider that remembers nothing.
func TestZoneDown(t *testing.T) {
	for _, down := range []string{zone, second} {
		for _, hangs := range []bool{false, true} {
			inTwoZones(t, &gcetest.Options{}, func(w *twoZones) {
				up, upSubnet, downSubnet := zone, "default", secondSubnet
				if down == zone {
					up, upSubnet, downSubnet = second, secondSubnet, "default"
				}
				there, lost := specIn(w.t, upSubnet), specIn(w.t, downSubnet)
				for _, s := range []nstance.MachineSpec{there, lost} {
					_, err := w.Create(w.t.Context(), s)
					require.NoError(w.t, err)
				}
				w.restart()
				client, err := provider.New(w.Provider, &provider.Options{Timeout: 10 * time.Second})
				require.NoError(w.t, err)
				w.outage.down.Store(down)
				w.outage.hangs.Store(hangs)

				var listed []string
				for m, err := range client.List(w.t.Context(), there.Owner) {
					if err != nil {
						require.ErrorIs(w.t, err, nstance.Unavailable)
						listed = append(listed, "error")
						continue
					}
					listed = append(listed, m.Zone)
				}
				require.Equal(w.t, []string{up, "error"}, listed)
				_, err = client.Get(w.t.Context(), there.ID)
				require.NoError(w.t, err)
				for _, id := range []nstance.InstanceID{lost.ID, spec(w.t).ID} {
					_, err = client.Get(w.t.Context(), id)
					require.ErrorIs(w.t, err, nstance.Unavailable)
					require.Error(w.t, client.Delete(w.t.Context(), nstance.Machine{ID: id, Owner: lost.Owner}))
					require.NotErrorIs(w.t, client.Delete(w.t.Context(), nstance.Machine{ID: id, Owner: lost.Owner}), nstance.NotFound)
				}
				m, err := client.Create(w.t.Context(), specIn(w.t, upSubnet))
				require.NoError(w.t, err, "a zone that is down keeps no machine from the others")
				require.NoError(w.t, client.Delete(w.t.Context(), m))

				w.outage.down.Store("")
				_, err = client.Get(w.t.Context(), lost.ID)
				require.NoError(w.t, err)
			})
		}
	}
}

// TestMachinesUnread: a machine whose zone answers everything but reads of machines is not absent,
// whether or not it is known to be there.
func TestMachinesUnread(t *testing.T) {
	for _, known := range []bool{true, false} {
		inTwoZones(t, &gcetest.Options{}, func(w *twoZones) {
			s := specIn(w.t, secondSubnet)
			_, err := w.Create(w.t.Context(), s)
			require.NoError(w.t, err)
			if !known {
				w.restart()
			}
			w.faults.All("instances.get", testcloud.Fault{Answer: func(rw http.ResponseWriter, r *http.Request) {
				status, reason, message := http.StatusServiceUnavailable, "backendError", "No."
				if _, path, _ := strings.Cut(r.URL.Path, "/v1/"); strings.Contains(path, zone) {
					status, reason, message = http.StatusNotFound, "notFound", "The resource '"+path+"' was not found"
				}
				gcetest.Refuse(status, reason, message)(rw, r)
			}})
			m := nstance.Machine{ID: s.ID, Owner: s.Owner}
			_, err = w.Get(w.t.Context(), s.ID)
			require.ErrorIs(w.t, err, nstance.Unavailable)
			require.ErrorIs(w.t, w.Delete(w.t.Context(), m), nstance.Unavailable)
			require.ErrorIs(w.t, w.Wake(w.t.Context(), m), nstance.Unavailable)
		})
	}
}

// TestOneMachineOfAnID: an ID that is retried in another zone makes no second machine, whatever
// became of the first create.
func TestOneMachineOfAnID(t *testing.T) {
	elsewhere := func(s nstance.MachineSpec) nstance.MachineSpec {
		s.Subnet, s.Token = secondSubnet, s.Token+"-2"
		return s
	}
	for name, c := range map[string]struct {
		before func(w *twoZones)
		retry  func(w *twoZones)
		want   nstance.Code // of the retry; empty: it makes the machine
	}{
		"the machine is there":       {retry: func(*twoZones) {}, want: nstance.Conflict},
		"and the process is another": {retry: func(w *twoZones) { w.restart() }, want: nstance.Conflict},
		"the answer was lost":        {before: func(w *twoZones) { w.faults.Next("instances.insert", testcloud.Fault{Lost: testcloud.LostAnswer}) }, retry: func(*twoZones) {}, want: nstance.Conflict},
		"the request was lost":       {before: func(w *twoZones) { w.faults.Next("instances.insert", testcloud.Fault{Lost: testcloud.LostRequest}) }, retry: func(*twoZones) {}},
		"it is not shown yet":        {before: func(w *twoZones) { w.cloud.SetDelays(testcloud.Delays{Visible: time.Minute, Start: time.Minute}) }, retry: func(*twoZones) {}, want: nstance.Ambiguous},
		"the zone does not answer":   {retry: func(w *twoZones) { w.outage.down.Store(zone) }, want: nstance.Ambiguous},
		"the zone has no capacity":   {before: func(w *twoZones) { w.noCapacity() }, retry: func(*twoZones) {}},
		"it was refused later": {before: func(w *twoZones) {
			w.cloud.FailOperation("insert", gcetest.OperationError{Code: "ZONE_RESOURCE_POOL_EXHAUSTED", Message: "No."})
		}, retry: func(*twoZones) {}},
		"the operations are not read": {before: func(w *twoZones) { w.faults.Next("instances.insert", testcloud.Fault{Lost: testcloud.LostRequest}) }, retry: func(w *twoZones) {
			w.faults.Next("zoneOperations.list", testcloud.Fault{Answer: gcetest.Refuse(500, "backendError", "No.")})
		}, want: nstance.Ambiguous},
	} {
		t.Run(name, func(t *testing.T) {
			inTwoZones(t, &gcetest.Options{Capacity: &testcloud.Capacity{}}, func(w *twoZones) {
				if c.before != nil {
					c.before(w)
				}
				s := specIn(w.t, "default")
				_, _ = w.Create(w.t.Context(), s) // what it answers is what the caller may not have read
				synctest.Wait()
				c.retry(w)
				m, err := w.Create(w.t.Context(), elsewhere(s))
				w.outage.down.Store("")
				if c.want == "" {
					require.NoError(w.t, err)
					require.Equal(w.t, second, m.Zone)
				} else {
					require.ErrorIs(w.t, err, c.want)
				}
				pass(2 * time.Minute)
				require.LessOrEqual(w.t, len(w.cloud.Machines()), 1)
				if c.want == "" {
					m, err = w.Get(w.t.Context(), s.ID)
					require.NoError(w.t, err)
					require.Equal(w.t, second, m.Zone)
				}
			})
		})
	}
}

func (w *twoZones) noCapacity() {
	w.faults.Next("instances.insert", testcloud.Fault{Answer: gcetest.Refuse(503, "insufficientCapacity", "The zone does not have enough resources available.")})
}

// untilDeleted makes the machine of s as the reconciler does, in the other zone when it is
// not there after a consistency window, and deletes it. It returns when a call has failed.
func (w *twoZones) untilDeleted(s nstance.MachineSpec, repeated bool) error {
	ctx := w.t.Context()
	var m nstance.Machine
	var err error
	if repeated {
		for absent := 0; absent < 2; pass(time.Minute) { // one absence is no proof
			if m, err = w.Get(ctx, s.ID); nstance.CodeOf(err) == nstance.NotFound {
				absent++
			} else if nstance.CodeOf(err) != nstance.Unavailable {
				break
			}
		}
		s.Subnet = secondSubnet
	}
	if !repeated || nstance.CodeOf(err) == nstance.NotFound && nstance.LossCauseOf(err) == "" {
		m, err = w.Create(ctx, s)
	}
	for tries := 0; err == nil || tries < 10 && nstance.CodeOf(err) == nstance.Unavailable && !w.outage.crashed(); tries++ {
		require.LessOrEqual(w.t, len(w.cloud.Machines()), 1)
		err = w.Delete(ctx, m)
		pass(10 * time.Second)
	}
	if nstance.CodeOf(err) == nstance.NotFound {
		return nil
	}
	return err
}

// TestCrashAtEachCall ends the process at each call in turn, before and after it arrives. The
// next process retries in the other zone: there is one machine at most, and none is left.
func TestCrashAtEachCall(t *testing.T) {
	plain := int64(0)
	for at := int64(0); at <= plain; at++ {
		for _, delivered := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, delivered %t", at, delivered), func(t *testing.T) {
				inTwoZones(t, &gcetest.Options{Delays: testcloud.Delays{Start: 5 * time.Second, Visible: time.Second, Delete: 5 * time.Second}}, func(w *twoZones) {
					w.outage.crashAt, w.outage.delivered = at, delivered
					s := specIn(w.t, "default")
					err := w.untilDeleted(s, false)
					if at == 0 {
						require.NoError(w.t, err)
						plain = w.outage.calls.Load()
					}
					w.restart()
					w.outage.crashAt = 0
					require.NoError(w.t, w.untilDeleted(s, true))
					require.Empty(w.t, w.cloud.Machines())
					require.Empty(w.t, w.cloud.Disks())
				})
			})
		}
	}
	require.Greater(t, plain, int64(5))
}

// TestAbsenceWhileStarting: a machine that one zone is making and does not show is not absent
// from a shard with several zones: it could be made in another.
func TestAbsenceWhileStarting(t *testing.T) {
	inTwoZones(t, &gcetest.Options{Delays: testcloud.Delays{Visible: time.Minute, Start: time.Minute}}, func(w *twoZones) {
		s := specIn(w.t, secondSubnet)
		_, err := w.Create(w.t.Context(), s)
		require.NoError(w.t, err)
		w.restart()
		_, err = w.Get(w.t.Context(), s.ID)
		require.ErrorIs(w.t, err, nstance.Unavailable)
		pass(2 * time.Minute)
		_, err = w.Get(w.t.Context(), s.ID)
		require.NoError(w.t, err)
	})
}

// TestCauseFromItsZone: why a machine is gone is read in the zone that was asked for it last.
func TestCauseFromItsZone(t *testing.T) {
	inTwoZones(t, &gcetest.Options{}, func(w *twoZones) {
		w.cloud.FailOperation("insert", gcetest.OperationError{Code: "QUOTA_EXCEEDED", Message: "No."})
		s := specIn(w.t, "default")
		_, err := w.Create(w.t.Context(), s)
		require.Error(w.t, err)
		pass(5 * time.Second)
		s.Subnet, s.Market = secondSubnet, nstance.Spot
		m, err := w.Create(w.t.Context(), s)
		require.NoError(w.t, err)
		require.NoError(w.t, w.cloud.Reclaim(w.cloud.Machines()[0].Handle, 0))
		pass(time.Second)
		_, err = w.Get(w.t.Context(), s.ID)
		require.ErrorIs(w.t, err, nstance.NotFound)
		require.Equal(w.t, nstance.LossReclaimed, nstance.LossCauseOf(err))
		require.ErrorIs(w.t, w.Delete(w.t.Context(), m), nstance.NotFound)
	})
}

// TestReclaimsOfTwoZones: a list says of each zone's dead machines that they were reclaimed.
func TestReclaimsOfTwoZones(t *testing.T) {
	inTwoZones(t, &gcetest.Options{PageSize: 2}, func(w *twoZones) {
		var owner nstance.Owner
		for _, subnet := range []string{"default", secondSubnet, "default", secondSubnet, secondSubnet} {
			s := specIn(w.t, subnet)
			s.Market, s.Args, owner = nstance.Spot, []byte(`{"termination_action": "STOP"}`), s.Owner
			_, err := w.Create(w.t.Context(), s)
			require.NoError(w.t, err)
		}
		for _, m := range w.cloud.Machines() {
			require.NoError(w.t, w.cloud.Reclaim(m.Handle, 0))
		}
		pass(time.Second)
		n := 0
		for m, err := range w.List(w.t.Context(), owner) {
			require.NoError(w.t, err)
			require.Equal(w.t, nstance.LossReclaimed, m.Cause)
			n++
		}
		require.Equal(w.t, 5, n)
		for range w.List(w.t.Context(), owner) {
			break // and nothing is left running: the bubble would not end
		}
	})
}

// TestOtherZones: machines of a zone that the provider has not are neither touched nor absent.
func TestOtherZones(t *testing.T) {
	inTwoZones(t, &gcetest.Options{}, func(w *twoZones) {
		m, err := w.Create(w.t.Context(), specIn(w.t, secondSubnet))
		require.NoError(w.t, err)
		require.ErrorIs(w.t, w.of(zone).Delete(w.t.Context(), m), nstance.Conflict)
		require.Len(w.t, w.cloud.Machines(), 1)
	})
}

// TestAccountOfZones: a shard of one zone keeps its account, and all servers of a shard have
// the same.
func TestAccountOfZones(t *testing.T) {
	w := newTwoZones(t, &gcetest.Options{})
	for want, providers := range map[string][]*gcp.Provider{
		"projects/test-project/zones/us-central1-a":                                           {w.of(zone), w.of(zone, zone)},
		"projects/test-project/zones/us-central1-a,projects/test-project/zones/us-central1-b": {w.of(zone, second), w.of(second, zone), w.of(zone, second, zone)},
	} {
		for _, p := range providers {
			account, err := p.Account(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, account)
		}
	}
}

// TestSubnetsOfZones: the entry of a pool says the zone, and addresses are those of the subnet.
func TestSubnetsOfZones(t *testing.T) {
	w := newTwoZones(t, &gcetest.Options{})
	entries := []string{"default", secondSubnet, "default?zone=us-central1-z", "default?in=" + zone}
	zones, err := w.SubnetZones(t.Context(), entries)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"default": zone, secondSubnet: second}, zones)
	free, err := w.FreeAddresses(t.Context(), entries[:2])
	require.NoError(t, err)
	require.Equal(t, map[string]int{"default": 4092, secondSubnet: 4092}, free)
	require.Equal(t, 1, w.faults.Calls()["subnetworks.get"])
}

// TestGroupsOfZones: a load balancer has one group in each zone.
func TestGroupsOfZones(t *testing.T) {
	groups := []gcetest.Group{{Name: "web", Zone: zone, Type: "GCE_VM_IP"}, {Name: "web", Zone: second, Type: "GCE_VM_IP"}, {Name: "half", Zone: zone, Type: "GCE_VM_IP"}}
	inTwoZones(t, &gcetest.Options{Groups: groups, Delays: testcloud.Delays{Stop: time.Millisecond}}, func(w *twoZones) {
		ctx := w.t.Context()
		first, err := w.Create(ctx, specIn(w.t, "default"))
		require.NoError(w.t, err)
		other, err := w.Create(ctx, specIn(w.t, secondSubnet))
		require.NoError(w.t, err)
		both := []nstance.Machine{first, other}
		web, half := nstance.LoadBalancer{Name: "web", ID: "web"}, nstance.LoadBalancer{Name: "half", ID: "half"}
		require.NoError(w.t, w.JoinBalancer(ctx, web, both))
		members, err := w.BalancerMembers(ctx, web)
		require.NoError(w.t, err)
		require.ElementsMatch(w.t, []string{first.ProviderID, other.ProviderID}, members)

		w.outage.down.Store(second)
		require.ErrorIs(w.t, w.LeaveBalancer(ctx, web, both), nstance.Unavailable)
		_, err = w.BalancerMembers(ctx, web)
		require.ErrorIs(w.t, err, nstance.Unavailable)
		w.outage.down.Store("")
		members, err = w.BalancerMembers(ctx, web)
		require.NoError(w.t, err)
		require.Equal(w.t, []string{other.ProviderID}, members, "the zone that answers was left")

		err = w.JoinBalancer(ctx, half, both)
		require.ErrorIs(w.t, err, nstance.NotFound)
		require.ErrorContains(w.t, err, second+"/networkEndpointGroups/half")
		members, err = w.BalancerMembers(ctx, half)
		require.NoError(w.t, err)
		require.Equal(w.t, []string{first.ProviderID}, members)
		_, err = w.BalancerMembers(ctx, nstance.LoadBalancer{Name: "none", ID: "none"})
		require.ErrorIs(w.t, err, nstance.NotFound)
		_, err = w.BalancerMembers(ctx, nstance.LoadBalancer{Name: "old", ID: instanceGroup})
		require.ErrorIs(w.t, err, nstance.Invalid)
		require.ErrorContains(w.t, err, "load_balancers.old.id")
	})
}

// TestPortOfGroup: a machine that is in a group with another port joins with that of the args.
func TestPortOfGroup(t *testing.T) {
	inTwoZones(t, &gcetest.Options{Groups: []gcetest.Group{{Name: "web", Zone: zone, Type: "GCE_VM_IP_PORT"}}}, func(w *twoZones) {
		m, err := w.Create(w.t.Context(), specIn(w.t, "default"))
		require.NoError(w.t, err)
		for _, port := range []string{"8080", "8081", "8081"} {
			web := nstance.LoadBalancer{Name: "web", ID: "web", Args: []byte(`{"port": ` + port + `}`)}
			require.NoError(w.t, w.JoinBalancer(w.t.Context(), web, []nstance.Machine{m}))
		}
		require.Equal(w.t, 2, w.faults.Calls()["networkEndpointGroups.attachNetworkEndpoints"])
	})
}

// TestZonesRefused: what validate says without credentials.
func TestZonesRefused(t *testing.T) {
	for options, want := range map[string]string{
		`["us-central1"]`:   "shard.provider.options.zones",
		`["us-east1-b"]`:    "a shard for each region",
		`["us-central1-b"]`: "",
		`"us-central1-b"`:   "zones",
	} {
		settings := provider.Settings{Zone: zone, Options: []byte(`{"project": "test-project", "zones": ` + options + `}`)}
		if err := gcp.Kind().Check(settings); want != "" {
			require.ErrorContains(t, err, want)
		} else {
			require.NoError(t, err)
		}
	}
	settings := provider.Settings{Zone: zone, Options: []byte(`{"project": "test-project", "zones": ["us-central1-b"]}`)}
	for subnet, want := range map[string]string{
		"default": "", secondSubnet: "", "default?zone=" + zone: "",
		"default?zone=us-central1-c": "use us-central1-a, us-central1-b, or add it to shard.provider.options.zones",
		"?zone=us-central1-b":        "SUBNET?zone=ZONE", "default?z=us-central1-b": "SUBNET?zone=ZONE",
	} {
		if err := gcp.Kind().CheckSpec(settings, specIn(t, subnet)); want != "" {
			require.ErrorContains(t, err, want, subnet)
		} else {
			require.NoError(t, err, subnet)
		}
	}
	s := specIn(t, secondSubnet)
	s.InstanceType, s.Args = "e2-standard-4", []byte(`{"interfaces": [{"subnet": "storage?zone=us-central1-b"}]}`)
	require.ErrorContains(t, gcp.Kind().CheckSpec(settings, s), "args.interfaces[0].subnet")
}
