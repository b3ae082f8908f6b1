package groups

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"

	"github.com/nstance-go/nstance"
)

// metadataAddrs are addresses of metadata services that no wider rule covers.
var metadataAddrs = []netip.Addr{
	netip.MustParseAddr("168.63.129.16"), // Azure
	netip.MustParseAddr("100.100.100.200"),
	netip.MustParseAddr("192.0.0.192"),
	netip.MustParseAddr("fd00:ec2::254"),      // AWS
	netip.MustParseAddr("fd20:ce::254"),       // Google Cloud
	netip.MustParseAddr("fd00:42::42"),        // Scaleway
	netip.MustParseAddr("fd00:c1::a9fe:a9fe"), // Oracle Cloud
}

// Networks whose addresses hold IPv4 addresses.
var (
	compatible  = netip.MustParsePrefix("::/96")           // RFC 4291, 2.5.5.1
	translated  = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765
	nat64       = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052
	localNAT64  = netip.MustParsePrefix("64:ff9b:1::/48")  // RFC 8215
	teredo      = netip.MustParsePrefix("2001::/32")       // RFC 4380
	sixToFour   = netip.MustParsePrefix("2002::/16")       // RFC 3056
	isatapBytes = []byte{0, 0, 0x5e, 0xfe}                 // RFC 5214, 6.1; the second bit of the first byte may be set
)

// embedded returns the IPv4 addresses that an IPv6 address may stand for.
func embedded(addr netip.Addr) (all []netip.Addr) {
	b := addr.As16()
	add := func(a, b, c, d byte) { all = append(all, netip.AddrFrom4([4]byte{a, b, c, d})) }
	last := func() { add(b[12], b[13], b[14], b[15]) }
	switch {
	case compatible.Contains(addr), translated.Contains(addr), nat64.Contains(addr):
		last()
	case localNAT64.Contains(addr): // the prefix within may have any of these lengths; RFC 6052, 2.2
		last()
		for _, at := range [][4]int{{6, 7, 9, 10}, {7, 9, 10, 11}, {9, 10, 11, 12}} {
			if v4 := [4]byte{b[at[0]], b[at[1]], b[at[2]], b[at[3]]}; v4[0] != 0 { // else it has another length
				add(v4[0], v4[1], v4[2], v4[3])
			}
		}
	case teredo.Contains(addr):
		add(b[4], b[5], b[6], b[7])
		add(^b[12], ^b[13], ^b[14], ^b[15])
	case sixToFour.Contains(addr):
		add(b[2], b[3], b[4], b[5])
	}
	if b[8]&^2 == isatapBytes[0] && slices.Equal(b[9:12], isatapBytes[1:]) {
		last()
	}
	return all
}

// forbiddenSource reports whether an address belongs to this machine, its link or a
// metadata service, or may be translated to one that does: nothing is fetched from those.
func forbiddenSource(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() && slices.ContainsFunc(embedded(addr), forbiddenSource) {
		return true
	}
	return !addr.IsValid() || addr.IsLoopback() || addr.IsUnspecified() || addr.IsMulticast() || addr.IsLinkLocalUnicast() ||
		addr.Is4() && (addr.As4()[0] == 0 || addr.As4()[0] >= 240) || slices.Contains(metadataAddrs, addr)
}

// permittedSource fails with Denied for a forbidden address that is not allowed.
func permittedSource(addr netip.Addr, allowed []netip.Prefix) error {
	addr = addr.Unmap().WithZone("")
	if !forbiddenSource(addr) || slices.ContainsFunc(allowed, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return nil
	}
	return &nstance.Error{
		Code: nstance.Denied, Msg: "user data may not be fetched from " + addr.String() + ", which is loopback, link-local or a metadata service",
		Remedy: "put it elsewhere, or list the network in shard.userdata_networks",
	}
}

// guarded is a transport that connects to no forbidden address. The address is
// checked when the connection is made, after names and redirects. A proxy of the
// environment resolves names itself: then only literal addresses are checked.
type guarded struct {
	direct, proxied *http.Transport
	allowed         func() []netip.Prefix
}

func newGuarded(allowed func() []netip.Prefix) *guarded {
	g := &guarded{allowed: allowed, direct: fetchTransport(), proxied: fetchTransport()}
	g.direct.Proxy, g.proxied.Proxy = nil, http.ProxyFromEnvironment
	dialer := &net.Dialer{Timeout: fetchTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return permittedSource(at.Addr(), g.allowed())
	}}
	g.direct.DialContext = dialer.DialContext
	return g
}

func fetchTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true // the digest is of the stored bytes
	t.DisableKeepAlives = true  // the allowed networks may change
	t.MaxResponseHeaderBytes = 64 << 10
	return t
}

// RoundTrip implements http.RoundTripper.
func (g *guarded) RoundTrip(req *http.Request) (*http.Response, error) {
	proxy, err := http.ProxyFromEnvironment(req)
	if err != nil {
		return nil, err
	}
	if proxy == nil {
		return g.direct.RoundTrip(req)
	}
	if addr, err := netip.ParseAddr(req.URL.Hostname()); err == nil {
		if err := permittedSource(addr, g.allowed()); err != nil {
			return nil, err
		}
	}
	return g.proxied.RoundTrip(req)
}

// CloseIdleConnections is for http.Client.
func (g *guarded) CloseIdleConnections() {
	g.direct.CloseIdleConnections()
	g.proxied.CloseIdleConnections()
}
