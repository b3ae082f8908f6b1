package azure_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"
	"github.com/stretchr/testify/require"

	"net/http/httptest"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	armcloud "github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const (
	pool    = "/subscriptions/" + subscription + "/resourceGroups/net/providers/Microsoft.Network/loadBalancers/front/backendAddressPools/web"
	images  = "/subscriptions/" + subscription + "/resourceGroups/pictures/providers/Microsoft.Compute/galleries/house/images/"
	nics    = "/subscriptions/" + subscription + "/resourceGroups/net/providers/Microsoft.Network/networkInterfaces/"
	leaders = vnet + "/subnets/leaders"
)

// equipped is a cloud with an object for each ability.
func equipped() *armcloud.Options {
	return &armcloud.Options{
		PageSize: 3,
		Pools:    []string{pool},
		Subnets:  map[string]int{subnetA: 251, subnetB: 251, vnet + "/subnets/gateway": -1, leaders: 20},
		Sizes: []armcloud.Size{
			{Name: "Standard_D2s_v5", Cores: 2, Zones: []string{"1", "2"}}, {Name: "Standard_D2ps_v5", Cores: 2, Arch: "Arm64"},
			{Name: "Standard_D4s_v5", Cores: 4}, {Name: "Standard_D8s_v5", Cores: 8, NoSpot: true},
		},
		Images: []armcloud.Image{
			{ID: urn}, {ID: images + "worker-x/versions/1.9.0"}, {ID: images + "worker-x/versions/1.10.0"},
			{ID: images + "worker-x/versions/1.11.0", Unlisted: true}, {ID: images + "worker-x/versions/1.12.0", Unavailable: true},
			{ID: images + "worker-arm/versions/2.0.0", Arch: "Arm64"},
		},
	}
}

// interfaceClient is the SDK's own client, for what tests prepare.
func interfaceClient(t *testing.T, server *httptest.Server) *armnetwork.InterfacesClient {
	t.Helper()
	config := cloud.AzurePublic
	config.Services = map[cloud.ServiceName]cloud.ServiceConfiguration{cloud.ResourceManager: {Endpoint: server.URL, Audience: "x"}}
	c, err := armnetwork.NewInterfacesClient(subscription, token("secret"), &arm.ClientOptions{
		DisableRPRegistration: true, ClientOptions: policy.ClientOptions{Cloud: config, Transport: server.Client()},
	})
	require.NoError(t, err)
	return c
}

// addInterface creates the interface of a server, with the SDK's poller.
func addInterface(t *testing.T, c *armnetwork.InterfacesClient, name string) {
	t.Helper()
	poller, err := c.BeginCreateOrUpdate(t.Context(), "net", name, armnetwork.Interface{
		Location: new("westeurope"),
		Properties: &armnetwork.InterfacePropertiesFormat{IPConfigurations: []*armnetwork.InterfaceIPConfiguration{{
			Name: new("first"), Properties: &armnetwork.InterfaceIPConfigurationPropertiesFormat{Primary: new(true), Subnet: &armnetwork.Subnet{ID: new(leaders)}},
		}}},
	}, nil)
	require.NoError(t, err)
	_, err = poller.PollUntilDone(t.Context(), nil)
	require.NoError(t, err)
}

func TestAbilities(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		c, server := serve(t, equipped())
		for _, name := range []string{"server-1", "server-2"} {
			addInterface(t, interfaceClient(t, server), name)
		}
		here, there := options(t, server), options(t, server)
		here.Interface, there.Interface = nics+"server-1", nics+"server-2"
		p, err := azure.New(here)
		require.NoError(t, err)
		elsewhere, err := azure.New(there)
		require.NoError(t, err)
		address := c.Prefix(leaders).Addr()
		for range 100 {
			address = address.Next()
		}
		return providertest.Subject{
			Provider: p, Shape: shape, Spot: true,
			Address: address.String(), Elsewhere: elsewhere, NoAddress: "192.0.2.1",
			Image:    nstance.ImageQuery{Owner: "pictures/house", Name: "worker-*", Arch: nstance.AMD64},
			Subnets:  []string{subnetA, subnetB},
			Types:    []string{"Standard_D2s_v5", "standard_d2ps_v5"},
			Balancer: nstance.LoadBalancer{Name: "web", ID: pool}, NoBalancer: strings.ReplaceAll(pool, "front", "back"),
		}
	})
}

