package registration_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

// rig connects clients to a server over net.Pipe, so that only cryptography and records
// count.
type rig struct {
	*world
	server   *tls.Certificate
	client   *tls.Certificate
	requests []nstance.RegistrationRequest
	issued   []registration.Registration
}

func newRig(b *testing.B) *rig {
	unlimited := registration.Limit{PerSecond: 1e12, Burst: 1e9}
	r := &rig{world: newWorld(b, &registration.Options{PerSource: unlimited, Global: unlimited})}
	r.now = time.Now()
	var err error
	r.keys, err = keyring.Bootstrap(b.Context(), newVault(), r.now)
	require.NoError(b, err)
	r.reg, err = registration.New(registration.KeysOf(r.keys.Identity, r.keys.Nonces), r.store, &registration.Options{
		Cluster: cluster, Shard: shard, PerSource: unlimited, Global: unlimited,
	})
	require.NoError(b, err)
	r.server, err = r.keys.Identity.Server(shard, cluster, time.Hour, r.now)
	require.NoError(b, err)
	for range 256 {
		id, nonce := r.instance()
		r.issued = append(r.issued, r.store.truth[id])
		r.requests = append(r.requests, nstance.RegistrationRequest{Nonce: nonce, CSR: csrOf(b, pki.NewKey()), Source: source})
	}
	key := pki.NewKey()
	issued, err := r.keys.Identity.Issue(keyring.Template{
		Subject: string(r.issued[0].ID), Tenant: "default", Key: public(key), Role: nstance.RoleAgent, Lifetime: 24 * time.Hour, Now: r.now,
	})
	require.NoError(b, err)
	leaf, err := x509.ParseCertificate(issued.Certificate)
	require.NoError(b, err)
	r.client, err = pki.Pair(key, leaf)
	require.NoError(b, err)
	return r
}

// connect completes one handshake on both sides.
func (r *rig) connect(client, server *tls.Config) error {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	done := make(chan error, 1)
	go func() { done <- tls.Client(near, client).Handshake() }()
	err := tls.Server(far, server).Handshake()
	if cerr := <-done; err == nil {
		err = cerr
	}
	return err
}

// mutual is the floor: a bare mutual handshake, as crypto/tls does it.
func (r *rig) mutual() func() error {
	roots := r.keys.Identity.Pool()
	server := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*r.server}, SessionTicketsDisabled: true,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
	}
	client := &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: pki.ServerName(shard, cluster),
		Certificates: []tls.Certificate{*r.client},
	}
	return func() error { return r.connect(client, server) }
}

// registration is the measured part: a handshake with the server and one first
// registration of an instance.
func (r *rig) registration() func() error {
	server := pki.RegistrationTLS(func() (*tls.Certificate, error) { return r.server, nil })
	client := pki.ClientTLS(r.keys.Identity.Pool(), nil, shard, cluster)
	n := 0
	return func() error {
		if err := r.connect(client, server); err != nil {
			return err
		}
		i := n % len(r.requests)
		n++
		r.store.mu.Lock()
		r.store.truth[r.issued[i].ID] = r.issued[i]
		r.store.mu.Unlock()
		cred, err := r.reg.Register(context.Background(), r.requests[i])
		if err == nil {
			_, err = x509.ParseCertificate(cred.Chain[0])
		}
		return err
	}
}

// BenchmarkRegister does one registration for each bare mutual TLS 1.3
// handshake, in turn. The metric "of-floor" is registrations per second divided
// by handshakes per second.
func BenchmarkRegister(b *testing.B) {
	r := newRig(b)
	floor, subject := r.mutual(), r.registration()
	var floorTime, subjectTime time.Duration
	timed := func(total *time.Duration, op func() error) {
		start := time.Now()
		if err := op(); err != nil {
			b.Fatal(err)
		}
		*total += time.Since(start)
	}
	for b.Loop() {
		timed(&floorTime, floor)
		timed(&subjectTime, subject)
	}
	n := float64(b.N)
	b.ReportMetric(floorTime.Seconds()/subjectTime.Seconds(), "of-floor")
	b.ReportMetric(n/floorTime.Seconds(), "handshakes/s")
	b.ReportMetric(n/subjectTime.Seconds(), "registrations/s")
	require.Empty(b, r.alarms)
}
