// Package secret seals objects that must not be readable in object storage: the
// keys of the certificate authorities, the nonce key, secret files.
//
// A [Box] encrypts with AES-256-GCM. A sealed object names the key by an ID, so
// that keys can be replaced one by one, and is bound to the object's name, so
// that an attacker who can write to storage cannot swap two secrets.
//
// A [Source] is where the secrets for machines come from, if not from the cluster's
// own storage.
//
// Boxes and sources are safe for concurrent use; a [Key] is a value.
package secret

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/nstance-go/nstance"
)

// A sealed object is the header (magic, one byte of mode, key ID) followed by
// the nonce of 12 bytes, the ciphertext and the tag of 16 bytes. Header and name
// are authenticated.
const (
	magic      = "nstance\x00"
	modeSealed = 1
	headerSize = len(magic) + 1 + idSize
)

// A Box seals and opens secrets. It is safe for concurrent use. Printing one shows no key.
type Box struct {
	keys []cipherKey // the first one seals
}

type cipherKey struct {
	key  Key
	aead func() cipher.AEAD // a function for the same reason as in Key
}

// NewBox returns a Box that seals with the first key and opens with any of
// them. A key should seal no more than 2^32 objects, since nonces are random
// (NIST SP 800-38D §8.3). It fails with Invalid when there is no key, one is
// the zero Key, or one is there twice.
func NewBox(keys ...Key) (*Box, error) {
	if len(keys) == 0 {
		return nil, invalid("pass one", "no secret key")
	}
	box := &Box{}
	for _, key := range keys {
		if key.bytes == nil {
			return nil, invalid("use NewKey or ParseKeys", "a secret key is not set")
		}
		if box.find(key.id[:]) != nil {
			return nil, invalid("name each key once", "%s is given twice", key)
		}
		aead, err := newAEAD(key)
		if err != nil {
			return nil, err
		}
		box.keys = append(box.keys, cipherKey{key, func() cipher.AEAD { return aead }})
	}
	return box, nil
}

func newAEAD(key Key) (cipher.AEAD, error) {
	raw := key.bytes()
	block, err := aes.NewCipher(raw[:])
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "%s: %w", key, err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "%s: %w", key, err)
	}
	return aead, nil
}

// Seal returns plain in a form that only Open with the same name opens. Each call
// returns different bytes. It fails with Invalid when name is empty.
func (b *Box) Seal(name string, plain []byte) ([]byte, error) {
	if name == "" {
		return nil, invalid("name the object that it is for", "secret has no name")
	}
	if len(b.keys) == 0 {
		return nil, invalid("use NewBox", "the box has no key")
	}
	first := b.keys[0]
	head := header(first.key)
	return first.aead().Seal(head, nil, plain, associated(head, name)), nil
}

// Open returns what Seal was given. It fails with Invalid when data was not
// made by Seal, Denied when it is encrypted with a key that the Box lacks, was
// altered, or belongs to another name.
func (b *Box) Open(name string, data []byte) ([]byte, error) {
	if len(data) < headerSize || !bytes.HasPrefix(data, []byte(magic)) {
		return nil, fault(nstance.Invalid, name, "name the right object, or store the secret anew", "is not a sealed secret")
	}
	head, body := data[:headerSize], data[headerSize:]
	if mode := head[len(magic)]; mode != modeSealed {
		return nil, fault(nstance.Invalid, name, "use the version that sealed it, or a later one", "is sealed in the unknown mode %d", mode)
	}
	id := head[len(magic)+1:]
	found := b.find(id)
	if found == nil {
		return nil, fault(nstance.Denied, name, "pass that key too", "is encrypted with key %s, which is not among those given", hex.EncodeToString(id))
	}
	plain, err := found.aead().Open(nil, nil, body, associated(head, name))
	if err != nil {
		return nil, fault(nstance.Denied, name, "restore it from a backup", "is damaged, altered, or was sealed under another name")
	}
	return plain, nil
}

// Stale reports whether data was sealed with another key than the one that
// Seal uses now, and so should be sealed again.
func (b *Box) Stale(data []byte) bool {
	if len(data) < headerSize || len(b.keys) == 0 {
		return false
	}
	return !bytes.Equal(data[:headerSize], header(b.keys[0].key))
}

// SealedWith returns the ID of the key that data was encrypted with; false: it
// was not. It needs no key, and does not check data.
func SealedWith(data []byte) (keyID string, sealed bool) {
	if len(data) < headerSize || !bytes.HasPrefix(data, []byte(magic)) || data[len(magic)] != modeSealed {
		return "", false
	}
	return hex.EncodeToString(data[len(magic)+1 : headerSize]), true
}

func (b *Box) find(id []byte) *cipherKey {
	i := slices.IndexFunc(b.keys, func(l cipherKey) bool { return bytes.Equal(l.key.id[:], id) })
	if i < 0 {
		return nil
	}
	return &b.keys[i]
}

func header(key Key) []byte {
	return append(append([]byte(magic), modeSealed), key.id[:]...)
}

func associated(head []byte, name string) []byte {
	return append(slices.Clone(head), name...)
}

func fault(code nstance.Code, name, remedy, format string, args ...any) error {
	return &nstance.Error{Code: code, Field: "secret " + name, Msg: fmt.Sprintf(format, args...), Remedy: remedy}
}
