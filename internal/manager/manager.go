// Package manager opens sources of secrets by their URLs, and is what the clouds'
// secret managers have in common: a name with a prefix, a request with a timeout, and an
// answer that is classified by its status, never by its text.
package manager

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/storage/secret"
)

// DefaultTimeout bounds one Get, retries of the client included.
const DefaultTimeout = 10 * time.Second

// Attempts is how often clients send a request. Callers use longer timeouts.
const Attempts = 3

// A Driver calls one service.
type Driver interface {
	// Get returns the current version of the secret with that full name.
	Get(ctx context.Context, name string) ([]byte, error)

	// Fault returns the service's answer, if err is one.
	Fault(err error) (Fault, bool)
}

// A Fault is an answer without a secret.
type Fault struct {
	Status int          // HTTP
	Word   string       // the service's own error code, such as AccessDeniedException; may be empty
	Means  nstance.Code // where the status alone is ambiguous; empty: by the status
}

// code classifies a fault. Only drivers return NotFound: 404 may be a wrong address.
func (f Fault) code() nstance.Code {
	switch {
	case f.Means != "":
		return f.Means
	case f.Status == http.StatusUnauthorized || f.Status == http.StatusForbidden:
		return nstance.Denied
	case f.Status == http.StatusTooManyRequests:
		return nstance.Throttled
	case f.Status == http.StatusNotFound || f.Status == http.StatusRequestTimeout || f.Status == http.StatusConflict:
		return nstance.Unavailable
	case f.Status >= 400 && f.Status < 500:
		return nstance.Invalid
	}
	return nstance.Unavailable
}

// Options of a Source. Zero fields mean the defaults.
type Options struct {
	Prefix  string        // goes before every name
	Timeout time.Duration // of one Get; DefaultTimeout
}

type source struct {
	driver  Driver
	service string // its common name
	opts    Options
}

// NotNamed is the error of a good answer that does not name the secret: the service has not
// given it, and it says nothing about the secret.
func NotNamed(name string) error {
	return nstance.Errorf(nstance.Unavailable, "secret %s: the answer does not name it", name)
}

// New returns the secrets of a service.
func New(d Driver, service string, o Options) secret.Source {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	return &source{d, service, o}
}

// Get implements secret.Source.
func (s *source) Get(ctx context.Context, name string) ([]byte, error) {
	if err := validate.SecretName("secret", name); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	data, err := s.driver.Get(ctx, s.opts.Prefix+name)
	if err != nil {
		return nil, s.failed(ctx, name, err)
	}
	return secret.Sized(name, data)
}

func (s *source) failed(ctx context.Context, name string, err error) error {
	if own, ok := errors.AsType[*nstance.Error](err); ok {
		return own
	}
	if f, ok := s.driver.Fault(err); ok {
		text := strconv.Itoa(f.Status)
		if f.Word != "" {
			text += " " + clip.Text(f.Word, 64)
		}
		return nstance.Errorf(f.code(), "secret %s: %s answered %s for %s", name, s.service, text, s.opts.Prefix+name)
	}
	if broken, ok := errors.AsType[*url.Error](err); ok {
		err = broken.Err // the URL may hold a signature
	}
	if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
		return nstance.Errorf(nstance.Unavailable, "secret %s: %s does not answer: %v: %w", name, s.service, err, cause)
	}
	return nstance.Errorf(nstance.Unavailable, "secret %s: %s does not answer: %w", name, s.service, err)
}
