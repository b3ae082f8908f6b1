package proxmox_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

const (
	callConfigure = "POST /nodes/{node}/qemu/{vmid}/config"
	callResize    = "PUT /nodes/{node}/qemu/{vmid}/resize"
)

// gpus are two devices on pve1 and one on pve2.
var gpus = []pvetest.Mapping{{ID: "GPU", Map: []string{
	"node=pve1,path=0000:01:00,id=10de:1db6", "path=0000:02:00,node=pve1,id=10de:1db6", "node=pve2,path=0000:01:00,id=10de:1db6",
}}}

// everything are arguments with each part of the hardware.
const everything = `{"template": 9000, "sockets": 2, "cpu_type": "x86-64-v2-AES", "numa": true, "disk": 32, "pool": "web", "nodes": ["pve1"],
	"disks": [{"drive": "scsi1", "size": 100, "storage": "shared", "ssd": true, "discard": true, "iothread": true}, {"drive": "virtio0", "size": 5, "storage": "shared"}],
	"model": "e1000", "vlan": 7, "networks": [{"bridge": "vmbr1", "vlan": 30, "mtu": 1400, "firewall": true}, {"bridge": "vmbr2", "model": "vmxnet3"}],
	"pci": [{"mapping": "GPU", "pcie": true, "primary_gpu": true}, {"mapping": "GPU"}], "address_pool": "lan"}`

var lan = map[string]proxmox.AddressPool{"lan": {First: "10.7.0.10", Last: "10.7.0.12", PrefixLength: 24, Gateway: "10.7.0.1", DNS: []string{"10.7.0.2", "fd00::2"}}}

// newHardwareBench has a cluster that can make a machine with everything.
func newHardwareBench(t *testing.T, o *pvetest.Options) *bench {
	if o == nil {
		o = &pvetest.Options{}
	}
	o.Pools, o.Mappings = []string{"web"}, gpus
	if o.Nodes == nil {
		o.Nodes = []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 8}, {Name: "pve2", Memory: 64 << 30, CPUs: 8}}
	}
	b := newBench(t, o)
	b.cloud.SetConfig(9000, map[string]string{"machine": "q35"})
	return b
}

func (b *bench) specOf(args string) nstance.MachineSpec {
	s := b.spec()
	s.Subnet, s.Args = "vmbr0", json.RawMessage(args)
	return s
}

// TestHardware: each part that the arguments name arrives at the cluster, with the
// documented rights, and goes with the machine.
func TestHardware(t *testing.T) {
	b := newHardwareBench(t, &pvetest.Options{Tokens: token(roles(t), "")})
	s := b.specOf(everything)
	m := b.create(s)
	b.eventually(b.finished, "half made")
	c := b.cloud.Config(vmidOf(t, m))
	for key, want := range map[string]string{
		"cores": "1", "sockets": "2", "cpu": "x86-64-v2-AES", "numa": "1", "net2": "vmxnet3", "hostpci0": "mapping=GPU,pcie=1,x-vga=1", "hostpci1": "mapping=GPU",
	} {
		require.Equal(t, want, strings.Split(c[key], "=02:")[0], key)
	}
	require.Regexp(t, `^shared:.*,size=32G$`, c["scsi0"])
	require.Regexp(t, `^shared:.*,discard=on,iothread=1,ssd=1,size=100G$`, c["scsi1"])
	require.Regexp(t, `^shared:.*,size=5G$`, c["virtio0"])
	require.Regexp(t, `^e1000=02:[0-9A-F:]{14},bridge=vmbr0,tag=7$`, c["net0"])
	require.Regexp(t, `^virtio=02:[0-9A-F:]{14},bridge=vmbr1,tag=30,firewall=1,mtu=1400$`, c["net1"])
	require.Contains(t, c["tags"], "nstance-pci-2-gpu")
	require.Equal(t, "web", b.cloud.PoolOf(m.ProviderID))
	require.Equal(t, "pve1", m.Zone)
	require.Empty(t, b.cloud.Denied())
	b.gone(b.p, m)
	require.Empty(t, b.cloud.Volumes(), "its disks and its image go with it")
}

