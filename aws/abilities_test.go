package aws_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// become waits until Get returns that status.
func (w *world) become(m nstance.Machine, status nstance.MachineStatus) nstance.Machine {
	w.Helper()
	var now nstance.Machine
	require.Eventually(w, func() (ok bool) {
		var err error
		now, err = w.Get(w.Context(), m.ID)
		return err == nil && now.Status == status
	}, time.Minute, time.Millisecond)
	return now
}

func TestPark(t *testing.T) {
	delays := testcloud.Delays{Start: 5 * time.Millisecond, Stop: 5 * time.Millisecond}
	for _, mode := range []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated} {
		t.Run(string(mode), func(t *testing.T) {
			w := newWorld(t, &ec2test.Options{Delays: delays})
			s := w.spec()
			s.Park, s.Args = mode, []byte(`{"volumes": [{"device": "/dev/xvda", "size_gib": 16, "encrypted": true}]}`)
			m := w.become(w.create(s), nstance.StatusRunning)
			created := m.CreatedAt
			for range 2 { // repeated parking and waking changes nothing
				require.NoError(t, w.Park(t.Context(), m, mode))
			}
			m = w.become(m, nstance.StatusStopped)
			require.NoError(t, w.Park(t.Context(), m, mode))
			require.Equal(t, nstance.LossRequested, m.Cause)
			require.Equal(t, 1, w.faults.Calls()["StopInstances"])

			require.NoError(t, w.Wake(t.Context(), m))
			require.NoError(t, w.Wake(t.Context(), m))
			m = w.become(m, nstance.StatusRunning)
			require.Equal(t, 1, w.faults.Calls()["StartInstances"])
			require.Equal(t, created, m.CreatedAt, "LaunchTime changes, the creation does not")
			require.Empty(t, m.Cause)
		})
	}
}

func TestParkRefusals(t *testing.T) {
	w := newWorld(t, nil)
	plain := w.create(w.spec())
	w.refused(nstance.Invalid, w.Park(t.Context(), plain, "frozen"))
	w.refused(nstance.Invalid, w.Park(t.Context(), plain, nstance.ParkHibernated)) // not launched with hibernation

	s := w.spec()
	s.Market = nstance.Spot
	spot := w.create(s)
	w.refused(nstance.Invalid, w.Park(t.Context(), spot, nstance.ParkStopped))

	other := plain
	other.Owner.Installation = "another"
	w.refused(nstance.Conflict, w.Park(t.Context(), other, nstance.ParkStopped))
	w.refused(nstance.Conflict, w.Wake(t.Context(), other))

	require.NoError(t, w.Delete(t.Context(), plain))
	w.refused(nstance.NotFound, w.Park(t.Context(), plain, nstance.ParkStopped))
	w.refused(nstance.NotFound, w.Wake(t.Context(), plain))
	require.Zero(t, w.faults.Calls()["StartInstances"])
}

// TestWakeWithoutCapacity: a stopped machine does not reserve its host.
func TestWakeWithoutCapacity(t *testing.T) {
	capacity := &testcloud.Capacity{}
	w := newWorld(t, &ec2test.Options{Capacity: capacity})
	s := w.spec()
	s.Park = nstance.ParkStopped
	m := w.create(s)
	require.NoError(t, w.Park(t.Context(), m, nstance.ParkStopped))
	w.become(m, nstance.StatusStopped)
	capacity.Set(testcloud.Shape{Type: "m5.large", Zone: region + "a"}, 0)
	w.refused(nstance.Capacity, w.Wake(t.Context(), m))
	require.Equal(t, 1, w.faults.Calls()["StartInstances"], "the SDK repeated it")
}

// TestConsole: types before Nitro need a second call, without Latest.
func TestConsole(t *testing.T) {
	w := newWorld(t, nil)
	for name, want := range map[string]int{"m5.large": 1, "t2.micro": 2} {
		s := w.spec()
		s.InstanceType = name
		m := w.create(s)
		require.NoError(t, w.cloud.Print(m.ProviderID, []byte("Booting\n")))
		before := w.faults.Calls()["GetConsoleOutput"]
		out, err := w.ConsoleOutput(t.Context(), m)
		require.NoError(t, err)
		if require.Equal(t, want, w.faults.Calls()["GetConsoleOutput"]-before); want == 1 {
			require.Equal(t, "Booting\n", string(out))
		}
		again, err := w.ConsoleOutput(t.Context(), nstance.Machine{ID: m.ID, Owner: m.Owner})
		require.NoError(t, err)
		require.Equal(t, out, again, "looked for by its ID")
	}
	_, err := w.ConsoleOutput(t.Context(), nstance.Machine{ProviderID: "i-00000000000000000"})
	w.refused(nstance.NotFound, err)
}

