package storage_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestMemory(t *testing.T) {
	storagetest.Run(t, func(*testing.T) storage.Store { return storage.NewMemory() })
}

func TestEqualBytesGetNewVersions(t *testing.T) {
	for name, s := range map[string]storage.Store{"memory": storage.NewMemory(), "dir": openDir(t, t.TempDir())} {
		t.Run(name, func(t *testing.T) {
			v1, err := s.PutIfAbsent(t.Context(), "a", []byte("same"))
			require.NoError(t, err)
			v2, err := s.PutIfMatch(t.Context(), "a", []byte("same"), v1)
			require.NoError(t, err)
			require.NotEqual(t, v1, v2)
			_, err = s.PutIfMatch(t.Context(), "a", []byte("same"), v1)
			require.ErrorIs(t, err, nstance.Conflict)
		})
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	t.Run("file and mem URLs open", func(t *testing.T) {
		s, err := storage.Open(t.Context(), "file://"+dir)
		require.NoError(t, err)
		require.IsType(t, &storage.Dir{}, s)
		s, err = storage.Open(t.Context(), "mem://")
		require.NoError(t, err)
		require.IsType(t, &storage.Memory{}, s)
	})
	for url, says := range map[string]string{
		"":                "scheme",
		"s3://bucket":     `scheme "s3" is not known here`,
		"file://etc/x":    "three slashes",
		"file:///":        `path "/" is not valid`,
		"file:rel":        `path "rel" is not valid`,
		"mem://a":         "names a host",
		"mem:///a":        `path "/a" is not valid`,
		"file:///a?b=c":   "takes no user, query",
		"\x00":            "is not a URL",
		"file://u@/a/b/c": "takes no user, query",
	} {
		t.Run("refuses "+url, func(t *testing.T) {
			_, err := storage.Open(t.Context(), url)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, "storage.url")
		})
	}
}