// TestPlainMachineIsLeftAlone: without arguments the template decides, as it did.
func TestPlainMachineIsLeftAlone(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.SetConfig(9000, map[string]string{"cpu": "host", "numa": "1"})
	m := b.create(b.spec())
	b.eventually(b.finished, "half made")
	c := b.cloud.Config(vmidOf(t, m))
	require.Equal(t, "host", c["cpu"])
	require.Equal(t, "1", c["numa"])
	require.NotContains(t, c, "ipconfig0")
	require.Contains(t, c["scsi0"], "size=4G")
	require.Nil(t, b.cloud.NetworkConfig(m.ProviderID))
	require.Zero(t, b.cloud.Faults().Calls()[callResize])
}

// TestCheckHardware: what cannot be is refused offline, by the field that is wrong.
func TestCheckHardware(t *testing.T) {
	settings := provider.Settings{Options: []byte(`{"endpoint": "https://pve1:8006", "nodes": ["pve1", "pve2"], "instance_types": {"small": {"cores": 2, "memory": 512}},
		"address_pools": {"lan": {"first": "10.7.0.10", "last": "10.7.0.12", "prefix_length": 24}}}`)}
	for args, field := range map[string]string{
		`"numa": true`:                  "",
		`"disk": -1`:                    "args.disk",
		`"cpu_type": "host,flags=+aes"`: "args.cpu_type",
		`"sockets": 17`:                 "args.sockets",
		`"cores": 512, "sockets": 2`:    "args.cores",
		`"nodes": ["pve3"]`:             "args.nodes[0]",
		`"pool": "a/b"`:                 "args.pool",
		`"model": "virtoi"`:             "args.model",
		`"mtu": 100`:                    "args.mtu",
		`"mtu": 9000, "model": "e1000"`: "args.mtu",
		`"networks": [{"bridge": "vmbr1"}, {"bridge": "vmbr1,x"}]`:                                                  "args.networks[1].bridge",
		`"networks": [{"bridge": "vmbr1", "vlan": 5000}]`:                                                           "args.networks[0].vlan",
		`"networks": [{"bridge": "vmbr1", "mtu": 9000, "model": "rtl8139"}]`:                                        "args.networks[0].mtu",
		`"disks": [{"drive": "scsi31", "size": 1, "storage": "a1"}]`:                                                "args.disks[0].drive",
		`"disks": [{"drive": "ide2", "size": 1, "storage": "a1"}]`:                                                  "args.disks[0].drive",
		`"disks": [{"drive": "scsi1", "size": 1, "storage": "a1"}, {"drive": "scsi1", "size": 1, "storage": "a1"}]`: "args.disks[1].drive",
		`"disks": [{"drive": "scsi1", "storage": "a1"}]`:                                                            "args.disks[0].size",
		`"disks": [{"drive": "scsi1", "size": 1}]`:                                                                  "args.disks[0].storage",
		`"disks": [{"drive": "virtio1", "size": 1, "storage": "a1", "ssd": true}]`:                                  "args.disks[0].ssd",
		`"disks": [{"drive": "sata1", "size": 1, "storage": "a1", "iothread": true}]`:                               "args.disks[0].iothread",
		`"pci": [{"mapping": "0000:01:00.0"}]`:                                                                      "args.pci[0].mapping",
		`"pci": [{"mapping": "gpu", "mdev": "a:b"}]`:                                                                "args.pci[0].mdev",
		`"address_pool": "lna"`:  "args.address_pool",
		`"ipconfig0": "ip=dhcp"`: "args.ipconfig0",
		`"networks": [` + strings.Repeat(`{"bridge": "vmbr1"},`, 31) + `{"bridge": "vmbr1"}]`: "args.networks",
		`"pci": [` + strings.Repeat(`{"mapping": "gpu"},`, 16) + `{"mapping": "gpu"}]`:        "args.pci",
		`"pci": [` + strings.TrimSuffix(strings.Repeat(`{"mapping": "`+strings.Repeat("a", 64)+`", "mdev": "`+strings.Repeat("b", 64)+`"},`, 16), ",") +
			`], "networks": [` + strings.TrimSuffix(strings.Repeat(`{"bridge": "vmbr1", "vlan": 4000, "mtu": 9000, "firewall": true},`, 31), ",") +
			`], "disks": [` + strings.TrimSuffix(manyDisks(), ",") + `]`: "args",
	} {
		b := newBench(t, nil)
		s := b.specOf(`{"template": 9000, ` + args + `}`)
		err := proxmox.Kind().CheckSpec(settings, s)
		if field == "" {
			require.NoError(t, err, args)
			continue
		}
		requireField(t, field, err, args)
	}
	s := newBench(t, nil).spec()
	for args, field := range map[string]string{`"mtu": 1500`: "args.model", `"address_pool": "lan"`: "args.address_pool", `"vlan": 7`: "args.vlan"} {
		s.Args = json.RawMessage(`{"template": 9000, ` + args + `}`)
		requireField(t, field, proxmox.Kind().CheckSpec(settings, s), args+" without a subnet")
	}
	s.Args, s.InstanceType = json.RawMessage(`{"template": 9000, "sockets": 2}`), ""
	requireField(t, "args.sockets", proxmox.Kind().CheckSpec(settings, s), "sockets without cores")
}