func TestImages(t *testing.T) {
	w := newWorld(t, nil)
	for query, want := range map[nstance.ImageQuery]string{
		{Owner: "136693071363", Name: "debian-12-amd64-*", Arch: nstance.AMD64}: "ami-0abcdef1234567890", // the newest of two
		{Owner: "136693071363", Name: "debian-12-*", Arch: nstance.ARM64}:       "ami-0abcdef1234567891",
		{Owner: "136693071363", Name: "debian-12-amd64-20260301-90"}:            "ami-0abcdef1234567892",
	} {
		got, err := w.ResolveImage(t.Context(), query)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := w.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "136693071363", Name: "debian-1?-*"})
	w.refused(nstance.NotFound, err) // only * is a wildcard
	_, err = w.ResolveImage(t.Context(), nstance.ImageQuery{Name: "debian-12-*"})
	w.refused(nstance.Invalid, err) // any account could publish one of that name
	require.ErrorContains(t, err, "owner")
	_, err = w.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "self", Arch: "riscv"})
	w.refused(nstance.Invalid, err)
}

// TestImagesByTag: the newest image of an owner with all tags.
func TestImagesByTag(t *testing.T) {
	catalog := ec2test.DefaultCatalog(region)
	catalog.Tags = map[string]map[string]string{
		"ami-0abcdef1234567890": {"role": "worker"}, "ami-0abcdef1234567892": {"role": "worker", "stage": "prod"},
	}
	w := newWorld(t, &ec2test.Options{Catalog: catalog})
	for name, want := range map[string]string{"tag:role=worker": "ami-0abcdef1234567890", "tag:role=worker,tag:stage=prod": "ami-0abcdef1234567892"} {
		got, err := w.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "136693071363", Name: name, Arch: nstance.AMD64})
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
	_, err := w.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "136693071363", Name: "tag:role=batch"})
	w.refused(nstance.NotFound, err)
	require.ErrorContains(t, err, "tag:role=batch")
	_, err = w.ResolveImage(t.Context(), nstance.ImageQuery{Name: "tag:role=worker"})
	require.ErrorContains(t, err, "owner", "anyone may tag an image so")
	for _, wrong := range []string{"tag:role", "tag:=worker", "tag:role=worker,stage=prod", "tag:a=1,tag:a=2"} {
		_, err = w.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "self", Name: wrong})
		w.refused(nstance.Invalid, err)
	}
}

func TestDeregisteredImage(t *testing.T) {
	catalog := ec2test.DefaultCatalog(region)
	catalog.Images[0].State = "deregistered"
	w := newWorld(t, &ec2test.Options{Catalog: catalog})
	got, err := w.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "136693071363", Name: "debian-12-amd64-*"})
	require.NoError(t, err)
	require.Equal(t, "ami-0abcdef1234567892", got)
}

// TestSpotPrices: the latest price of each type in each zone counts.
func TestSpotPrices(t *testing.T) {
	w := newWorld(t, &ec2test.Options{PageSize: 2})
	w.cloud.SetSpotPrice("m5.large", region+"b", "0.0410")
	w.cloud.SetSpotPrice("m5.large", region+"b", "0.0420")
	w.cloud.SetSpotPrice("c5.large", region+"a", "0.0000")
	w.cloud.SetSpotPrice("c5.large", region+"b", "unknown")
	w.cloud.SetSpotPrice("c5.large", region+"c", "-1")
	got, err := w.Prices(t.Context(), []string{"m5.large", "t3.micro", "no.such"})
	require.NoError(t, err)
	price := func(zone string, perHour float64) nstance.Price {
		return nstance.Price{InstanceType: "m5.large", Zone: region + zone, Market: nstance.Spot, PerHour: perHour}
	}
	require.ElementsMatch(t, []nstance.Price{price("a", 0.035), price("b", 0.042), price("c", 0.035)}, got, "types without spot price are left out")
	for _, p := range must(t, func() ([]nstance.Price, error) { return w.Prices(t.Context(), []string{"c5.large"}) }) {
		require.Positive(t, p.PerHour, "what is no price is left out")
	}
	require.GreaterOrEqual(t, w.faults.Calls()["DescribeSpotPriceHistory"], 2, "several pages")

	w.faults.Next("DescribeSpotPriceHistory", testcloud.Fault{Answer: ec2test.Refusal("RequestLimitExceeded", "slow down")})
	_, err = w.Prices(t.Context(), []string{"m5.large"})
	w.refused(nstance.Throttled, err)
}

