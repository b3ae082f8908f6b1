package nstance

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"strings"
)

// UserData is the template of what a machine is told at its first boot.
type UserData struct {
	Source   string `json:"source,omitempty"`   // inline (the default) or url
	Encoding string `json:"encoding,omitempty"` // plain (the default), base64, gzip, base64+gzip
	Content  string `json:"content,omitempty"`  // the template, or its URL
	SHA256   string `json:"sha256,omitempty"`   // hex digest that what is fetched must have, before it is decoded
	Fetched  []byte `json:"fetched,omitempty"`  // what was at the URL; nil: not fetched yet
}

// The words of UserData and Definition.Track.
const (
	SourceInline = "inline"
	SourceURL    = "url"

	TrackVars     = "vars"
	TrackImage    = "image"
	TrackUserData = "userdata"
	TrackSecrets  = "secrets"
)

// MaxUserDataTemplate is how long a template may be once it is decoded, in
// bytes: 1 MiB. What a cloud accepts as user data is far less.
const MaxUserDataTemplate = 1 << 20

// Template returns the template, decoded. Fails with Unavailable when it has to
// be fetched and was not yet, Invalid when it cannot be decoded.
func (u UserData) Template() (string, error) {
	raw := []byte(u.Content)
	if u.Source == SourceURL {
		if raw = u.Fetched; raw == nil {
			return "", &Error{Code: Unavailable, Field: "userdata.content", Msg: "has not been fetched yet"}
		}
	}
	return u.decode(raw)
}

// Digest returns the SHA-256 of what was fetched, in hex, or "" where nothing
// was.
func (u UserData) Digest() string {
	if u.Source != SourceURL || u.Fetched == nil {
		return ""
	}
	sum := sha256.Sum256(u.Fetched)
	return hex.EncodeToString(sum[:])
}

func (u UserData) decode(raw []byte) (string, error) {
	coding := u.Encoding
	var err error
	if rest, ok := strings.CutPrefix(coding, "base64"); ok {
		coding = strings.TrimPrefix(rest, "+")
		if raw, err = base64.StdEncoding.AppendDecode(nil, bytes.TrimSpace(raw)); err != nil {
			return "", FieldError("userdata.content", "encode it again, with padding", "is not base64: %v", err)
		}
	}
	switch coding {
	case "", "plain":
	case "gzip":
		if raw, err = unzip(raw); err != nil {
			return "", FieldError("userdata.content", "compress it again", "is not gzip: %v", err)
		}
	default:
		return "", FieldError("userdata.encoding", "use plain, base64, gzip or base64+gzip", "%.64q is not known", u.Encoding)
	}
	if len(raw) > MaxUserDataTemplate {
		return "", FieldError("userdata.content", "fetch the rest at boot", "is longer than %d bytes", MaxUserDataTemplate)
	}
	return string(raw), nil
}

// unzip returns at most one byte more than a template may have.
func unzip(raw []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, MaxUserDataTemplate+1))
}