func manyDisks() string {
	var out strings.Builder
	for i := 1; i < 31; i++ {
		fmt.Fprintf(&out, `{"drive": "scsi%d", "size": 1, "storage": "%s", "ssd": true, "discard": true, "iothread": true},`, i, strings.Repeat("s", 100))
	}
	return out.String()
}

// TestTemplateDoesNotFit: what the template or the cluster does not permit is refused
// before anything is made.
func TestTemplateDoesNotFit(t *testing.T) {
	for name, c := range map[string]struct {
		template    map[string]string
		args, field string
		code        nstance.Code
	}{
		"the disk would shrink":         {args: `"disk": 3`, field: "args.disk"},
		"boot disk unknown":             {template: map[string]string{"scsi3": "shared:base-9000-disk-7,size=8G"}, args: `"disk": 30`, field: "args.disk"},
		"drive in use":                  {template: map[string]string{"scsi1": "shared:base-9000-disk-7,size=8G"}, args: `"disks": [{"drive": "scsi1", "size": 1, "storage": "shared"}]`, field: "args.disks[0].drive"},
		"storage unknown":               {args: `"disks": [{"drive": "scsi1", "size": 1, "storage": "ceph"}]`, field: "args.disks[0].storage"},
		"storage without disks":         {args: `"disks": [{"drive": "scsi1", "size": 1, "storage": "isos"}]`, field: "args.disks[0].storage"},
		"storage on another node":       {args: `"disks": [{"drive": "scsi1", "size": 1, "storage": "nvme"}]`, code: nstance.Capacity},
		"mapping unknown":               {args: `"pci": [{"mapping": "fpga"}]`, field: "args.pci[0].mapping"},
		"not q35":                       {template: map[string]string{"machine": ""}, args: `"pci": [{"mapping": "GPU", "pcie": true}]`, field: "args.pci[0].pcie"},
		"too many devices":              {args: `"pci": [{"mapping": "GPU"}, {"mapping": "GPU"}, {"mapping": "GPU"}]`, code: nstance.Capacity},
		"the template's node is not it": {args: `"nodes": ["pve2"]`, field: "args.nodes"},
		"sockets that no node has":      {args: `"sockets": 16`, field: "args.cores"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newHardwareBench(t, &pvetest.Options{Storages: []pvetest.Storage{
				{Name: "shared", Shared: true, Content: []string{"images"}}, {Name: "local", Content: []string{"iso"}}, {Name: "isos", Content: []string{"iso"}},
				{Name: "nvme", Content: []string{"images"}, Nodes: []string{"pve2"}}}})
			b.cloud.SetConfig(9000, c.template)
			_, err := b.p.Create(t.Context(), b.specOf(`{"template": 9000, `+c.args+`}`))
			if c.field != "" {
				requireField(t, c.field, err, name)
			} else {
				b.refused(c.code, err)
			}
			require.Empty(t, b.cloud.Machines())
			b.clean()
		})
	}
	t.Run("unknown pool", func(t *testing.T) {
		b := newHardwareBench(t, nil)
		_, err := b.p.Create(t.Context(), b.specOf(`{"template": 9000, "pool": "wbe"}`))
		b.refused(nstance.Denied, err)
		require.ErrorContains(t, err, "pool 'wbe' does not exist")
		b.clean()
	})
}

