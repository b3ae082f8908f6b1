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

// recoverAgent renews a certificate that TLS does not accept any more because it
// has expired. It checks what a handshake checks: the authority's signature, the
// role, the key usage, and possession of the key; and the record, as every renewal
// does. A certificate that has not expired is accepted too, because the clocks may
// differ.
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
	if err := r.limits.subject(id, r.opts.Now()); err != nil { // of a renewal: it is one
		return nil, err
	}
	rec := agentHolder{r.records, id, nstance.InstanceID(id.Subject), func(reg *Registration) {
		reg.Addresses, reg.Hostname = addresses, req.Hostname // they may have changed since registration
	}}
	return r.renew(ctx, rec, id, req.CSR)
}

// proven returns the identity in the certificate after it has verified the proof
// of its key. A wrong proof raises an alarm only for a certificate that the
// authority signed: forged certificates must not page an operator.
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
	id, err := r.verifyExpired(cert)
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

// verifyExpired returns the identity in a certificate of the cluster, verified as
// of the end of its validity.
func (r *Registrar) verifyExpired(cert *x509.Certificate) (nstance.Identity, error) {
	if _, err := cert.Verify(x509.VerifyOptions{
		Roots: r.authority.Pool(), CurrentTime: cert.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return nstance.Identity{}, refuseField(nstance.Denied, "certificate", "the instance is replaced", "is not valid for recovery: %v", err)
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
