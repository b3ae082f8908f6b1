package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/registration"
)

const (
	// certLife is how long the server's own certificate lives. It exists only in
	// memory and is made anew by each process.
	certLife = 24 * time.Hour
	// keyInterval is how often every server, leader or not, looks whether the
	// cluster's keys have changed: several times within registration.Settle.
	keyInterval = time.Minute
	// keyTimeout bounds one such look.
	keyTimeout = 10 * time.Second
)

// serverCert is this process's own certificate, made anew at two thirds of its
// life, and when another key signs for servers.
type serverCert struct {
	s      *Server
	mu     sync.Mutex
	cert   *tls.Certificate
	issuer string
	renew  time.Time
}

// get returns the certificate for a handshake.
func (c *serverCert) get() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, issuer := c.s.opts.Now(), c.s.keys.Identity.ServerIssuer()
	if c.cert != nil && now.Before(c.renew) && c.issuer == issuer {
		return c.cert, nil
	}
	conf := c.s.config()
	cert, err := c.s.keys.Identity.Server(conf.Shard.ID, conf.Cluster.ID, certLife, now)
	if err != nil {
		return nil, err
	}
	c.cert, c.issuer, c.renew = cert, issuer, now.Add(certLife*2/3)
	return cert, nil
}

// openKeys reads the cluster's keys, or makes them.
func (s *Server) openKeys(ctx context.Context) (err error) {
	if s.ring, err = registration.OpenKeyring(ctx, vault.New(s.store, s.opts.Secrets), s.opts.Now); err != nil {
		return err
	}
	s.keys, s.cert = s.ring.Keys(), &serverCert{s: s}
	s.followed.Store(s.ring.Changes())
	_, err = s.cert.get()
	return err
}

// keepKeys follows the cluster's keys until ctx ends.
func (s *Server) keepKeys(ctx context.Context) {
	timer := time.NewTimer(s.opts.KeyInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := s.refreshKeys(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("keys not read", "code", nstance.CodeOf(err), "err", err)
		}
		if t := s.term.Load(); t != nil {
			t.tendKeys(ctx)
		}
		timer.Reset(s.opts.KeyInterval - rand.N(s.opts.KeyInterval/10+1)) // servers that began together spread out
	}
}

// refreshKeys looks once whether the keys have changed.
func (s *Server) refreshKeys(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	_, err := s.ring.Refresh(ctx)
	s.followKeys()
	return err
}

// followKeys ends what rests on keys that are gone, and asks for certificates of
// the new ones, if the keys have changed since it was last called.
func (s *Server) followKeys() {
	if n := s.ring.Changes(); s.followed.Swap(n) == n {
		return
	}
	identity := s.keys.Identity
	s.log.Info("keys changed", "identity", identity.Issuer(), "identity_trusted", len(identity.Issuers()),
		"workload", s.keys.Workload.Issuer(), "nonce", s.keys.Nonces.KeyID())
	if t := s.term.Load(); t != nil {
		t.keysChanged()
	}
}

// freshKeys makes sure that a term does not begin with keys so old that a
// rotation may have passed them by. Ordinarily they were read within the last
// minute.
func (s *Server) freshKeys(ctx context.Context) error {
	if s.keyAge() < registration.Settle/2 {
		return nil
	}
	return s.refreshKeys(ctx)
}

func (s *Server) keyAge() time.Duration { return s.opts.Now().Sub(s.ring.ReadAt()) }

// keyProblems returns what a person should see of the keys.
func (s *Server) keyProblems() []string {
	if age := s.keyAge(); age > registration.Settle/2 {
		return []string{fmt.Sprintf("the cluster's keys, %s in storage, could not be read for %s: a rotation would go unnoticed here",
			keysObject, age.Truncate(time.Second))}
	}
	return nil
}

// retired returns the key of a set that is being retired.
func (s *Server) retired(set string) (registration.KeyEntry, bool) {
	for _, k := range s.ring.Set(set).Keys {
		if k.Phase == registration.PhaseRetired {
			return k, true
		}
	}
	return registration.KeyEntry{}, false
}
