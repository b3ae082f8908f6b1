package secret

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/regular"
	"github.com/nstance-go/nstance/internal/validate"
)

// MaxSize is the limit, in bytes, of a secret that is not in the cluster's own
// storage: 64 KiB, which no secret manager exceeds.
const MaxSize = 64 << 10

// A Source returns the secrets that become files on machines. It is safe for
// concurrent use.
type Source interface {
	// Get returns the secret of that name as it is now. It fails with Invalid
	// when the name is none or the secret is empty or longer than MaxSize,
	// NotFound when the source has definitely no such secret, Denied when it
	// may not be read, Throttled or Unavailable when a retry may help.
	// Errors never quote a secret.
	Get(ctx context.Context, name string) ([]byte, error)
}

// envChars are those of portable names (POSIX 8.1).
const envChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

type env struct {
	prefix string
	lookup func(string) (string, bool)
}

// Env returns the secrets in this process's environment: db-password is in
// prefix+"DB_PASSWORD", with . like -. The prefix ends in an underscore, so that
// not every variable is a secret for machines, and does not begin with NSTANCE_,
// where the cluster's own key is. It fails with Invalid otherwise.
func Env(prefix string) (Source, error) {
	stem := strings.TrimSuffix(prefix, "_")
	switch {
	case stem == "" || stem == prefix || strings.Trim(prefix, envChars) != "" || strings.ContainsRune("0123456789_", rune(prefix[0])):
		return nil, nstance.FieldError("prefix", "use capitals, digits and _, such as env://APP_SECRET_", "names no prefix of variables that ends in _")
	case strings.HasPrefix(prefix, "NSTANCE_"):
		return nil, nstance.FieldError("prefix", "use another prefix", "names variables of the server itself")
	}
	return &env{prefix, os.LookupEnv}, nil
}

// Get implements Source.
func (e *env) Get(_ context.Context, name string) ([]byte, error) {
	if err := validate.SecretName("secret", name); err != nil {
		return nil, err
	}
	variable := e.prefix + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name))
	value, ok := e.lookup(variable)
	if !ok {
		return nil, nstance.Errorf(nstance.NotFound, "there is no secret %s: variable %s is not set", name, variable)
	}
	return Sized(name, []byte(value))
}

// Sized returns data, or Invalid if it is empty or longer than MaxSize.
func Sized(name string, data []byte) ([]byte, error) {
	switch {
	case len(data) == 0:
		return nil, nstance.Errorf(nstance.Invalid, "secret %s is empty", name)
	case len(data) > MaxSize:
		return nil, nstance.Errorf(nstance.Invalid, "secret %s has more than %d bytes", name, MaxSize)
	}
	return data, nil
}

type dir string

// Dir returns the secrets in a directory, a file each, as a container platform
// mounts them. What a file links to counts, if it is in the directory too. It
// fails with Invalid unless path is absolute.
func Dir(path string) (Source, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) == string(filepath.Separator) {
		return nil, nstance.FieldError("path", "use file:///directory", "names no directory by its whole path")
	}
	return dir(filepath.Clean(path)), nil
}

// Get implements Source.
func (d dir) Get(_ context.Context, name string) ([]byte, error) {
	if err := validate.SecretName("secret", name); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(string(d)) // each time: it may be mounted anew
	if err != nil {
		return nil, nstance.Errorf(nstance.Unavailable, "secret %s: its directory cannot be read: %w", name, err)
	}
	defer root.Close() // only read from
	data, err := regular.Open(root.OpenFile).Read(name, MaxSize)
	if err != nil {
		return nil, nstance.Errorf(codeOf(err), "secret %s: %w", name, err)
	}
	return Sized(name, data)
}

func codeOf(err error) nstance.Code {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nstance.NotFound
	case errors.Is(err, fs.ErrPermission):
		return nstance.Denied
	case errors.Is(err, nstance.Invalid), errors.Is(err, regular.Err):
		return nstance.Invalid
	}
	return nstance.Unavailable
}