// TestZones: entries of one subnet for several zones are places of their own: one zone is sold
// out, and the next one is not.
func TestZones(t *testing.T) {
	s := newSite(t, nil)
	places := []string{subnetA + "?zone=1", subnetA + "?zone=3", subnetA}
	zones, err := s.p.SubnetZones(t.Context(), places)
	require.NoError(t, err)
	require.Equal(t, map[string]string{places[0]: "1", places[1]: "3"}, zones)
	free, err := s.p.FreeAddresses(t.Context(), places)
	require.NoError(t, err)
	require.Equal(t, map[string]int{places[0]: 251, places[1]: 251, places[2]: 251}, free)

	s.cloud.Capacity.Set(testcloud.Shape{Type: "Standard_D2s_v5", Zone: "1", Spot: true}, 0)
	spec := newSpec(t)
	spec.Market, spec.Subnet = nstance.Spot, places[0]
	require.NoError(t, azure.Kind().CheckSpec(settings, spec))
	_, err = s.p.Create(t.Context(), spec)
	code(t, nstance.Capacity, err)
	spec = newSpec(t)
	spec.Market, spec.Subnet = nstance.Spot, places[1]
	m, err := s.p.Create(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, zones[places[1]], m.Zone)
	require.Contains(t, s.machine(m), `"zones":["3"]`)
	require.Contains(t, s.read("Microsoft.Network/networkInterfaces", string(m.ID)), `"id":"`+subnetA+`"`)

	for _, wrong := range []string{subnetA + "?zone=", subnetA + "?zone=all", subnetA + "?region=1"} {
		spec.Subnet = wrong
		code(t, nstance.Invalid, azure.Kind().CheckSpec(settings, spec))
	}
	spec.Subnet, spec.Args = places[0], args(t, map[string]any{"zone": "2"})
	var e *nstance.Error
	require.ErrorAs(t, azure.Kind().CheckSpec(settings, spec), &e)
	require.Equal(t, "args.zone", e.Field)
}

// TestNewestImage: the highest version by number, of those that Azure itself would
// select.
func TestNewestImage(t *testing.T) {
	_, p := open(t, equipped())
	id, err := p.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "pictures/house", Name: "worker-x"})
	require.NoError(t, err)
	require.Equal(t, images+"worker-x/versions/1.10.0", id)
	id, err = p.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "pictures/house", Arch: nstance.ARM64})
	require.NoError(t, err)
	require.Equal(t, images+"worker-arm/versions/2.0.0", id)
	_, err = p.ResolveImage(t.Context(), nstance.ImageQuery{Owner: "Canonical", Name: "ubuntu"})
	code(t, nstance.Invalid, err)
}

// TestTypesAreCached: their list is long, and read once an hour.
func TestTypesAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := bubble(t, equipped())
		ask := func() map[string][]nstance.Arch {
			archs, err := p.TypeArchs(t.Context(), []string{"Standard_D2ps_v5", "Standard_D2s_v5"})
			require.NoError(t, err)
			return archs
		}
		require.Equal(t, map[string][]nstance.Arch{"Standard_D2ps_v5": {nstance.ARM64}, "Standard_D2s_v5": {nstance.AMD64}}, ask())
		ask()
		require.Equal(t, 2, c.Faults.Calls()["ResourceSKUsClient.NewListPager"], "two pages, once")
		<-time.After(time.Hour + time.Second)
		ask()
		require.Equal(t, 4, c.Faults.Calls()["ResourceSKUsClient.NewListPager"])
	})
}

// TestSubnetsWithoutCount: a gateway's subnet is left out, since Azure reports -1, and so is
// one whose virtual network is gone. A count that cannot be read is an error.
func TestSubnetsWithoutCount(t *testing.T) {
	c, p := open(t, equipped())
	gone := strings.ReplaceAll(subnetA, "main", "former")
	free, err := p.FreeAddresses(t.Context(), []string{gone, vnet + "/subnets/gateway", subnetB, "x"})
	require.NoError(t, err)
	require.Equal(t, map[string]int{subnetB: 251}, free)
	defer c.Faults.Outage()()
	_, err = p.FreeAddresses(t.Context(), []string{subnetB})
	code(t, nstance.Unavailable, err)
}

