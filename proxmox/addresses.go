package proxmox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nearest"
)

// An AddressPool is a range of static IPv4 addresses for machines. Each address is in use
// by one machine at a time.
type AddressPool struct {
	First        string   `json:"first" required:"true" doc:"First address, such as 192.168.7.50."`
	Last         string   `json:"last" required:"true" doc:"Last address."`
	PrefixLength int      `json:"prefix_length" required:"true" min:"8" max:"30" doc:"Prefix length of the network, such as 24."`
	Gateway      string   `json:"gateway" doc:"Address of the gateway; absent: no default route."`
	DNS          []string `json:"dns" doc:"Addresses of name servers."`
}

// An addressPool is a checked AddressPool.
type addressPool struct {
	name        string
	first, last netip.Addr
	bits        int
	gateway     netip.Addr // invalid: none
	dns         []netip.Addr
}

// maxPoolSize bounds the addresses of a pool: all are looked through.
const maxPoolSize = 1 << 16

// checkAddressPools refuses pools that cannot be given out.
func (o Options) checkAddressPools() error {
	for _, name := range slices.Sorted(maps.Keys(o.AddressPools)) {
		if !typeName.MatchString(name) {
			return nstance.FieldError("options.address_pools", "use lower-case letters, digits, dots and hyphens", "%.64q is not a usable name", name)
		}
		if _, err := o.AddressPools[name].parse(name); err != nil {
			return err
		}
	}
	return nil
}

func (a AddressPool) parse(name string) (*addressPool, error) {
	field := "options.address_pools." + name
	p := &addressPool{name: name, bits: a.PrefixLength}
	if a.PrefixLength < 8 || a.PrefixLength > 30 {
		return nil, nstance.FieldError(field+".prefix_length", "use 8 to 30", "%d is out of range", a.PrefixLength)
	}
	for i, text := range append([]string{a.First, a.Last, a.Gateway}, a.DNS...) {
		names := []string{"first", "last", "gateway"}
		if i == 2 && text == "" {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if i < len(names) && (err != nil || !addr.Is4()) {
			return nil, nstance.FieldError(field+"."+names[i], "write an IPv4 address such as 192.168.7.50", "%.64q is not one", text)
		}
		if err != nil || addr.Zone() != "" {
			return nil, nstance.FieldError(fmt.Sprintf("%s.dns[%d]", field, i-len(names)), "write an address such as 192.168.7.1", "%.64q is not one", text)
		}
		switch i {
		case 0:
			p.first = addr
		case 1:
			p.last = addr
		case 2:
			p.gateway = addr
		default:
			p.dns = append(p.dns, addr)
		}
	}
	return p, p.check(field)
}

// check refuses ranges that have other addresses than those of hosts.
func (p *addressPool) check(field string) error {
	network := netip.PrefixFrom(p.first, p.bits).Masked()
	broadcast := number(network.Addr()) | 1<<(32-p.bits) - 1
	switch {
	case p.last.Less(p.first) || !network.Contains(p.last):
		return nstance.FieldError(field+".last", "use an address of the same network, not before the first", "%s to %s is not a range of %s", p.first, p.last, network)
	case p.size() > maxPoolSize:
		return nstance.FieldError(field+".last", "use at most 65536 addresses", "%d are too many", p.size())
	case p.first == network.Addr():
		return nstance.FieldError(field+".first", "begin with the next address", "%s is the address of the network", p.first)
	case number(p.last) == broadcast:
		return nstance.FieldError(field+".last", "end with the address before", "%s is the broadcast address", p.last)
	case p.gateway.IsValid() && (!network.Contains(p.gateway) || p.has(p.gateway)):
		return nstance.FieldError(field+".gateway", "use an address of the same network outside the range", "%s is not one", p.gateway)
	}
	return nil
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func (p *addressPool) size() int { return int(number(p.last)) - int(number(p.first)) + 1 }

func (p *addressPool) has(a netip.Addr) bool { return !a.Less(p.first) && !p.last.Less(a) }

// at returns an address by its place in the range.
func (p *addressPool) at(i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], number(p.first)+uint32(i))
	return netip.AddrFrom4(b)
}

// pooledVMID is the VMID of 0.0.0.0. Those of machines with an address from a pool follow.
const pooledVMID = 700_000_000

// vmidOf returns the VMID of the machine with a static address: its last three bytes in
// decimal. The cluster gives a VMID once, whoever asks, and until the machine is deleted:
// so an address is claimed with the clone, in one step, and is free again with the end of
// the machine. It follows from the address alone, so that a changed range gives no address
// a second VMID.
func vmidOf(a netip.Addr) int {
	b := a.As4()
	return pooledVMID + int(b[1])*1_000_000 + int(b[2])*1_000 + int(b[3])
}