// TestZoneScores: scores have the account's names of zones, and sizes that differ little are
// one question.
func TestZoneScores(t *testing.T) {
	w := newWorld(t, nil)
	w.cloud.SetScore(region+"a", 2)
	w.cloud.SetScore(region+"b", 9)
	several := []string{"m5.large", "c5.large", "t3.micro"}
	for machines := 33; machines <= 64; machines++ {
		got, err := w.ZoneScores(t.Context(), several, machines)
		require.NoError(t, err)
		require.Equal(t, map[string]int{region + "a": 2, region + "b": 9, region + "c": 5}, got)
	}
	got, err := w.ZoneScores(t.Context(), several[:2], 5)
	require.NoError(t, err)
	require.Empty(t, got, "EC2's score of fewer than three types is always low")

	first := `<GetSpotPlacementScoresResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId><spotPlacementScoreSet><item>
		<region>` + region + `</region><availabilityZoneId>use1-az99</availabilityZoneId><score>10</score></item></spotPlacementScoreSet><nextToken>next</nextToken></GetSpotPlacementScoresResponse>`
	w.faults.Next("GetSpotPlacementScores", testcloud.Fault{Answer: func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, first) }})
	got, err = w.ZoneScores(t.Context(), several, 64)
	require.NoError(t, err)
	require.Equal(t, map[string]int{region + "a": 2, region + "b": 9, region + "c": 5}, got, "of every page, without zones that the account does not have")
	_, err = newWorld(t, nil).ZoneScores(t.Context(), several, math.MaxInt)
	require.NoError(t, err)
	for _, none := range []int{0, -1} {
		got, err = w.ZoneScores(t.Context(), several, none)
		require.NoError(t, err)
		require.Equal(t, 9, got[region+"b"])
	}
	for n := range 10 { // which are all that EC2 answers, so that 0 was none of its own
		_, err = w.ZoneScores(t.Context(), several, 1<<n)
		require.NoError(t, err)
	}
	for n := range 20 {
		if _, err = w.ZoneScores(t.Context(), several, 1<<n); err != nil {
			break
		}
	}
	w.refused(nstance.Quota, err)
}

// TestManyNames: long lists are split into several calls.
func TestManyNames(t *testing.T) {
	catalog := ec2test.DefaultCatalog(region)
	var names, subnets []string
	known := types.InstanceType("").Values()
	catalog.Types = nil
	for n := range 250 {
		names, subnets = append(names, string(known[n])), append(subnets, fmt.Sprintf("subnet-%017x", n))
		catalog.Types = append(catalog.Types, ec2test.InstanceType{Name: names[n], Archs: []string{"i386", "x86_64"}})
		catalog.Subnets = append(catalog.Subnets, ec2test.Subnet{ID: subnets[n], Zone: region + "a", Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(n), 0}), 24)})
	}
	w := newWorld(t, &ec2test.Options{Catalog: catalog})
	archs, err := w.TypeArchs(t.Context(), append(names, "no.such"))
	require.NoError(t, err)
	require.Len(t, archs, 250)
	require.Equal(t, []nstance.Arch{nstance.AMD64}, archs[names[200]], "i386 is left out")
	require.Equal(t, 3, w.faults.Calls()["DescribeInstanceTypes"])
	free, err := w.FreeAddresses(t.Context(), subnets)
	require.NoError(t, err)
	require.Len(t, free, 250)
	require.Equal(t, 251, free[subnets[7]], "EC2 keeps five of 256")
	require.Equal(t, 2, w.faults.Calls()["DescribeSubnets"])
	_, err = w.Prices(t.Context(), names)
	require.NoError(t, err)
	require.Equal(t, 2, w.faults.Calls()["DescribeSpotPriceHistory"])
	zones, err := w.SubnetZones(t.Context(), append(subnets, "subnet-0000000000000abcd"))
	require.NoError(t, err)
	require.Len(t, zones, 250, "a subnet that is unknown has no zone")
	require.Equal(t, region+"a", zones[subnets[7]])
}

// TestLeaveEveryPort: a target that was registered on another port leaves too.
func TestLeaveEveryPort(t *testing.T) {
	w := newWorld(t, nil)
	m := []nstance.Machine{w.create(w.spec())}
	lb := nstance.LoadBalancer{Name: "front", ID: targetGroup}
	for _, args := range []string{`{}`, `{"port": 8080}`} {
		lb.Args = []byte(args)
		require.NoError(t, w.JoinBalancer(t.Context(), lb, m))
	}
	members, err := w.BalancerMembers(t.Context(), lb)
	require.NoError(t, err)
	require.Equal(t, []string{m[0].ProviderID}, members)
	require.NoError(t, w.LeaveBalancer(t.Context(), lb, m))
	members, err = w.BalancerMembers(t.Context(), lb)
	require.NoError(t, err)
	require.Empty(t, members, "those that drain are none")
	require.NoError(t, w.LeaveBalancer(t.Context(), lb, m))
	require.Equal(t, 1, w.faults.Calls()["DeregisterTargets"])
}

