package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"iter"
	"log/slog"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/version"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/server/internal/peers"
	"github.com/nstance-go/nstance/storage/lease"
)

// newPeers returns the connections to the other servers of the shard.
func (s *Server) newPeers() *peers.Peers {
	return peers.New(peers.Options{
		Cluster: s.own.Cluster.ID, Shard: s.own.Shard.ID, Version: version.Software, Log: s.log,
		TTL:         func() time.Duration { return s.config.InForce().Shard.Election.TTL },
		Address:     func() string { return s.advertised().Operator },
		Certificate: func() (*tls.Certificate, error) { return s.keys.Certificate() },
		Pool:        func() *x509.CertPool { return s.keys.Identity.Pool() },
		Announcements: func(ctx context.Context) (iter.Seq[lease.Announcement], error) {
			holder, ok := s.elector.(interface {
				Announcements(ctx context.Context) iter.Seq[lease.Announcement]
			})
			if s.term.Load() == nil || !ok {
				return nil, s.standingBy()
			}
			return holder.Announcements(ctx), nil
		},
	})
}

// elect returns this server's part in the lease that it shares with others.
func (s *Server) elect() (lease.Elector, error) {
	conf, at := s.config.InForce(), s.advertised()
	return lease.New(s.store, conf.Shard.ID, &lease.Options{
		Address: at.Operator, Registration: at.Registration, Peer: at.Peer, TTL: conf.Shard.Election.TTL,
		Watch: s.peers.Listen, Standby: s.peers.HasStandby, Marks: s.marks, OnChange: logLeader(s.log), Log: s.log,
	})
}

// leaderAddress returns where operators reach the leader; empty: unknown.
func (s *Server) leaderAddress() string {
	operator, _ := s.leaderAddresses()
	return operator
}

// knowsLeader reports whether this server leads or can name the leader.
func (s *Server) knowsLeader() bool { return s.leaderAddress() != "" }

// leaderAddresses returns where operators reach the leader, with a certificate and to
// get one; empty: unknown.
func (s *Server) leaderAddresses() (operator, registration string) {
	if s.term.Load() != nil {
		a := s.advertised()
		return a.Operator, a.Registration
	}
	known, ok := s.elector.(interface{ Holder() lease.Holder })
	if !ok {
		return "", ""
	}
	h := known.Holder()
	if h.Self || h.Released {
		return "", ""
	}
	return h.Address, h.Registration
}

// marks returns the highest epoch that any of the shard's machines is marked with. It
// is called where the lease is missing, as in a restored bucket.
func (s *Server) marks(ctx context.Context) (top uint64, err error) {
	conf := s.config.InForce()
	client, err := provider.New(s.provider, &provider.Options{Timeout: conf.Shard.RequestTimeout, Log: s.log})
	if err != nil {
		return 0, err
	}
	owner := nstance.Owner{Installation: s.keys.Installation, Cluster: conf.Cluster.ID, Shard: conf.Shard.ID}
	for m, err := range client.List(ctx, owner) {
		if err != nil {
			return 0, err
		}
		top = max(top, m.Epoch)
	}
	return top, nil
}

// logLeader returns what logs each change of the leader. The lease logs the terms of this
// server.
func logLeader(log *slog.Logger) func(lease.Holder) {
	return func(h lease.Holder) {
		switch {
		case h.Self:
		case h.ID == "":
			log.Info("no server leads")
		case h.Released:
			log.Info("the leader has released the lease", "leader", h.Address, "epoch", h.Epoch)
		default:
			log.Info("another server leads", "leader", h.Address, "epoch", h.Epoch)
		}
	}
}
