package storage

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"github.com/nstance-go/nstance"
)

// Format is the version, major.minor, of the objects that this program writes.
// Readers refuse another major and keep what a newer minor added.
const Format = "1.0"

const formatMajor, formatMinor = 1, 0

// A Header is part of every JSON object that is written under a condition.
type Header struct {
	Format  string `json:"format"`
	Epoch   uint64 `json:"epoch"`    // the term that wrote it; 0: no term
	WriteID string `json:"write_id"` // random, new with every write: how a writer knows his own
}

// NewHeader returns the header of one write.
func NewHeader(epoch uint64) Header {
	return Header{Format: Format, Epoch: epoch, WriteID: rand.Text()}
}

// next returns the header of a write that replaces what has header h. A newer
// minor format stays, since the fields that it added stay.
func (h Header) next(epoch uint64) Header {
	out := NewHeader(max(h.Epoch, epoch))
	if _, have, ok := parseFormat(h.Format); ok && have > formatMinor {
		out.Format = h.Format
	}
	return out
}

// header finds the Header that a type embeds.
func (h *Header) header() *Header { return h }

type headed interface{ header() *Header }

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

// unreadable is the error of an object that exists and cannot be understood.
// It is never absence.
func unreadable(key, format string, args ...any) error {
	return nstance.Errorf(nstance.Invalid, "%s cannot be read: %w", key, fmt.Errorf(format, args...))
}
