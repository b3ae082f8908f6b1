package nstance

import (
	"encoding/json"
	"strings"
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

const (
	maxFilePath   = 255 // bytes
	maxSecretName = 64  // bytes
)

// ReservedFileDir is the one name in a receive directory that no file can have.
// The agent keeps its versions of the files there, so that it can switch all of
// them at once.
const ReservedFileDir = ".nstance"

// ValidateFilePath returns nil or an Invalid error that names field. A path is
// relative to the receive directory and never leads out of it: segments of
// letters, digits and some punctuation, joined by single slashes.
func ValidateFilePath(field, path string) error {
	const remedy = "use segments of A-Z, a-z, 0-9 and . _ - + @ :, joined by single slashes, such as app/app.env"
	if len(path) > maxFilePath {
		return FieldError(field, remedy, "path %q... has %d bytes, more than %d", path[:32], len(path), maxFilePath)
	}
	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case segment == "" || segment == "." || segment == "..":
			return FieldError(field, remedy, "path %q has the segment %q", path, segment)
		case strings.Trim(segment, fileChars) != "":
			return FieldError(field, remedy, "path %q contains a character that is not permitted", path)
		}
	}
	if first, _, _ := strings.Cut(path, "/"); first == ReservedFileDir {
		return FieldError(field, "use another name", "path %q is reserved for the agent", path)
	}
	return nil
}

const fileChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-+@:"

// ValidateFileMode returns nil or an Invalid error that names field. Files may
// hold secrets: users outside the file's group have no access, and nothing is
// executable.
func ValidateFileMode(field string, mode uint32) error {
	if mode&^0o660 != 0 || mode&0o400 == 0 {
		return FieldError(field, "use a mode such as 0600 or 0640: readable by its owner, closed to other users, not executable", "mode %#o is not permitted", mode)
	}
	return nil
}

// ValidateSecretName returns nil or an Invalid error that names field. The
// names under which a cluster keeps its own keys are refused: a key that signs
// certificates never becomes a file.
func ValidateSecretName(field, name string) error {
	const remedy = "use at most 64 of A-Z, a-z, 0-9, . _ and -, a letter or digit first"
	switch {
	case name == "" || len(name) > maxSecretName || strings.Trim(name, secretChars) != "" || strings.ContainsRune("._-", rune(name[0])):
		return FieldError(field, remedy, "%q is not the name of a secret", name[:min(len(name), maxSecretName)])
	case strings.HasSuffix(name, ".key") || strings.HasSuffix(name, ".crt") || strings.Contains(name, "-ca") ||
		strings.HasPrefix(name, "nonce") || name == "installation":
		return FieldError(field, "use another name", "%q is a name of the cluster's own keys", name)
	}
	return nil
}

const secretChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
