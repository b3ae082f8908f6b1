// Package confighash decides which changes of a group's definition concern its
// machines, and how.
//
// A definition has two hashes. The infra hash covers what only a new machine
// can change: kind, architecture, instance types, subnet pool, user data,
// provider arguments and market. When it differs from the one in an instance's
// record, the instance is drifted and a rollout replaces it. The runtime hash
// covers what can be pushed to a machine that runs: variables and files.
// Neither covers what is for display, load balancers or any timeout, so that
// turning such a knob never replaces a fleet. What only some want to be covered,
// such as the image that a name stands for, is covered where
// [nstance.Definition].Track names it.
//
// A hash is the SHA-256 of canonical JSON, which [Canonical] describes, behind
// the version of the rules that made it. The structs that are hashed are this
// package's own: a field added to [nstance.Definition] changes no hash until it
// is added here too. Every field here is left out of the JSON while it is
// empty, so adding one changes only the hashes of those who use it.
//
// Its functions keep no state and may be called concurrently.
package confighash

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/nstance-go/nstance"
)

// prefix is the version of everything below that shapes the hashed bytes. The
// golden files hold it still.
const prefix = "v1:sha256:"

// A Hash is "v1:sha256:" and 64 hexadecimal digits. Empty means unknown.
type Hash string

// version returns the version of the rules that made h, such as v1, or "" for
// an unknown or malformed hash.
func (h Hash) version() string {
	v, rest, ok := strings.Cut(string(h), ":sha256:")
	if !ok || len(rest) != 2*sha256.Size {
		return ""
	}
	return v
}

// Drifted reports whether have was definitely made from something else than
// want. An unknown hash, and one made by another version of the rules, is no
// evidence of drift: a missing record must not replace a fleet, and neither
// must an upgrade of this package.
func Drifted(have, want Hash) bool {
	v := want.version()
	return v != "" && have.version() == v && have != want
}

// Infra returns the infra hash of d. It fails with Invalid when its arguments are not
// a JSON object.
func Infra(d nstance.Definition) (Hash, error) {
	i, err := infraOf(d).normal()
	if err != nil {
		return "", err
	}
	return sum(i)
}

// infra is what the infra hash covers.
type infra struct {
	Kind          string          `json:"kind,omitempty"`
	Arch          string          `json:"arch,omitempty"`
	InstanceTypes []string        `json:"instance_types,omitempty"` // the order is part of it
	SubnetPool    string          `json:"subnet_pool,omitempty"`    // its name: subnets added to a pool concern no machine
	Args          json.RawMessage `json:"args,omitempty"`
	UserData      userData        `json:"userdata,omitzero"`
	Market        market          `json:"market,omitzero"`
	Tracked       tracked         `json:"tracked,omitzero"`
}

// userData is the template, before rendering: where it is to be fetched, its
// address.
type userData struct {
	Source   string `json:"source,omitempty"`
	Encoding string `json:"encoding,omitempty"`
	Content  string `json:"content,omitempty"`
	SHA256   string `json:"sha256,omitempty"`
}

// market leaves out how long to wait before a fallback, which is a timeout.
type market struct {
	Type     string `json:"type,omitempty"`
	MaxPrice string `json:"max_price,omitempty"`
	Fallback string `json:"fallback,omitempty"`
}

// infraOf returns what the infra hash of d covers. It shares memory with d.
func infraOf(d nstance.Definition) infra {
	return infra{
		Kind:          string(d.Kind),
		Arch:          string(d.Arch),
		InstanceTypes: d.InstanceTypes,
		SubnetPool:    d.SubnetPool,
		Args:          d.Args,
		UserData:      userData{string(d.UserData.Source), string(d.UserData.Encoding), d.UserData.Content, d.UserData.SHA256},
		Market:        market{string(d.Market.Type), d.Market.MaxPrice, string(d.Market.Fallback)},
		Tracked:       trackedOf(d),
	}
}

// normal returns i with the one spelling of everything that has several: a
// default that is written out equals one that is left out.
func (i infra) normal() (infra, error) {
	i.UserData.Source = unless(i.UserData.Source, "inline")
	i.UserData.Encoding = unless(i.UserData.Encoding, "plain")
	i.Market.Type = unless(i.Market.Type, string(nstance.OnDemand))
	i.Market.Fallback = unless(i.Market.Fallback, "none")
	var err error
	i.Args, err = Canonical(i.Args)
	return i, err
}

func unless(s, def string) string {
	if s == def {
		return ""
	}
	return s
}

// Runtime returns the runtime hash of d. It fails with Invalid when a file's JSON is
// not a JSON object.
func Runtime(d nstance.Definition) (Hash, error) {
	r := runtimeOf(d)
	for path, f := range r.Files {
		var err error
		if f.JSON, err = Canonical(f.JSON); err != nil {
			return "", err
		}
		r.Files[path] = f
	}
	return sum(r)
}

// runtime is what the runtime hash covers.
type runtime struct {
	Vars         map[string]string      `json:"vars,omitempty"`
	Files        map[string]file        `json:"files,omitempty"`        // by path
	Certificates map[string]certificate `json:"certificates,omitempty"` // by name
	PostApply    []string               `json:"post_apply,omitempty"`
}

// A file is what the content of one file depends on, never the content itself.
type file struct {
	Kind   string            `json:"kind,omitempty"`
	Source string            `json:"source,omitempty"` // the template, or the name of the secret, object or certificate
	Part   string            `json:"part,omitempty"`   // of the secret or certificate
	Env    map[string]string `json:"env,omitempty"`
	JSON   json.RawMessage   `json:"json,omitempty"`
	Mode   uint32            `json:"mode,omitempty"`
}

// A certificate is what a certificate states, before rendering, and how long it
// lives.
type certificate struct {
	CommonName string   `json:"common_name,omitempty"`
	DNSNames   []string `json:"dns_names,omitempty"`
	Addresses  bool     `json:"addresses,omitempty"`
	Server     bool     `json:"server,omitempty"`
	Client     bool     `json:"client,omitempty"`
	Validity   string   `json:"validity,omitempty"`
	Key        string   `json:"key,omitempty"`
}

// runtimeOf returns what the runtime hash of d covers. It shares memory with d.
func runtimeOf(d nstance.Definition) runtime {
	r := runtime{Vars: d.Vars, PostApply: d.PostApply}
	for path, f := range d.Files {
		if r.Files == nil {
			r.Files = map[string]file{}
		}
		r.Files[path] = file{
			Kind: string(f.Kind), Source: f.Content + f.Secret + f.Object + f.Certificate, // of which its kind has one
			Part: f.Field + string(f.Part), Env: f.Env, JSON: f.JSON, Mode: f.Mode,
		}
	}
	for name, c := range d.Certificates {
		if r.Certificates == nil {
			r.Certificates = map[string]certificate{}
		}
		r.Certificates[name] = certificate{c.CommonName, c.DNSNames, c.Addresses, c.Server, c.Client, c.Validity.String(), c.Key}
	}
	return r
}

func sum(v any) (Hash, error) {
	b, err := encode(v)
	if err != nil {
		return "", err
	}
	digest := sha256.Sum256(b)
	return Hash(prefix + hex.EncodeToString(digest[:])), nil
}

// encode writes v without insignificant space, map keys sorted, <, > and & as
// they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, nstance.Errorf(nstance.Internal, "encode for hashing: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
