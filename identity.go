package nstance

import (
	"net/netip"
	"time"
)

// A Role is what a certificate permits its holder to be.
type Role string

// The roles.
const (
	RoleAgent    Role = "agent"    // one instance
	RoleOperator Role = "operator" // one tenant
	RoleAdmin    Role = "admin"    // the whole shard
	RoleServer   Role = "server"   // the server of one shard
)

// An Identity is what a verified client certificate says about the peer.
type Identity struct {
	Subject  string    `json:"subject,omitempty"` // instance ID for agents, else a chosen client name
	Role     Role      `json:"role"`
	Tenant   TenantID  `json:"tenant"`
	Serial   string    `json:"serial,omitempty"` // lower-case hex
	Key      string    `json:"key,omitempty"`    // KeyFingerprint of its public key
	Issuer   string    `json:"issuer,omitempty"` // ID of the authority's key that signed it, lower-case hex
	NotAfter time.Time `json:"not_after,omitzero"`
}

// A RegistrationRequest asks for a first certificate, or with Recovery for the
// successor of one that has expired.
type RegistrationRequest struct {
	Nonce     string // the JWT from user data or nstance-admin cluster nonce
	CSR       []byte // PKCS#10, DER: proves possession of an Ed25519 key
	Addresses []netip.Addr
	Hostname  string
	Source    netip.Addr // where the request came from, as the server saw it
	Recovery  *Recovery  // takes the place of Nonce; for agents only
}

// A Recovery proves that the caller still holds the key of a certificate that
// TLS does not accept any more because it has expired.
type Recovery struct {
	Certificate []byte // DER
	Proof       []byte // by the certificate's key, over Binding and the CSR
	Binding     []byte // identifies the connection, as the server sees it: a proof is valid on that connection only
}

// A Credential is an issued certificate with what is needed to use it.
type Credential struct {
	Chain    [][]byte // DER, leaf first
	Roots    [][]byte // DER of the identity authority, and of its successor while it is being rotated
	Serial   string
	NotAfter time.Time
}
