package nstance

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"strings"
)

// UserData is the template of the user data with which a machine boots first.
type UserData struct {
	Source   UserDataSource   `json:"source,omitempty"`   // empty: inline
	Encoding UserDataEncoding `json:"encoding,omitempty"` // empty: plain
	Content  string           `json:"content,omitempty"`  // the template, or its URL
	SHA256   string           `json:"sha256,omitempty"`   // expected hex digest of the fetched bytes, before decoding
	Fetched  []byte           `json:"fetched,omitempty"`  // the bytes from the URL; nil: not fetched yet
}

// A UserDataSource says what UserData.Content is.
type UserDataSource string

// The sources.
const (
	SourceInline UserDataSource = "inline" // the template
	SourceURL    UserDataSource = "url"    // its URL
)

// A UserDataEncoding says how UserData.Content, or what its URL has, is encoded.
type UserDataEncoding string

// The encodings.
const (
	EncodingPlain      UserDataEncoding = "plain"
	EncodingBase64     UserDataEncoding = "base64"
	EncodingGzip       UserDataEncoding = "gzip"
	EncodingBase64Gzip UserDataEncoding = "base64+gzip" // compressed first
)

// maxUserDataTemplate is the longest decoded template in bytes: 1 MiB. Clouds
// accept far less as user data.
const maxUserDataTemplate = 1 << 20

// Template returns the decoded template. Fails with Unavailable when it has not
// been fetched yet, Invalid when it cannot be decoded.
func (u UserData) Template() (string, error) {
	raw := []byte(u.Content)
	if u.Source == SourceURL {
		if raw = u.Fetched; raw == nil {
			return "", &Error{Code: Unavailable, Field: "userdata.content", Msg: "has not been fetched yet"}
		}
	}
	return u.decode(raw)
}

func (u UserData) decode(raw []byte) (string, error) {
	coding := string(u.Encoding)
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
	if len(raw) > maxUserDataTemplate {
		return "", FieldError("userdata.content", "fetch the rest at boot", "is longer than %d bytes", maxUserDataTemplate)
	}
	return string(raw), nil
}

// unzip returns at most maxUserDataTemplate bytes and one more, by which the
// caller sees that the template is too long.
func unzip(raw []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, maxUserDataTemplate+1))
}