// addressOf returns the address of the pool that a VMID stands for.
func (p *addressPool) addressOf(vmid int) netip.Addr {
	rest := vmid - pooledVMID
	return netip.AddrFrom4([4]byte{p.first.As4()[0], byte(rest / 1_000_000), byte(rest / 1_000 % 1_000), byte(rest % 1_000)})
}

// pooled reports whether a VMID may be that of a machine with a static address.
func pooled(vmid int) bool {
	rest := vmid - pooledVMID
	return rest >= 0 && rest/1_000_000 < 256 && rest/1_000%1_000 < 256 && rest%1_000 < 256
}

// free returns the first address whose VMID is not taken, from one on that follows from
// the instance ID: two servers that create the same instance ask for the same.
func (p *addressPool) free(id nstance.InstanceID, taken map[int]bool) (netip.Addr, bool) {
	sum := sha256.Sum256([]byte(id))
	from := int(binary.BigEndian.Uint64(sum[:8]) % uint64(p.size()))
	for i := range p.size() {
		if a := p.at((from + i) % p.size()); !taken[vmidOf(a)] {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// setAddressPool finds the pool that the arguments name.
func (pl *plan) setAddressPool(o Options) error {
	name := pl.args.AddressPool
	if name == "" {
		return nil
	}
	pool, ok := o.AddressPools[name]
	if !ok {
		return nstance.FieldError("args.address_pool", nearest.Remedy(name, slices.Sorted(maps.Keys(o.AddressPools))), "%.64q is not in shard.provider.options.address_pools", name)
	}
	if pl.spec.Subnet == "" {
		return nstance.FieldError("args.address_pool", "name a bridge in subnet_pool", "there is no subnet")
	}
	var err error
	pl.pool, err = pool.parse(name)
	return err
}

// mac returns the MAC address of a card, if the machine has a static address: the guest
// finds the card by it. It is a locally administered one that follows from the instance ID.
func (pl *plan) mac(card int) string {
	if pl.args.AddressPool == "" {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", pl.spec.ID, card))
	return strings.ToUpper(net.HardwareAddr(append([]byte{2}, sum[:5]...)).String())
}

// ipConfig returns an address as an option of the configuration (qemu-server,
// QemuServer/Network.pm, ipconfig). It shows the address in the interface of Proxmox VE;
// the guest gets it from networkConfig.
func (p *addressPool) ipConfig(a netip.Addr) string {
	out := "ip=" + netip.PrefixFrom(a, p.bits).String()
	if p.gateway.IsValid() {
		out += ",gw=" + p.gateway.String()
	}
	return out
}

// networkConfig returns the file with which cloud-init configures the cards, in version 2
// of its format (cloud-init documentation, "Networking config Version 2"): YAML, of which
// JSON is a part. The first card gets the address, further ones use DHCP.
func (pl *plan) networkConfig(a netip.Addr) ([]byte, error) {
	first := map[string]any{"addresses": []string{netip.PrefixFrom(a, pl.pool.bits).String()}}
	if pl.pool.gateway.IsValid() {
		first["routes"] = []map[string]string{{"to": "0.0.0.0/0", "via": pl.pool.gateway.String()}}
	}
	if len(pl.pool.dns) > 0 {
		first["nameservers"] = map[string]any{"addresses": pl.pool.dns}
	}
	cards := map[string]map[string]any{"net0": first}
	for i := range pl.args.Networks {
		cards["net"+itoa(i+1)] = map[string]any{"dhcp4": true}
	}
	for name, card := range cards {
		card["match"] = map[string]string{"macaddress": strings.ToLower(pl.mac(atoi(strings.TrimPrefix(name, "net"))))}
	}
	return json.Marshal(map[string]any{"version": 2, "ethernets": cards})
}

// intended returns the VMIDs under which an instance with a static address may be cloned
// just now, without showing its name. Its image says so, which is uploaded before the clone
// and has the VMID in its name. Images on nodes that are offline are not seen: nothing runs
// there.
func (p *Provider) intended(ctx context.Context, list []resource, id nstance.InstanceID) (map[int]bool, error) {
	out := map[int]bool{}
	err := p.eachImage(ctx, list, id, func(_ resource, volume string) error {
		name := strings.TrimSuffix(volume, ".iso")
		if vmid := atoi(name[strings.LastIndex(name, "-")+1:]); pooled(vmid) {
			out[vmid] = true
		}
		return nil
	})
	return out, err
}

// worksOnOther reports whether this provider makes another instance under a VMID.
func (p *Provider) worksOnOther(id nstance.InstanceID, vmid int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.works {
		if w.marks.VMID == vmid && w.marks.ID != id && w.creating() {
			return true
		}
	}
	return false
}
