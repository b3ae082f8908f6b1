package proxmox_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

const static = `{"template": 9000, "address_pool": "lan"}`

// TestStaticAddress: the address is on the image with the user data, where cloud-init
// reads it, and in the configuration, and is free again with the end of the machine.
func TestStaticAddress(t *testing.T) {
	b := newBench(t, nil)
	s := b.specOf(`{"template": 9000, "address_pool": "lan", "networks": [{"bridge": "vmbr1"}]}`)
	m := b.create(s)
	b.eventually(b.finished, "half made")
	c := b.cloud.Config(vmidOf(t, m))
	var last int
	_, err := fmt.Sscanf(c["ipconfig0"], "ip=10.7.0.%d/24,gw=10.7.0.1", &last)
	require.NoError(t, err, c["ipconfig0"])
	require.Equal(t, 707_000_000+last, vmidOf(t, m), "the address is claimed by the VMID")

	var network struct {
		Version   int
		Ethernets map[string]struct {
			Match       struct{ MACAddress string }
			Addresses   []string
			DHCP4       bool
			Routes      []struct{ To, Via string }
			Nameservers struct{ Addresses []string }
		}
	}
	require.NoError(t, json.Unmarshal(b.cloud.NetworkConfig(m.ProviderID), &network))
	require.Equal(t, 2, network.Version)
	require.Len(t, network.Ethernets, 2)
	first, second := network.Ethernets["net0"], network.Ethernets["net1"]
	require.Equal(t, []string{fmt.Sprintf("10.7.0.%d/24", last)}, first.Addresses)
	require.Equal(t, "10.7.0.1", first.Routes[0].Via)
	require.Equal(t, []string{"10.7.0.2", "fd00::2"}, first.Nameservers.Addresses)
	require.False(t, first.DHCP4)
	require.True(t, second.DHCP4)
	for key, card := range map[string]string{"net0": first.Match.MACAddress, "net1": second.Match.MACAddress} {
		require.Len(t, card, 17)
		require.Regexp(t, "(?i)^virtio="+card+",", c[key])
	}
	require.Equal(t, s.UserData, b.cloud.UserData(m.ProviderID))
	b.gone(b.p, m)
	b.clean()
}

// TestPoolIsExhausted: there are three addresses. One that something else has by its VMID
// is not given out, and one whose machine is gone is given out again.
func TestPoolIsExhausted(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.Add(707_000_010, "pve1", map[string]string{"name": "printer"})
	first, second := b.create(b.specOf(static)), b.create(b.specOf(static))
	require.NotEqual(t, first.ProviderID, second.ProviderID)
	_, err := b.p.Create(t.Context(), b.specOf(static))
	b.refused(nstance.Capacity, err)
	require.ErrorContains(t, err, "all 3 addresses of address pool lan are in use")
	b.running(b.p, first.ID)
	b.running(b.p, second.ID)
	b.gone(b.p, first)
	require.Equal(t, first.ProviderID, b.create(b.specOf(static)).ProviderID)
}

