package vault

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/secret"
)

// KeyVariable is the default variable of the secret key.
const KeyVariable = "NSTANCE_SECRET_KEY"

// The providers of secret keys, as command lines name them.
const (
	KeysInEnv  = "env"
	KeysInFile = "file"
	NoKeys     = "none" // private keys are readable for every reader of the store
)

// A KeySource names the secret keys that seal a vault, as the flags --key-provider
// and --key-source do.
type KeySource struct {
	Provider string // KeysInEnv, KeysInFile or NoKeys
	Source   string // name of the variable, empty for KeyVariable; or path of the file
}

// Box returns a box that seals with the first key of the source and opens with any;
// nil means that nothing is sealed. It fails with Invalid, which names the flag,
// when the source is not there or holds no key, Denied when the file may not be
// read, and never quotes a key.
func (k KeySource) Box(getenv func(string) string) (*secret.Box, error) {
	var keys []secret.Key
	var err error
	switch k.Provider {
	case NoKeys:
		return nil, nil
	case KeysInEnv:
		keys, err = k.fromEnv(getenv)
	case KeysInFile:
		keys, err = k.fromFile()
	default:
		return nil, nstance.FieldError("--key-provider", "use env, file or none", "%.64q is not known", k.Provider)
	}
	if err != nil {
		return nil, err
	}
	return secret.NewBox(keys...)
}

func (k KeySource) fromEnv(getenv func(string) string) ([]secret.Key, error) {
	name := k.Source
	if name == "" {
		name = KeyVariable
	}
	text := getenv(name)
	if text == "" {
		return nil, nstance.FieldError("--key-source",
			"set it to what openssl rand -base64 32 prints, or use --key-provider none where storage is not sealed", "variable %.64s is not set", name)
	}
	return parseKeys(name, text)
}

func (k KeySource) fromFile() ([]secret.Key, error) {
	const remedy = "name the file that holds the secret key"
	if k.Source == "" {
		return nil, nstance.FieldError("--key-source", remedy, "is not given")
	}
	text, err := readKeys(k.Source)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EISDIR): // a mistake in the command line, not an absent object
		return nil, nstance.FieldError("--key-source", remedy, "secret key: %v", err)
	case errors.Is(err, fs.ErrPermission):
		return nil, nstance.Errorf(nstance.Denied, "secret key: %w", err)
	case err != nil:
		return nil, nstance.Errorf(nstance.Unavailable, "secret key: %w", err)
	case len(text) > maxKeyFile:
		return nil, nstance.FieldError(k.Source, "name the file that holds the keys only", "is more than %d bytes long", maxKeyFile)
	}
	return parseKeys(k.Source, text)
}

// maxKeyFile bounds a file that holds keys, in bytes.
const maxKeyFile = 4 << 10

// readKeys returns one byte more than maxKeyFile of a file that is longer.
func readKeys(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() // only read from
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	return string(data), err
}

// parseKeys adds to an error where the keys came from.
func parseKeys(place, text string) ([]secret.Key, error) {
	keys, err := secret.ParseKeys(text)
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		e.Field = place
	}
	return keys, err
}
