// Package proxy chooses between a proxy of the environment and a direct connection.
package proxy

import (
	"net/http"
	"net/netip"
	"net/url"
)

// ownServices are the addresses in IPv6 of what link-local ones are in IPv4: the metadata and the
// credentials of the machine that asks ("Instance metadata", EC2 User Guide). Another machine, such
// as that of a proxy, is answered with its own.
var ownServices = netip.MustParsePrefix("fd00:ec2::/32")

// Elsewhere returns a choice of proxies that has none for the machine's own services.
func Elsewhere(proxy func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	return func(r *http.Request) (*url.URL, error) {
		if a, err := netip.ParseAddr(r.URL.Hostname()); err == nil && (a.IsLinkLocalUnicast() || ownServices.Contains(a)) {
			return nil, nil
		}
		return proxy(r)
	}
}

// Client returns a client that connects as Go programs do, but without a proxy to the
// machine's own services.
func Client() *http.Client {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		t = &http.Transport{ForceAttemptHTTP2: true}
	}
	t = t.Clone()
	t.Proxy = Elsewhere(http.ProxyFromEnvironment)
	return &http.Client{Transport: t}
}