// TestAddressesOfTwoServers: two servers that make machines at the same time give each
// address once, also while no clone shows its name.
func TestAddressesOfTwoServers(t *testing.T) {
	b := newBench(t, &pvetest.Options{FirstDisk: 20 * time.Millisecond, Clone: 40 * time.Millisecond})
	var wg sync.WaitGroup
	for _, p := range []*proxmox.Provider{b.p, b.open(proxmox.Options{})} {
		for range 3 {
			s := b.specOf(static)
			wg.Go(func() {
				for range 50 {
					if _, err := p.Create(t.Context(), s); err == nil || nstance.CodeOf(err) == nstance.Capacity {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	b.eventually(func() bool { return b.allFinished(3) }, "half made")
	addresses := map[string]bool{}
	for _, m := range b.cloud.Machines() {
		addresses[b.cloud.Config(vmidOf(t, nstance.Machine{ProviderID: m.Handle}))["ipconfig0"]] = true
	}
	require.Len(t, addresses, 3)
}

// TestOtherRange: a machine keeps its address when the pool's range is another one, and no
// other machine gets it.
func TestOtherRange(t *testing.T) {
	b := newBench(t, nil)
	var taken []string
	for range 2 {
		m := b.create(b.specOf(static))
		b.running(b.p, m.ID)
		taken = append(taken, m.ProviderID)
	}
	next := b.open(proxmox.Options{AddressPools: map[string]proxmox.AddressPool{"lan": {First: "10.7.0.8", Last: "10.7.0.12", PrefixLength: 16}}})
	for range 3 {
		m, err := next.Create(t.Context(), b.specOf(static))
		require.NoError(t, err)
		require.NotContains(t, taken, m.ProviderID)
		taken = append(taken, m.ProviderID)
	}
	_, err := next.Create(t.Context(), b.specOf(static))
	b.refused(nstance.Capacity, err)
}

// TestNamelessCloneWithAddress: the next leader knows whose clone it is that shows no name
// yet, and is not kept from others by it.
func TestNamelessCloneWithAddress(t *testing.T) {
	for name, shown := range map[string]bool{"not seen by pvestatd": false, "seen by pvestatd": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, &pvetest.Options{FirstDisk: time.Hour, Clone: 2 * time.Hour})
			s := b.specOf(static)
			m := b.create(s)
			if shown {
				b.cloud.SetConfig(vmidOf(t, m), nil)
			}
			require.NoError(t, b.p.Close())
			next := b.open(proxmox.Options{})
			_, err := next.Get(t.Context(), s.ID)
			b.refused(nstance.Unavailable, err)
			_, err = next.Create(t.Context(), s)
			b.refused(nstance.Unavailable, err)
			other := b.specOf(static)
			_, err = next.Get(t.Context(), other.ID)
			b.refused(nstance.NotFound, err)
			got, err := next.Create(t.Context(), other)
			require.NoError(t, err)
			require.NotEqual(t, m.ProviderID, got.ProviderID)
			require.Len(t, b.cloud.Machines(), 2)
		})
	}
}

func TestCheckAddressPools(t *testing.T) {
	for pool, field := range map[string]string{
		`"lan": {"first": "10.7.0.10", "last": "10.7.0.12", "prefix_length": 24, "gateway": "10.7.0.1", "dns": ["fd00::1"]}`: "",
		`"LAN": {"first": "10.7.0.10", "last": "10.7.0.12", "prefix_length": 24}`:                                            "options.address_pools",
		`"lan": {"last": "10.7.0.12", "prefix_length": 24}`:                                                                  "options.address_pools.lan.first",
		`"lan": {"first": "fd00::1", "last": "10.7.0.12", "prefix_length": 24}`:                                              "options.address_pools.lan.first",
		`"lan": {"first": "10.7.0.10", "last": "10.7.1.12", "prefix_length": 24}`:                                            "options.address_pools.lan.last",
		`"lan": {"first": "10.7.0.10", "last": "10.7.0.9", "prefix_length": 24}`:                                             "options.address_pools.lan.last",
		`"lan": {"first": "10.7.0.10", "last": "10.7.0.255", "prefix_length": 24}`:                                           "options.address_pools.lan.last",
		`"lan": {"first": "10.0.0.1", "last": "10.9.0.12", "prefix_length": 8}`:                                              "options.address_pools.lan.last",
		`"lan": {"first": "10.7.0.0", "last": "10.7.0.12", "prefix_length": 24}`:                                             "options.address_pools.lan.first",
		`"lan": {"first": "10.7.0.10", "last": "10.7.0.12", "prefix_length": 31}`:                                            "options.address_pools.lan.prefix_length",
		`"lan": {"first": "10.7.0.10", "last": "10.7.0.12"}`:                                                                 "options.address_pools.lan.prefix_length",
		`"lan": {"first": "10.7.0.10", "last": "10.7.0.12", "prefix_length": 24, "gateway": "10.7.0.11"}`:                    "options.address_pools.lan.gateway",
		`"lan": {"first": "10.7.0.10", "last": "10.7.0.12", "prefix_length": 24, "gateway": "10.8.0.1"}`:                     "options.address_pools.lan.gateway",
		`"lan": {"first": "10.7.0.10", "last": "10.7.0.12", "prefix_length": 24, "dns": ["resolver"]}`:                       "options.address_pools.lan.dns[0]",
	} {
		err := proxmox.Kind().Check(provider.Settings{Options: []byte(`{"endpoint": "https://pve1:8006", "address_pools": {` + pool + `}}`)})
		if field == "" {
			require.NoError(t, err)
			continue
		}
		requireField(t, field, err, pool)
	}
	for percent, ok := range map[string]bool{"100": true, "1000": true, "5": false, "-1": false, "1001": false} {
		err := proxmox.Kind().Check(provider.Settings{Options: []byte(`{"endpoint": "https://pve1:8006", "memory_percent": ` + percent + `}`)})
		if ok {
			require.NoError(t, err)
			continue
		}
		requireField(t, "options.memory_percent", err, percent)
	}
}
