// Command registration gives a machine a certificate for its one-time nonce, and reads
// the machine's identity from it, as a server does from a client's certificate.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"log"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/registration"
)

func main() {
	ctx, now, memory := context.Background(), time.Now(), registration.NewMemory()
	keys, err := registration.NewKeys(now)
	exitIf(err)
	registrar, err := registration.New(keys, memory, &registration.Options{Cluster: "prod", Shard: "eu-1a"})
	exitIf(err)
	id, err := nstance.NewInstanceID("web", now)
	exitIf(err)

	// the server: a record, and a nonce for the machine's user data
	memory.Put(registration.Registration{ID: id, Kind: "web", Tenant: "default", Group: "web"})
	nonce, err := keys.Mint(registration.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: "prod", Shard: "eu-1a", Tenant: "default", Group: "web",
		NotBefore: now, Expiry: now.Add(20 * time.Minute),
	})
	exitIf(err)

	// the machine: a key of its own, and a request
	_, key, err := ed25519.GenerateKey(nil)
	exitIf(err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	exitIf(err)
	credential, err := registrar.Register(ctx, nstance.RegistrationRequest{Nonce: nonce, CSR: csr})
	exitIf(err)

	certificate, err := x509.ParseCertificate(credential.Chain[0])
	exitIf(err)
	identity, err := registration.IdentityOf(certificate)
	exitIf(err)
	fmt.Println(identity.Role, identity.Subject == string(id), "until", credential.NotAfter)
}

func exitIf(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
