package records

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Format is the version, major.minor, of the objects that this program writes.
// Readers refuse another major and keep the top-level fields that a newer minor
// added, so a new minor adds fields at the top level only.
const Format = "1.0"

const formatMajor, formatMinor = 1, 0

// A Header is part of every document.
type Header struct {
	Format  string `json:"format"`
	Epoch   uint64 `json:"epoch,omitempty"`    // the term that wrote it; 0: no term
	WriteID string `json:"write_id,omitempty"` // random, new with every write, so that a writer recognises its own write; empty: the key is the digest of the content
}

// A Document is a struct that embeds [Header]. It is stored as one JSON object.
type Document interface{ header() Header }

// A Parted document has many parts, of which an update changes few. It copies, compares
// and encodes itself, so that an update costs what it changes, beside one copy of the
// bytes.
type Parted[T any] interface {
	Document
	// Copy returns a copy. Changes of the copy do not change the original.
	Copy() T
	// Same reports whether both are encoded alike but for the header.
	Same(T) bool
	// AppendJSON appends what encoding/json decodes to an equal document.
	AppendJSON(to []byte) ([]byte, error)
}

// NewHeader returns the header of one write.
func NewHeader(epoch uint64) Header {
	return Header{Format: Format, Epoch: epoch, WriteID: rand.Text()}
}

// NextHeader returns the header of a write that replaces a document with header
// h. A newer minor format stays, since the fields that it added stay.
func NextHeader(h Header, epoch uint64) Header {
	out := NewHeader(max(h.Epoch, epoch))
	if _, have, ok := parseFormat(h.Format); ok && have > formatMinor {
		out.Format = h.Format
	}
	return out
}

// ReadHeader returns the header of a document of any kind, JSONC and compressed ones
// included. Fails with Invalid when there is none.
func ReadHeader(obj storage.Object) (h Header, err error) {
	data := io.Reader(bytes.NewReader(obj.Data))
	switch {
	case strings.HasSuffix(obj.Key, ".gz"):
		data, err = gzip.NewReader(data)
	case strings.HasSuffix(obj.Key, ".jsonc"):
		var plain []byte
		plain, err = hujson.Standardize(bytes.Clone(obj.Data))
		data = bytes.NewReader(plain)
	}
	if err == nil {
		err = json.NewDecoder(io.LimitReader(data, maxSnapshot)).Decode(&h) // the first value: a snapshot has more
	}
	if err != nil {
		return h, unreadable(obj.Key, "%w", err)
	}
	return h, nil
}

func (h Header) header() Header { return h }

func (h *Header) setHeader(other Header) { *h = other }

// withHeader returns v with another header.
func withHeader[T Document](v T, h Header) T {
	any(&v).(interface{ setHeader(Header) }).setHeader(h)
	return v
}

func parseFormat(s string) (major, minor uint64, ok bool) {
	a, b, _ := strings.Cut(s, ".")
	major, err := strconv.ParseUint(a, 10, 32)
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.ParseUint(b, 10, 32)
	return major, minor, err == nil || b == ""
}

func checkFormat(key, format string) error {
	major, _, ok := parseFormat(format)
	switch {
	case format == "":
		return unreadable(key, "it has no format field")
	case ok && major > formatMajor:
		return &nstance.Error{
			Code: nstance.Invalid, Remedy: "upgrade this program",
			Msg: fmt.Sprintf("%s: format %q is newer than %s, which this program writes", key, format, Format),
		}
	case !ok || major < formatMajor:
		return unreadable(key, "format %q is unknown", format)
	}
	return nil
}

// Understood returns nil if this program knows all fields of a format, and else an
// Invalid error. Readers permit a newer minor format.
func Understood(key, format string) error {
	if err := checkFormat(key, format); err != nil {
		return err
	}
	if _, minor, _ := parseFormat(format); minor > formatMinor {
		return &nstance.Error{
			Code: nstance.Invalid, Remedy: "upgrade this program",
			Msg: fmt.Sprintf("%s: format %q is newer than %s: it may contain fields that this program does not know", key, format, Format),
		}
	}
	return nil
}

// unreadable is the error of an object that exists and cannot be decoded. It never
// means absence.
func unreadable(key, format string, args ...any) error {
	return nstance.Errorf(nstance.Invalid, "%s cannot be read: %w", key, fmt.Errorf(format, args...))
}