// TestRefusedAfterClone: what Proxmox VE refuses only once the clone is there is shown in its
// words, until the machine is deleted.
func TestRefusedAfterClone(t *testing.T) {
	for args, words := range map[string]string{
		`"cpu_type": "Skylake-Sever"`: "Built-in cputype 'Skylake-Sever' is not defined", `"mtu": 9000`: "bigger than the bridge MTU '1500'",
	} {
		b := newBench(t, nil)
		m := b.create(b.specOf(`{"template": 9000, ` + args + `}`))
		b.eventually(func() bool {
			got, err := b.p.Get(t.Context(), m.ID)
			require.NoError(t, err)
			return got.Status == nstance.StatusPending && strings.Contains(got.CauseText, words)
		}, "the cause never showed")
		b.gone(b.p, m)
		b.clean()
	}
}

// TestBootDisk: the first disk in the boot order grows, whatever else the template has.
func TestBootDisk(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.SetConfig(9000, map[string]string{"scsi3": "shared:base-9000-disk-7,size=8G", "ide0": "none,media=cdrom", "boot": "order=ide0;net0;scsi3;scsi0"})
	m := b.create(b.specOf(`{"template": 9000, "disk": 8}`))
	b.eventually(b.finished, "half made")
	require.Zero(t, b.cloud.Faults().Calls()[callResize], "it has that size")
	b.gone(b.p, m)
	m = b.create(b.specOf(`{"template": 9000, "disk": 9}`))
	b.eventually(b.finished, "half made")
	c := b.cloud.Config(vmidOf(t, m))
	require.Contains(t, c["scsi3"], "size=9G")
	require.Contains(t, c["scsi0"], "size=4G")
}

// TestDiskIsMadeOnce: a first configuration that was refused half-way, or whose answer was
// lost, leaves no second disk.
func TestDiskIsMadeOnce(t *testing.T) {
	b := newBench(t, &pvetest.Options{Storages: []pvetest.Storage{{Name: "shared", Shared: true, Content: []string{"images"}}, {Name: "local", Content: []string{"iso"}},
		{Name: "full", Shared: true, Content: []string{"images"}, NoSpace: true}}})
	s := b.specOf(`{"template": 9000, "disks": [{"drive": "scsi1", "size": 1, "storage": "shared"}, {"drive": "scsi2", "size": 1, "storage": "full"}]}`)
	m := b.create(s)
	b.eventually(func() bool {
		got, err := b.p.Get(t.Context(), s.ID)
		require.NoError(t, err)
		return strings.Contains(got.CauseText, "out of space on storage 'full'")
	}, "the cause never showed")
	require.Greater(t, b.cloud.Faults().Calls()[callConfigure], 2)
	c := b.cloud.Config(vmidOf(t, m))
	require.Contains(t, c["scsi1"], "size=1G")
	require.NotContains(t, c, "unused0")
	b.gone(b.p, m)
	b.clean()
}

