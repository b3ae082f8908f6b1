package registration_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/registration"
)

// newRequest returns a certificate request (PKCS#10, DER) for a new key.
func newRequest() ([]byte, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
}

func Example() {
	ctx, now := context.Background(), time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	memory := registration.NewMemory()
	keys, err := registration.NewKeys(now)
	if err != nil {
		fmt.Println(err)
		return
	}
	registrar, err := registration.New(keys, memory, &registration.Options{
		Cluster: "prod", Shard: "eu-1a", Now: func() time.Time { return now },
		Alarm: func(e nstance.Event) { fmt.Println("alarm:", e.Reason) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	// The server writes an intent, and the nonce into the machine's user data.
	const id = nstance.InstanceID("web06bgm7733st2576nx5jht4ecjw")
	memory.Put(registration.Registration{ID: id, Kind: "web", Tenant: "default", Group: "web"})
	nonce, err := keys.Mint(registration.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: "prod", Shard: "eu-1a", Tenant: "default", Group: "web",
		NotBefore: now, Expiry: now.Add(20 * time.Minute),
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	// The agent on it makes a key and registers; a repeat heals a lost reply.
	csr, err := newRequest()
	if err != nil {
		fmt.Println(err)
		return
	}
	first, err := registrar.Register(ctx, nstance.RegistrationRequest{Nonce: nonce, CSR: csr})
	fmt.Println(err, first.NotAfter.Sub(now))
	again, err := registrar.Register(ctx, nstance.RegistrationRequest{Nonce: nonce, CSR: csr})
	fmt.Println(err, first.Serial == again.Serial)

	// Another party has seen the nonce.
	csr, err = newRequest()
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = registrar.Register(ctx, nstance.RegistrationRequest{Nonce: nonce, CSR: csr})
	fmt.Println(nstance.CodeOf(err))
	// Output:
	// <nil> 24h0m0s
	// <nil> true
	// alarm: agent web06bgm7733st2576nx5jht4ecjw: nonce web06bgm7733st2576nx5jht4ecjw was used again with another key, or after a renewal
	// denied
}