// TestBalancerOfSeveral: each of several machines joins on the port of the arguments and leaves,
// and the others stay.
func TestBalancerOfSeveral(t *testing.T) {
	w := newWorld(t, nil)
	lb := nstance.LoadBalancer{Name: "front", ID: targetGroup, Args: []byte(`{"port": 8080}`)}
	require.NoError(t, w.JoinBalancer(t.Context(), lb, nil))
	require.Zero(t, w.faults.Calls()["RegisterTargets"], "none is nothing to ask for")
	var all []nstance.Machine
	for range 3 {
		all = append(all, w.create(w.spec()))
	}
	require.NoError(t, w.JoinBalancer(t.Context(), lb, all))
	require.NoError(t, w.LeaveBalancer(t.Context(), lb, all[1:]))
	members, err := w.BalancerMembers(t.Context(), lb)
	require.NoError(t, err)
	require.Equal(t, []string{all[0].ProviderID}, members)
}

// TestUnlistedTargets: a target of whose health nothing is said is a member, and one that is
// not registered is none.
func TestUnlistedTargets(t *testing.T) {
	w := newWorld(t, nil)
	answer := `<DescribeTargetHealthResponse xmlns="http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/"><DescribeTargetHealthResult><TargetHealthDescriptions>
		<member><Target><Id>i-2</Id><Port>80</Port></Target></member>
		<member><Target><Id>i-1</Id><Port>80</Port></Target><TargetHealth><State>new-state</State></TargetHealth></member>
		<member><Target><Id>i-3</Id><Port>80</Port></Target><TargetHealth><State>unused</State><Reason>Target.NotRegistered</Reason></TargetHealth></member>
	</TargetHealthDescriptions></DescribeTargetHealthResult></DescribeTargetHealthResponse>`
	w.faults.Next("DescribeTargetHealth", testcloud.Fault{Answer: func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Via", "a later version of the cloud") // the model has no such state
		fmt.Fprint(rw, answer)
	}})
	members, err := w.BalancerMembers(t.Context(), nstance.LoadBalancer{Name: "front", ID: targetGroup})
	require.NoError(t, err)
	require.Equal(t, []string{"i-1", "i-2"}, members)
}

// must returns what ask answers.
func must[T any](t *testing.T, ask func() (T, error)) T {
	t.Helper()
	v, err := ask()
	require.NoError(t, err)
	return v
}

func TestJoinRefusals(t *testing.T) {
	w := newWorld(t, &ec2test.Options{Delays: testcloud.Delays{Start: -1}})
	pending := []nstance.Machine{w.create(w.spec())}
	w.refused(nstance.Invalid, w.JoinBalancer(t.Context(), nstance.LoadBalancer{ID: targetGroup}, pending))
	for _, port := range []string{"70000", "-1"} {
		w.refused(nstance.Invalid, w.JoinBalancer(t.Context(), nstance.LoadBalancer{ID: targetGroup, Args: []byte(`{"port": ` + port + `}`)}, nil))
	}
	w.refused(nstance.Invalid, w.JoinBalancer(t.Context(), nstance.LoadBalancer{}, pending))
}

// TestOwnInterface finds this server's network interface by the metadata service.
func TestOwnInterface(t *testing.T) {
	w := newWorld(t, nil)
	nic := w.server()
	asked := 0
	metadata := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch path := strings.TrimPrefix(r.URL.Path, "/latest/"); path {
		case "api/token":
			rw.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "300")
			fmt.Fprint(rw, "token")
		case "meta-data/mac":
			asked++
			fmt.Fprint(rw, "02:29:96:8f:6a:2d")
		case "meta-data/network/interfaces/macs/02:29:96:8f:6a:2d/interface-id":
			fmt.Fprint(rw, nic+"\n")
		default:
			http.NotFound(rw, r)
		}
	}))
	defer metadata.Close()
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.URL)
	t.Setenv("AWS_ACCESS_KEY_ID", ec2test.DefaultCredential.AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", ec2test.DefaultCredential.SecretAccessKey)
	opened, end := w.openKind()
	defer func() { require.NoError(t, end()) }()
	here := opened.(nstance.AddressMover)
	for range 2 {
		require.NoError(t, here.TakeAddress(t.Context(), "10.0.0.200"))
		held, err := here.HoldsAddress(t.Context(), "10.0.0.200")
		require.NoError(t, err)
		require.True(t, held)
	}
	require.Equal(t, 1, asked, "it is asked once")
	require.Equal(t, 1, w.faults.Calls()["AssignPrivateIpAddresses"], "an address that is here is not taken again")
	for _, address := range []string{"10.200.0.1", "fd00::1", "host"} {
		w.refused(nstance.Invalid, here.TakeAddress(t.Context(), address))
	}
}
