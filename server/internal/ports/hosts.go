package ports

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// probePaths are served under every host name: load balancers use names of their
// own, and the answer holds nothing secret.
var probePaths = map[string]bool{"/healthz": true, "/readyz": true}

// KnownHosts refuses requests to a host name that is not among names, which may
// be addresses with a port. A page of another site may let its own name point
// here, and the visitor's browser would let it read the answers (DNS rebinding).
// An IP address in place of a name cannot be pointed elsewhere.
func KnownHosts(next http.Handler, names func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if probePaths[r.URL.Path] || isKnownHost(r.Host, names) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		http.Error(w, "this name is not known to be the server's: add it to shard.status_page.hosts", http.StatusMisdirectedRequest)
	})
}

func isKnownHost(host string, names func() []string) bool {
	name := bareHost(host)
	if _, err := netip.ParseAddr(name); err == nil || name == "" {
		return true // HTTP/1.0 has no name; browsers always send one
	}
	return name == "localhost" || strings.HasSuffix(name, ".localhost") ||
		slices.ContainsFunc(names(), func(known string) bool { return bareHost(known) == name })
}

// bareHost returns the host of an address, without port, brackets or final dot,
// in lower case.
func bareHost(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.Trim(addr, "[]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
