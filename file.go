package nstance

import (
	"encoding/json"
	"time"
)

// A FileKind says where the content of a file comes from.
type FileKind string

// The kinds of files.
const (
	FileString      FileKind = "string"      // a template
	FileEnv         FileKind = "env"         // variables, a line each
	FileJSON        FileKind = "json"        // a JSON object whose strings are templates
	FileSecret      FileKind = "secret"      // a secret, or one field of it
	FileStorage     FileKind = "storage"     // an object in the shard's storage, as it is
	FileCertificate FileKind = "certificate" // part of a certificate for a key that the machine made
)

// A File is one file that the server keeps up to date on machines. Which fields
// are set depends on its kind.
type File struct {
	Kind        FileKind          `json:"kind"`
	Mode        uint32            `json:"mode,omitempty"`        // permission bits; 0: the agent's default
	Content     string            `json:"content,omitempty"`     // string: the template
	Env         map[string]string `json:"env,omitempty"`         // env: template of the value, by variable
	JSON        json.RawMessage   `json:"json,omitempty"`        // json: canonical
	Secret      string            `json:"secret,omitempty"`      // secret: its name
	Field       string            `json:"field,omitempty"`       // secret: the field of the JSON object in it; empty: all of it
	Object      string            `json:"object,omitempty"`      // storage: the object's key
	Certificate string            `json:"certificate,omitempty"` // certificate: its name
	Part        CertificatePart   `json:"part,omitempty"`        // certificate: what of it
}

// A CertificatePart is what of a certificate a file holds.
type CertificatePart string

// The parts.
const (
	PartCert  CertificatePart = "cert"  // the certificate alone
	PartChain CertificatePart = "chain" // followed by its issuer's
	PartCA    CertificatePart = "ca"    // what to trust for certificates of other machines
)

// A Certificate describes what the server certifies for a key that the machine
// generated. The key never leaves the machine.
type Certificate struct {
	CommonName string        `json:"common_name"`          // template
	DNSNames   []string      `json:"dns_names,omitempty"`  // templates
	DNSSuffix  string        `json:"dns_suffix,omitempty"` // names that machines report for themselves are accepted in this domain only; empty: in none
	Addresses  bool          `json:"addresses,omitempty"`  // include the machine's addresses, as the provider reports them
	Server     bool          `json:"server,omitempty"`     // valid for TLS servers
	Client     bool          `json:"client,omitempty"`     // valid for TLS clients
	Validity   time.Duration `json:"validity"`             // renewed after two thirds of it
	Key        string        `json:"key"`                  // name of the key on the machine
}

// A FileStatus is one file as it is on its machine.
type FileStatus struct {
	Path   string `json:"path"`
	Digest string `json:"digest,omitempty"` // sha256:<hex> of the content; empty: there is no such file
	Error  string `json:"error,omitempty"`  // why it differs from what the server sent
}