// TestBalancerKeepsOthers: a whole interface is written back, with its other pools; a
// join that conflicts with another operation is repeated.
func TestBalancerKeepsOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := equipped()
		second := strings.ReplaceAll(pool, "web", "api")
		o.Pools, o.Network = append(o.Pools, second), 3*time.Second
		c, p := bubble(t, o)
		m, err := p.Create(t.Context(), newSpec(t))
		require.NoError(t, err)
		members := func(id string) []string {
			got, err := p.BalancerMembers(t.Context(), nstance.LoadBalancer{ID: id})
			require.NoError(t, err)
			return got
		}
		errs := make(chan error, 2)
		for _, id := range []string{pool, second} { // at the same time
			go func() {
				errs <- p.JoinBalancer(t.Context(), nstance.LoadBalancer{ID: id}, []nstance.Machine{m})
			}()
		}
		require.NoError(t, <-errs)
		require.NoError(t, <-errs)
		require.Equal(t, []string{m.ProviderID}, members(pool))
		require.Equal(t, []string{m.ProviderID}, members(second))

		busy := &armcloud.Refusal{Status: 429, Code: "RetryableErrorDueToAnotherOperation", Message: "busy"}
		c.Faults.Next(putNIC, testcloud.Fault{Answer: busy.ServeHTTP}, testcloud.Fault{Answer: busy.ServeHTTP})
		require.NoError(t, p.LeaveBalancer(t.Context(), nstance.LoadBalancer{ID: pool}, []nstance.Machine{m}))
		require.Empty(t, members(pool))
		require.Equal(t, []string{m.ProviderID}, members(second))

		_, err = p.Create(t.Context(), mustSpec(t, m))
		require.Error(t, err)
		require.Equal(t, []string{m.ProviderID}, members(second), "a repeated create leaves the interface alone")
	})
}

// TestInterfaceChangedMeanwhile: what another program has written between the read of an
// interface and its write is kept.
func TestInterfaceChangedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := equipped()
		second := strings.ReplaceAll(pool, "web", "api")
		o.Pools, o.Network = append(o.Pools, second), 3*time.Second
		c, connect := within(t, o)
		here, there := connect("secret", ""), connect("secret", "")
		m, err := here.Create(t.Context(), newSpec(t))
		require.NoError(t, err)
		machines := []nstance.Machine{m}
		c.Faults.Next(putNIC, testcloud.Fault{Answer: func(w http.ResponseWriter, r *http.Request) {
			if err := there.JoinBalancer(r.Context(), nstance.LoadBalancer{ID: second}, machines); err != nil {
				t.Error(err)
			}
			c.ServeHTTP(w, r)
		}})
		require.NoError(t, here.JoinBalancer(t.Context(), nstance.LoadBalancer{ID: pool}, machines))
		for _, id := range []string{pool, second} {
			members, err := here.BalancerMembers(t.Context(), nstance.LoadBalancer{ID: id})
			require.NoError(t, err)
			require.Equal(t, []string{m.ProviderID}, members, id)
		}
	})
}

// mustSpec returns another spec with the ID of m.
func mustSpec(t *testing.T, m nstance.Machine) nstance.MachineSpec {
	t.Helper()
	s := newSpec(t)
	s.ID, s.Token = m.ID, string(m.ID)+"-02"
	return s
}

// TestBalancerOfOthers: no interface of another owner's machine joins or leaves a pool.
func TestBalancerOfOthers(t *testing.T) {
	_, p := open(t, equipped())
	m, err := p.Create(t.Context(), newSpec(t))
	require.NoError(t, err)
	lb, other := nstance.LoadBalancer{Name: "web", ID: pool}, m
	other.Owner.Shard = "other"
	code(t, nstance.Conflict, p.JoinBalancer(t.Context(), lb, []nstance.Machine{other}))
	require.NoError(t, p.JoinBalancer(t.Context(), lb, []nstance.Machine{m}))
	code(t, nstance.Conflict, p.LeaveBalancer(t.Context(), lb, []nstance.Machine{other}))
	members, err := p.BalancerMembers(t.Context(), lb)
	require.NoError(t, err)
	require.Equal(t, []string{m.ProviderID}, members)
}

// TestAddressOfAMachine: a machine's own address does not move.
func TestAddressOfAMachine(t *testing.T) {
	_, server := serve(t, equipped())
	client := interfaceClient(t, server)
	addInterface(t, client, "server-1")
	addInterface(t, client, "server-2")
	got, err := client.Get(t.Context(), "net", "server-2", nil)
	require.NoError(t, err)
	o := options(t, server)
	o.Interface = nics + "server-1"
	p, err := azure.New(o)
	require.NoError(t, err)
	err = p.TakeAddress(t.Context(), *got.Properties.IPConfigurations[0].Properties.PrivateIPAddress)
	code(t, nstance.Invalid, err)
	require.ErrorContains(t, err, "primary address", "Azure is not asked")

	p, err = azure.New(options(t, server))
	require.NoError(t, err)
	err = p.TakeAddress(t.Context(), netip.MustParseAddr("10.4.0.9").String())
	code(t, nstance.Invalid, err)
	require.ErrorContains(t, err, "network_interface")
}

