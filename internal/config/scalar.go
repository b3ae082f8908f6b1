package config

import (
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/validate"
)

// Validate returns nil or an Invalid error that names field.
func (n TemplateName) Validate(field string) error { return validate.Name(field, string(n)) }

// Validate returns nil or an Invalid error that names field.
func (n PoolName) Validate(field string) error { return validate.Name(field, string(n)) }

// A ListenAddr is host:port. An empty host means every interface, port 0 any
// free port.
type ListenAddr string

// Validate returns nil or an Invalid error that names field.
func (a ListenAddr) Validate(field string) error {
	_, _, err := split(field, string(a))
	return err
}

// A DialAddr is host:port, complete enough to connect to; or empty.
type DialAddr string

// Validate returns nil or an Invalid error that names field.
func (a DialAddr) Validate(field string) error {
	host, port, err := split(field, string(a))
	if err == nil && (host == "" || port == 0) {
		return nstance.FieldError(field, "name a host and a port", "no peer can connect to %q", clip.Quote(string(a)))
	}
	return err
}

// A HostName is a name in the DNS.
type HostName string

// Validate returns nil or an Invalid error that names field.
func (h HostName) Validate(field string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"
	if h == "" || len(h) > 253 || strings.Trim(string(h), allowed) != "" {
		return nstance.FieldError(field, "write a name such as nstance.example.org, without port", "%q is not a host name", clip.Quote(string(h)))
	}
	return nil
}

func split(field, addr string) (host string, port uint64, err error) {
	host, digits, err := net.SplitHostPort(addr)
	if err == nil {
		port, err = strconv.ParseUint(digits, 10, 16)
	}
	if err != nil {
		return "", 0, nstance.FieldError(field, "write host:port, such as 127.0.0.1:8990", "%q is not an address", clip.Quote(addr))
	}
	return host, port, nil
}

// parseDuration returns what is wrong with s, or "".
func parseDuration(s string) (d time.Duration, wrong string) {
	d, err := duration.Parse(s)
	if err != nil {
		return 0, err.Error()
	}
	return d, ""
}