// TestDevicesAreCounted: machines with devices go where free ones are, also those that are
// switched off, and another server counts them too.
func TestDevicesAreCounted(t *testing.T) {
	b := newHardwareBench(t, nil)
	const args = `{"template": 9000, "any_node": true, "pci": [{"mapping": "GPU"}]}`
	counts, last := map[string]int{}, nstance.Machine{}
	for range 3 {
		last = b.create(b.specOf(args))
		b.running(b.p, last.ID)
		counts[last.Zone]++
	}
	require.Equal(t, map[string]int{"pve1": 2, "pve2": 1}, counts)
	b.eventually(func() bool { return b.allFinished(3) }, "half made")
	require.NoError(t, b.cloud.Fail(last.ProviderID))
	for _, p := range []*proxmox.Provider{b.p, b.open(proxmox.Options{})} {
		_, err := p.Create(t.Context(), b.specOf(args))
		b.refused(nstance.Capacity, err)
		require.ErrorContains(t, err, "free PCI devices")
	}
	b.gone(b.p, last)
	m, err := b.open(proxmox.Options{}).Create(t.Context(), b.specOf(args))
	require.NoError(t, err)
	require.Equal(t, last.Zone, m.Zone)
}

// TestNodesOfTemplate: a template's nodes are used, although another has more memory.
func TestNodesOfTemplate(t *testing.T) {
	b := newBench(t, &pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 8}, {Name: "pve2", Memory: 8 << 30, CPUs: 8}}})
	require.Equal(t, "pve2", b.create(b.specOf(`{"template": 9000, "any_node": true, "nodes": ["pve2"]}`)).Zone)
}

// TestAssignedMemory: machines of others that are switched off take no memory; what runs,
// and what this system has stopped, does.
func TestAssignedMemory(t *testing.T) {
	o := pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 4 << 30, CPUs: 8}}}
	const args = `{"template": 9000, "memory": 2048}`
	t.Run("of others", func(t *testing.T) {
		b := newBench(t, &o)
		for i := range 4 {
			b.cloud.Add(200+i, "pve1", map[string]string{"name": fmt.Sprintf("desktop%d", i), "memory": "4096"})
		}
		b.running(b.p, b.create(b.specOf(args)).ID)
		b.cloud.Add(300, "pve1", map[string]string{"name": "database", "memory": "2048"})
		b.cloud.SetRunning(300)
		_, err := b.p.Create(t.Context(), b.specOf(args))
		b.refused(nstance.Capacity, err)
	})
	t.Run("of this system", func(t *testing.T) {
		b := newBench(t, &o)
		for n := range 2 {
			m := b.create(b.specOf(args))
			b.eventually(func() bool { return b.allFinished(1) }, "half made %d", n)
			b.eventually(func() bool { return b.p.Park(t.Context(), m, nstance.ParkStopped) == nil }, "park")
			b.status(b.p, m.ID, nstance.StatusStopped)
			if n == 0 {
				b.cloud.SetConfig(9000, map[string]string{"cores": "2"})
				_, err := b.open(proxmox.Options{MemoryPercent: 75}).Create(t.Context(), b.specOf(args))
				b.refused(nstance.Capacity, err)
				b.eventually(func() bool { return b.p.Wake(t.Context(), m) == nil }, "wake")
				b.running(b.p, m.ID)
				b.gone(b.p, m)
			}
		}
	})
	for name, config := range map[string]map[string]string{ // that another server makes, or an operator has renamed
		"without tags yet": {"name": string(newBench(t, &o).spec().ID)}, "renamed": {"name": "database", "tags": "nstance;nstance-epoch-3"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, &o)
			config["memory"] = "3072"
			b.cloud.Add(20_000, "pve1", config)
			_, err := b.p.Create(t.Context(), b.specOf(args))
			b.refused(nstance.Capacity, err)
		})
	}
	t.Run("overcommitted", func(t *testing.T) {
		b := newBench(t, &o)
		p := b.open(proxmox.Options{MemoryPercent: 200})
		for range 4 {
			_, err := p.Create(t.Context(), b.specOf(args))
			require.NoError(t, err)
		}
		_, err := p.Create(t.Context(), b.specOf(args))
		b.refused(nstance.Capacity, err)
	})
}
