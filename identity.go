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

// An Identity is who a verified client certificate says the peer is.
type Identity struct {
	Subject  string // instance ID for agents, else a chosen client name
	Role     Role
	Tenant   TenantID
	Serial   string // lower-case hex
	Key      string // KeyFingerprint of its public key
	NotAfter time.Time
}

// A RegistrationRequest asks for a first certificate.
type RegistrationRequest struct {
	Nonce     string // the JWT from user data or nstance-admin cluster nonce
	CSR       []byte // PKCS#10, DER: proves possession of an Ed25519 key
	Addresses []netip.Addr
	Hostname  string
	Source    netip.Addr // where the request came from, as the server saw it
}

// A Credential is an issued certificate with what is needed to use it.
type Credential struct {
	Chain    [][]byte // DER, leaf first
	Roots    [][]byte // DER of the identity authority, and of its successor while it is being rotated
	Serial   string
	NotAfter time.Time
}
