package nstance_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func TestUserDataTemplate(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString
	for _, c := range []struct {
		name string
		u    nstance.UserData
		want string
		code nstance.Code
	}{
		{"nothing", nstance.UserData{}, "", ""},
		{"plain", nstance.UserData{Source: "inline", Encoding: "plain", Content: "x"}, "x", ""},
		{"base64", nstance.UserData{Encoding: "base64", Content: encoded([]byte("x"))}, "x", ""},
		{"base64 with a line break at its end", nstance.UserData{Encoding: "base64", Content: encoded([]byte("x")) + "\n"}, "x", ""},
		{"base64 of gzip", nstance.UserData{Encoding: "base64+gzip", Content: encoded(zipped(t, "x"))}, "x", ""},
		{"fetched", nstance.UserData{Source: "url", Content: "https://example", Fetched: []byte("x")}, "x", ""},
		{"fetched gzip", nstance.UserData{Source: "url", Encoding: "gzip", Content: "https://example", Fetched: zipped(t, "x")}, "x", ""},
		{"not fetched", nstance.UserData{Source: "url", Content: "https://example"}, "", nstance.Unavailable},
		{"no base64", nstance.UserData{Encoding: "base64", Content: "?"}, "", nstance.Invalid},
		{"no gzip", nstance.UserData{Encoding: "base64+gzip", Content: encoded([]byte("x"))}, "", nstance.Invalid},
		{"gzip that is cut off", nstance.UserData{Source: "url", Encoding: "gzip", Fetched: zipped(t, strings.Repeat("x", 100))[:20]}, "", nstance.Invalid},
		{"gzip of too much", nstance.UserData{Source: "url", Encoding: "gzip", Fetched: zipped(t, strings.Repeat("x", 1<<20+1))}, "", nstance.Invalid},
		{"an unknown encoding", nstance.UserData{Encoding: "zip", Content: "x"}, "", nstance.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.u.Template()
			require.Equal(t, c.code, nstance.CodeOf(err), "%v", err)
			require.Equal(t, c.want, got)
		})
	}
}
