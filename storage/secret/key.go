package secret

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"unicode"

	"github.com/nstance-go/nstance"
)

const (
	keySize = 32 // AES-256
	idSize  = 8
)

// A Key encrypts what a Box seals. Its zero value is not a key. Printing one, or a
// value that contains one, does not show the key. A Key never changes, so it may be
// used concurrently.
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

// parseKey returns the key that text holds.
func parseKey(text string) (Key, error) {
	const remedy = "use 32 random bytes in base64, such as openssl rand -base64 32 prints"
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

// ParseKeys returns the keys that text holds, for NewBox: each is 32 bytes in standard
// base64, separated by white space or commas. It fails with Invalid, also when a key is
// given twice, and never quotes text.
func ParseKeys(text string) ([]Key, error) {
	fields := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	if len(fields) == 0 {
		_, err := parseKey("")
		return nil, err
	}
	var keys []Key
	for i, field := range fields {
		key, err := parseKey(field)
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

// Encode returns the key in the form that ParseKeys reads. It is the secret.
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

func invalid(remedy, format string, args ...any) error {
	return nstance.FieldError("", remedy, format, args...)
}
