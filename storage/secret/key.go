package secret

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode"

	"github.com/nstance-go/nstance"
)

const (
	keySize   = 32 // AES-256
	idSize    = 8
	maxSource = 4 << 10 // bytes of a file or variable that holds a key
)

// A Key encrypts what a Box seals. Its zero value is not a key. Printing one, or a
// value that contains one, shows only its ID.
type Key struct {
	id    [idSize]byte
	bytes func() [keySize]byte // a function, since fmt prints all other fields of a struct; nil: not a key
}

// NewKey returns a fresh random key.
func NewKey() Key {
	var raw [keySize]byte
	rand.Read(raw[:]) // never fails: crypto/rand ends the process instead
	return keyOf(raw)
}

func keyOf(raw [keySize]byte) Key {
	sum := sha256.Sum256(append([]byte("nstance secret key id\x00"), raw[:]...))
	return Key{id: [idSize]byte(sum[:idSize]), bytes: func() [keySize]byte { return raw }}
}

// ParseKey returns the key that text holds in standard base64: 32 bytes, white
// space around it ignored. It fails with Invalid and never quotes text.
func ParseKey(text string) (Key, error) {
	const remedy = "use 32 random bytes in base64, such as openssl rand -base64 32 prints"
	text = strings.TrimSpace(text)
	if text == "" {
		return Key{}, invalid(remedy, "key is empty")
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return Key{}, invalid(remedy, "key is not base64")
	}
	if len(raw) != keySize {
		return Key{}, invalid(remedy, "key is %d bytes long instead of %d", len(raw), keySize)
	}
	if strings.Count(string(raw), string(raw[:1])) == keySize {
		return Key{}, invalid(remedy, "key is one byte repeated: a placeholder")
	}
	return keyOf([keySize]byte(raw)), nil
}

// ParseKeys returns the keys that text holds, each as ParseKey reads it, apart
// by white space or commas: for NewBox, so the first one seals. It fails with
// Invalid, also when a key is given twice.
func ParseKeys(text string) ([]Key, error) {
	fields := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	if len(fields) == 0 {
		_, err := ParseKey("")
		return nil, err
	}
	var keys []Key
	for i, field := range fields {
		key, err := ParseKey(field)
		if err != nil && len(fields) > 1 {
			err = invalid("separate keys by spaces, commas or lines", "key %d of %d: %v", i+1, len(fields), err)
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	_, err := NewBox(keys...)
	return keys, err
}

// KeysFromFile returns the keys in a file, as ParseKeys reads them. It fails like
// FromFile.
func KeysFromFile(path string) ([]Key, error) {
	text, err := read(path)
	if err != nil {
		return nil, err
	}
	keys, err := ParseKeys(text)
	return keys, withPlace(path, err)
}

// FromEnv returns the key in an environment variable, as ParseKey reads it. It
// fails with NotFound when the variable is not set.
func FromEnv(name string) (Key, error) {
	text, ok := os.LookupEnv(name)
	if !ok {
		return Key{}, &nstance.Error{
			Code: nstance.NotFound, Field: name, Msg: "environment variable is not set",
			Remedy: "set it to 32 random bytes in base64",
		}
	}
	key, err := ParseKey(text)
	return key, withPlace(name, err)
}

// FromFile returns the key in a file, as ParseKey reads it. It fails with
// NotFound when there is no such file, Denied when it may not be read.
func FromFile(path string) (Key, error) {
	text, err := read(path)
	if err != nil {
		return Key{}, err
	}
	key, err := ParseKey(text)
	return key, withPlace(path, err)
}

func read(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", nstance.Errorf(codeOf(err), "secret key: %w", err)
	}
	defer f.Close() // only read from
	data, err := io.ReadAll(io.LimitReader(f, maxSource+1))
	if err != nil {
		return "", nstance.Errorf(codeOf(err), "secret key: %w", err)
	}
	if len(data) > maxSource {
		return "", withPlace(path, invalid("name the file that holds the key only", "is more than %d bytes long", maxSource))
	}
	return string(data), nil
}

func codeOf(err error) nstance.Code {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nstance.NotFound
	case errors.Is(err, fs.ErrPermission):
		return nstance.Denied
	}
	return nstance.Unavailable
}

// Encode returns the key in the form that ParseKey reads. It is the secret.
func (k Key) Encode() string {
	if k.bytes == nil {
		return ""
	}
	raw := k.bytes()
	return base64.StdEncoding.EncodeToString(raw[:])
}

// ID returns the key's public name, 16 hexadecimal digits.
func (k Key) ID() string { return hex.EncodeToString(k.id[:]) }

// String returns the ID, so that logging a key does no harm.
func (k Key) String() string { return "secret key " + k.ID() }

// Format prints String, whatever the verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// MarshalText returns String, for logs and JSON.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func invalid(remedy, format string, args ...any) error {
	return nstance.FieldError("", remedy, format, args...)
}

// withPlace adds to an error where a key came from.
func withPlace(place string, err error) error {
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		e.Field = place
	}
	return err
}
