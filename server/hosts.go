package server

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// probePaths are served whatever name they are asked by: load balancers invent
// one, and the answer says nothing.
var probePaths = map[string]bool{"/healthz": true, "/readyz": true}

// knownHosts refuses requests to a name that is not this server's. A page of
// another site may let its own name point here, and the visitor's browser would
// let it read the answers (DNS rebinding). An address in place of a name cannot
// be pointed elsewhere.
func (s *Server) knownHosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if probePaths[r.URL.Path] || s.isKnownHost(r.Host) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		http.Error(w, "this name is not known to be the server's: add it to shard.status_page.hosts", http.StatusMisdirectedRequest)
	})
}

func (s *Server) isKnownHost(host string) bool {
	name := bareHost(host)
	if _, err := netip.ParseAddr(name); err == nil || name == "" {
		return true // HTTP/1.0 has no name; browsers always send one
	}
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || slices.Contains(s.hostNames(), name)
}

// hostNames returns the names that options and configuration give this server.
func (s *Server) hostNames() []string {
	conf, own := s.config().Shard, s.opts.Advertise
	names := []string{bareHost(s.opts.Host), bareHost(string(s.bind().HTTP))}
	for _, addr := range []string{
		string(own.Registration), string(own.Operator), string(own.Agent), string(own.Peer),
		string(conf.Advertise.Registration), string(conf.Advertise.Operator), string(conf.Advertise.Agent), string(conf.Advertise.Peer),
	} {
		names = append(names, bareHost(addr))
	}
	for _, name := range conf.StatusPage.Hosts {
		names = append(names, bareHost(string(name)))
	}
	return names
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
