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
	netip.MustParseAddr("fd00:ec2::254"), // AWS
	netip.MustParseAddr("fd20:ce::254"),  // Google Cloud
}

// embedding are networks whose addresses hold an IPv4 address in their last four
// bytes.
var embedding = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("::/96")}

// forbiddenSource reports whether an address belongs to this machine, its link or a
// metadata service: nothing is fetched from those.
func forbiddenSource(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	for _, p := range embedding {
		if b := addr.As16(); addr.Is6() && p.Contains(addr) {
			if v4 := netip.AddrFrom4([4]byte(b[12:])); forbiddenSource(v4) {
				return true
			}
		}
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