func TestPark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := equipped()
		o.Delays = testcloud.Delays{Start: time.Minute, Stop: time.Minute}
		c, p := bubble(t, o)
		for _, mode := range p.ParkModes() {
			s := newSpec(t)
			s.Park = mode
			m, err := p.Create(t.Context(), s)
			require.NoError(t, err)
			code(t, nstance.Conflict, p.Park(t.Context(), m, mode))
			<-time.After(61 * time.Second)
			status(t, p, s, nstance.StatusRunning)
			require.NoError(t, p.Wake(t.Context(), m), "it runs")
			require.NoError(t, p.Park(t.Context(), m, mode))
			require.NoError(t, p.Park(t.Context(), m, mode), "again")
			code(t, nstance.Conflict, p.Wake(t.Context(), m))
			<-time.After(61 * time.Second)
			status(t, p, s, nstance.StatusStopped)
			if mode == nstance.ParkHibernated {
				lb := nstance.LoadBalancer{ID: pool}
				code(t, nstance.Invalid, p.JoinBalancer(t.Context(), lb, []nstance.Machine{m}))
			}
			require.NoError(t, p.Wake(t.Context(), m))
			<-time.After(61 * time.Second)
			status(t, p, s, nstance.StatusRunning)

			require.NoError(t, p.Park(t.Context(), m, mode))
			<-time.After(61 * time.Second)
			c.Capacity.Set(testcloud.Shape{Type: s.InstanceType}, 0)
			require.NoError(t, p.Wake(t.Context(), m), "Azure looks for capacity later")
			<-time.After(61 * time.Second)
			got := status(t, p, s, nstance.StatusStopped)
			require.Equal(t, nstance.LossCapacity, got.Cause)
			c.Capacity.Set(testcloud.Shape{Type: s.InstanceType}, 10)
		}
		s := newSpec(t)
		s.Market = nstance.Spot
		m, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		code(t, nstance.Invalid, p.Park(t.Context(), m, nstance.ParkStopped))
		m.Owner.Shard = "b"
		code(t, nstance.Conflict, p.Park(t.Context(), m, nstance.ParkStopped))
		code(t, nstance.NotFound, p.Wake(t.Context(), nstance.Machine{ID: newSpec(t).ID, Owner: s.Owner}))
	})
}

func status(t *testing.T, p *azure.Provider, s nstance.MachineSpec, want nstance.MachineStatus) nstance.Machine {
	t.Helper()
	m, err := p.Get(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, want, m.Status)
	require.Equal(t, m, listed(t, p, s))
	return m
}

func TestConsole(t *testing.T) {
	c, p := open(t, nil)
	m, err := p.Create(t.Context(), newSpec(t))
	require.NoError(t, err)
	out, err := p.ConsoleOutput(t.Context(), m)
	require.NoError(t, err)
	require.Empty(t, out)
	c.Print(m.ProviderID, strings.Repeat("x", 100_000)+"end")
	out, err = p.ConsoleOutput(t.Context(), m)
	require.NoError(t, err)
	require.Len(t, out, clip.MaxConsole)
	require.Equal(t, "xend", string(out[len(out)-4:]))

	s := newSpec(t)
	s.Args = args(t, map[string]any{"boot_diagnostics": false})
	m, err = p.Create(t.Context(), s)
	require.NoError(t, err)
	_, err = p.ConsoleOutput(t.Context(), m)
	code(t, nstance.Invalid, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = p.ConsoleOutput(ctx, m)
	code(t, nstance.Unavailable, err)
}

// TestKind checks the provider's abilities, offline.
func TestKind(t *testing.T) {
	kind := azure.Kind()
	can := provider.AbilitiesOf(&azure.Provider{})
	require.Equal(t, kind.Images, can.Images != nil)
	require.Equal(t, kind.Balancers, can.Balancers != nil)
	require.Equal(t, (*azure.Provider)(nil).ParkModes(), kind.Park)
	settings := provider.Settings{Region: "westeurope", Options: json.RawMessage(`{"subscription_id": "` + subscription + `", "resource_group": "machines"}`)}
	s := newSpec(t)
	s.Image = kind.SampleImage
	require.NoError(t, kind.CheckSpec(settings, s))
}

// TestNodeProviderID: the names of subscription and resource group are in lower case,
// whatever case the configuration and Azure's answers have.
func TestNodeProviderID(t *testing.T) {
	_, server := serve(t, nil)
	o := options(t, server)
	o.ResourceGroup = "MachineS"
	p, err := azure.New(o)
	require.NoError(t, err)
	m, err := p.Create(t.Context(), newSpec(t))
	require.NoError(t, err)
	want := "azure:///subscriptions/" + subscription + "/resourceGroups/machines/providers/Microsoft.Compute/virtualMachines/" + string(m.ID)
	require.Equal(t, want, p.NodeProviderID(m))
	read, err := p.Get(t.Context(), m.ID)
	require.NoError(t, err)
	require.Equal(t, want, p.NodeProviderID(read))
	require.Empty(t, p.NodeProviderID(nstance.Machine{ID: m.ID, ProviderID: "4711"}), "no machine of the resource group")
}
