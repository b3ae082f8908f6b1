package server

import (
	"cmp"
	"net"
	"net/netip"

	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/files"
)

// Addresses are where a server listens, or where others reach it.
type Addresses struct {
	HTTP, Registration, Operator, Agent string
	Peer                                string // empty: no other server serves the shard
}

// Addresses returns where the server listens, once Ready has returned nil; before, the
// zero value.
func (s *Server) Addresses() Addresses {
	select {
	case <-s.started:
		return s.ports.addresses()
	default:
		return Addresses{}
	}
}

func (l *listeners) addresses() Addresses {
	a := Addresses{
		HTTP: l.web.Addr().String(), Registration: l.registration.Addr().String(),
		Operator: l.operator.Addr().String(), Agent: l.agent.Addr().String(),
	}
	if l.peer.Listener != nil {
		a.Peer = l.peer.Addr().String()
	}
	return a
}

// bind returns where to listen.
func (s *Server) bind() config.Bind {
	b, own := s.config.InForce().Shard.Bind, s.opts.Bind
	return config.Bind{
		HTTP: cmp.Or(config.ListenAddr(own.HTTP), b.HTTP), Registration: cmp.Or(config.ListenAddr(own.Registration), b.Registration),
		Operator: cmp.Or(config.ListenAddr(own.Operator), b.Operator), Agent: cmp.Or(config.ListenAddr(own.Agent), b.Agent),
		Peer: cmp.Or(config.ListenAddr(own.Peer), b.Peer),
	}
}

// advertised returns where machines, operators and the other servers connect. By
// default that is the port that this server listens on: for clients at the movable
// address of the leader, if there is one, else at this server's own.
func (s *Server) advertised() Addresses {
	a, own, conf := s.ports.addresses(), s.opts.Advertise, s.config.InForce().Shard
	adv, leader := conf.Advertise, leaderHost(conf.LeaderAddress)
	for _, choice := range []struct {
		to   *string
		own  string
		conf config.DialAddr
		host string // instead of every address of this machine
	}{
		{&a.Registration, own.Registration, adv.Registration, leader},
		{&a.Operator, own.Operator, adv.Operator, leader},
		{&a.Agent, own.Agent, adv.Agent, leader},
		{&a.Peer, own.Peer, adv.Peer, ""},
	} {
		if said := cmp.Or(choice.own, string(choice.conf)); said != "" {
			*choice.to = said
		} else {
			*choice.to = reachable(*choice.to, choice.host, s.opts.Host, s.ports.host)
		}
	}
	return a
}

// reachable returns where others reach a port. A port on every address is reached at
// the first known host of the three; any other at host, or where it is bound.
func reachable(listen, leader, host, machine string) string {
	at, port, err := net.SplitHostPort(listen)
	if err != nil { // there is no such port
		return listen
	}
	ip, err := netip.ParseAddr(at)
	if err == nil && ip.IsUnspecified() {
		return net.JoinHostPort(cmp.Or(leader, host, machine, at), port)
	}
	return net.JoinHostPort(cmp.Or(host, at), port)
}

// serverAddresses returns the addresses of this server as templates know them.
func (s *Server) serverAddresses() files.Server {
	addrs := s.advertised()
	return files.Server{Shard: s.own.Shard.ID, RegistrationAddr: addrs.Registration, AgentAddr: addrs.Agent, OperatorAddr: addrs.Operator}
}

// hostNames returns the names and addresses that options and configuration give
// this server.
func (s *Server) hostNames() []string {
	conf, own := s.config.InForce().Shard, s.opts.Advertise
	names := []string{
		s.opts.Host, string(s.bind().HTTP), own.Registration, own.Operator, own.Agent, own.Peer,
		string(conf.Advertise.Registration), string(conf.Advertise.Operator), string(conf.Advertise.Agent), string(conf.Advertise.Peer),
	}
	for _, name := range conf.StatusPage.Hosts {
		names = append(names, string(name))
	}
	return names
}

// leaderHost returns the movable address if it is one that clients can dial;
// clouds may also name it otherwise.
func leaderHost(address string) string {
	if p, err := netip.ParsePrefix(address); err == nil && p.IsSingleIP() {
		return p.Addr().String()
	}
	if ip, err := netip.ParseAddr(address); err == nil {
		return ip.String()
	}
	return ""
}

// machineHost returns this machine's address on the way to other networks, or
// "" where there is no such way. Nothing is sent: these addresses are for
// documentation (RFC 5737, RFC 3849).
func machineHost() string {
	for _, far := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", far)
		if err != nil {
			continue
		}
		host, _, err := net.SplitHostPort(conn.LocalAddr().String())
		if conn.Close() == nil && err == nil {
			return host
		}
	}
	return ""
}
