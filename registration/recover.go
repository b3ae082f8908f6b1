package registration

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
)

// maxCertificate bounds the certificate in a recovery, in bytes. An agent's is
// about 500.
const maxCertificate = 4 << 10

// recoverAgent renews a certificate that its holder cannot show in a handshake
// any more, because it has expired. All that a handshake checks is checked here:
// the authority's signature, the role, the use, and possession of the key. What
// the record says counts as it does for every renewal. A certificate that has
// not expired is taken as well: whose clock is right makes no difference to
// whose key it is.
func (r *Registrar) recoverAgent(ctx context.Context, req nstance.RegistrationRequest) (*KeyRecord, error) {
	if err := r.limits.source(req.Source, r.opts.Now()); err != nil {
		return nil, err
	}
	addresses, err := machineAddresses(req)
	if err != nil {
		return nil, err
	}
	id, err := r.proven(req)
	if err != nil {
		return nil, err
	}
	rec := agentHolder{r.records, id, nstance.InstanceID(id.Subject), func(reg *Registration) {
		reg.Addresses, reg.Hostname = addresses, req.Hostname // it may have slept for months
	}}
	return r.renew(ctx, rec, id, req.CSR)
}

// proven returns whom the certificate names, once the request has proved to be
// its holder's. Only what the authority signed raises an alarm: strangers who
// make up certificates must not be able to call people out of bed.
func (r *Registrar) proven(req nstance.RegistrationRequest) (nstance.Identity, error) {
	rec := req.Recovery
	if req.Nonce != "" || len(rec.Certificate) > maxCertificate {
		return nstance.Identity{}, nstance.FieldError("certificate", "send the agent's own certificate in DER, and no nonce",
			"is %d bytes long, beside a nonce of %d", len(rec.Certificate), len(req.Nonce))
	}
	cert, err := x509.ParseCertificate(rec.Certificate)
	if err != nil {
		return nstance.Identity{}, nstance.FieldError("certificate", "send the agent's own certificate in DER", "cannot be parsed: %v", err)
	}
	id, err := r.vouched(cert)
	if err != nil {
		return nstance.Identity{}, err
	}
	key, _ := cert.PublicKey.(ed25519.PublicKey) // IdentityOf accepts no other
	if err := pki.VerifyRecovery(key, rec.Binding, req.CSR, rec.Proof); err != nil {
		r.alarm(id, "certificate %s was shown for recovery without proof of its key", id.Serial)
		return nstance.Identity{}, err
	}
	return id, nil
}

// vouched returns whom a certificate of ours names, as of the last moment at
// which it was good.
func (r *Registrar) vouched(cert *x509.Certificate) (nstance.Identity, error) {
	if _, err := cert.Verify(x509.VerifyOptions{
		Roots: r.authority.Pool(), CurrentTime: cert.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return nstance.Identity{}, refuseField(nstance.Denied, "certificate", "the instance is replaced", "is not good for recovery: %v", err)
	}
	id, err := pki.IdentityOf(cert)
	if err != nil {
		return nstance.Identity{}, err
	}
	if id.Role != nstance.RoleAgent {
		return nstance.Identity{}, refuseField(nstance.Denied, "certificate", "register again with a new nonce",
			"is for role %s, and only agents recover", id.Role)
	}
	return id, nil
}
