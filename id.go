package nstance

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/rules"
)

// An InstanceID is the permanent identity of one instance: a puidv7, which is
// the template's three-letter kind followed by the 16 bytes of a UUIDv7 in
// lowercase Crockford base32, 29 characters in all. IDs of one kind sort by
// creation time. An ID is never reused; the provider's own ID is only a handle.
type InstanceID string

const (
	kindLen    = 3
	encodedLen = 26 // 128 bits, 5 a character, two zero bits at the end
	idLen      = kindLen + encodedLen
	crockford  = "0123456789abcdefghjkmnpqrstvwxyz"
)

// NewInstanceID returns a fresh ID of the given kind, created at t (millisecond
// resolution). It fails with Invalid when kind or t cannot be encoded.
func NewInstanceID(kind InstanceKind, t time.Time) (InstanceID, error) {
	if err := violation("kind", rules.InstanceKind(string(kind))); err != nil {
		return "", err
	}
	ms := t.UnixMilli()
	if ms < 0 || ms >= 1<<48 {
		return "", FieldError("created", "use a time after 1970", "time %s does not fit an instance ID", t.UTC().Format(time.RFC3339))
	}
	var u [16]byte
	rand.Read(u[:]) // never fails: crypto/rand ends the process instead
	binary.BigEndian.PutUint16(u[0:], uint16(ms>>32))
	binary.BigEndian.PutUint32(u[2:], uint32(ms))
	u[6] = 0x70 | u[6]&0x0f
	u[8] = 0x80 | u[8]&0x3f
	return formatInstanceID(kind, u), nil
}

// formatInstanceID returns the ID of a kind and a UUIDv7. It does not check either.
func formatInstanceID(kind InstanceKind, u [16]byte) InstanceID {
	b := make([]byte, 0, idLen)
	b = append(b, kind...)
	acc, bits := uint(0), 0
	for _, c := range u {
		acc, bits = acc<<8|uint(c), bits+8
		for bits >= 5 {
			bits -= 5
			b = append(b, crockford[acc>>bits&31])
		}
	}
	return InstanceID(append(b, crockford[acc<<(5-bits)&31]))
}

// ParseInstanceID returns s as an ID, or Invalid. Parsing is strict: only the
// one canonical spelling of each ID is accepted, so equal IDs are equal strings.
func ParseInstanceID(s string) (InstanceID, error) {
	if len(s) != idLen {
		return "", FieldError("instance_id", "use the 29-character ID that instance list prints", "%q has %d characters", clip.Quote(s), len(s))
	}
	if err := violation("instance_id", rules.InstanceKind(s[:kindLen])); err != nil {
		return "", err
	}
	u, ok := decode(s[kindLen:])
	if !ok {
		return "", FieldError("instance_id", "use the ID exactly as printed", "%q is not canonical base32", s)
	}
	if u[6]>>4 != 7 || u[8]>>6 != 2 {
		return "", FieldError("instance_id", "use the ID exactly as printed", "%q does not hold a version 7 UUID", s)
	}
	return InstanceID(s), nil
}

// Kind returns the three-letter kind. Kind, UUID and Time are meaningful only
// for an ID that NewInstanceID or ParseInstanceID returned.
func (id InstanceID) Kind() InstanceKind { return InstanceKind(id[:min(kindLen, len(id))]) }

// UUID returns the UUIDv7 within the ID, or zeros.
func (id InstanceID) UUID() [16]byte {
	if len(id) != idLen {
		return [16]byte{}
	}
	u, _ := decode(string(id[kindLen:]))
	return u
}

// Time returns the creation time in UTC, to the millisecond.
func (id InstanceID) Time() time.Time {
	u := id.UUID()
	return time.UnixMilli(int64(binary.BigEndian.Uint64(u[:8]) >> 16)).UTC()
}

func decode(s string) (u [16]byte, ok bool) {
	acc, bits, n := uint(0), 0, 0
	for i := range len(s) {
		v := digit(s[i])
		if v < 0 {
			return [16]byte{}, false
		}
		acc, bits = acc<<5|uint(v), bits+5
		if bits >= 8 && n < len(u) {
			bits -= 8
			u[n], n = byte(acc>>bits), n+1
		}
	}
	return u, acc&(1<<bits-1) == 0
}

// digit returns the value of one Crockford digit in its canonical spelling, or -1.
func digit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'h':
		return int(c-'a') + 10
	case c == 'j' || c == 'k':
		return int(c-'j') + 18
	case c == 'm' || c == 'n':
		return int(c-'m') + 20
	case c >= 'p' && c <= 't':
		return int(c-'p') + 22
	case c >= 'v' && c <= 'z':
		return int(c-'v') + 27
	}
	return -1
}
