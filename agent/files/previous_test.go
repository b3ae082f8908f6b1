package files_test

import (
	"crypto/x509"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent/files"
	"github.com/nstance-go/nstance/internal/pki"
)

// The directory holds what an agent of version 0.1 has left: the receive
// directory, and the keys. It is never written again. The key guards nothing.
const previous = "testdata/v0.1"

var makePrevious = flag.Bool("make-previous", false, "write "+previous+", which only its own version may")

// left is the set in it, whose command is still to be run.
func left() files.Set {
	s := set("v1:sha256:77", tree{"app.env": "COLOUR=red\n", "tls/web.txt": "for web\n"})
	s.Files[0].Mode = 0o600
	s.Files = append(s.Files, files.File{Path: "lost", Error: "the secret could not be read"})
	s.Command = []string{"/bin/false", "--reload"}
	return s
}

func TestMakePrevious(t *testing.T) {
	if !*makePrevious {
		return // it stands, and must not change
	}
	s := files.New(files.Options{Dir: filepath.Join(previous, "recv"), KeysDir: filepath.Join(previous, "keys")})
	_, err := s.Begin(set("v1:sha256:00", tree{"old": "old\n"}))
	require.NoError(t, err)
	require.NoError(t, s.Write(files.Digest([]byte("old\n")), 0, []byte("old\n")))
	require.NoError(t, s.Commit("v1:sha256:00"))
	_, err = s.Begin(left())
	require.NoError(t, err)
	for _, content := range []string{"COLOUR=red\n", "for web\n"} {
		require.NoError(t, s.Write(files.Digest([]byte(content)), 0, []byte(content)))
	}
	require.NoError(t, s.Commit(left().Hash))
	require.NoError(t, s.Keys("acc06bgm7733st2576nx5jht4ecjw", []string{"web"})[0].Err)
	require.NoError(t, s.Close())
}

// inherited is a box with what an agent of version 0.1 has left.
func inherited(t *testing.T, change func(dir string)) *box {
	b := &box{T: t, dir: filepath.Join(t.TempDir(), "agent")}
	require.NoError(t, os.CopyFS(b.dir, os.DirFS(previous)))
	if change != nil {
		change(b.dir)
	}
	b.o = files.Options{
		Dir: filepath.Join(b.dir, "recv"), KeysDir: filepath.Join(b.dir, "keys"),
		Applied: func(hash string) error { b.hashes = append(b.hashes, hash); return nil },
	}
	b.reopen()
	return b
}

func TestPrevious(t *testing.T) {
	b := inherited(t, nil)
	require.Empty(t, b.store.LastError())
	require.Equal(t, tree{"app.env": "COLOUR=red\n", "tls/web.txt": "for web\n"}, b.tree())
	require.Empty(t, b.hashes, "a set that the server could not make all of counts as none")
	var want []nstance.FileStatus
	for _, f := range left().Files {
		want = append(want, nstance.FileStatus{Path: f.Path, Digest: f.Digest, Error: f.Error})
	}
	require.Equal(t, want, b.store.Status())
	t.Run("the key is the one that there was", func(t *testing.T) {
		key, err := pki.LoadKey(filepath.Join(previous, "keys", "web.pem"))
		require.NoError(t, err)
		got := b.store.Keys("acc06bgm7733st2576nx5jht4ecjw", []string{"web"})[0]
		require.NoError(t, got.Err)
		csr, err := x509.ParseCertificateRequest(got.Request)
		require.NoError(t, err)
		require.Equal(t, key.Public(), csr.PublicKey)
	})
	t.Run("its command is run", func(t *testing.T) {
		require.Error(t, b.store.Run(t.Context()))
		require.Contains(t, b.store.LastError(), "/bin/false")
	})
	t.Run("the next set takes from it what is the same", func(t *testing.T) {
		next := tree{"app.env": "COLOUR=blue\n", "tls/web.txt": "for web\n"}
		sent, err := b.send(set("v1:sha256:78", next), next)
		require.NoError(t, err)
		require.Equal(t, []string{"app.env"}, sent)
		require.Equal(t, next, b.tree())
		require.Equal(t, []string{"v1:sha256:78"}, b.hashes)
	})
}

func TestManifestOfANewerFormat(t *testing.T) {
	b := inherited(t, func(dir string) {
		path := filepath.Join(dir, "recv", nstance.ReservedFileDir, "v2", "manifest.json")
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, append([]byte(`{"format":2,`), data[1:]...), 0o600))
	})
	require.Contains(t, b.store.LastError(), "format 2, which a newer agent wrote")
	require.Equal(t, tree{"app.env": "COLOUR=red\n", "tls/web.txt": "for web\n"}, b.tree())
	next := tree{"app.env": "COLOUR=blue\n"}
	_, err := b.send(set("v1:sha256:78", next), next)
	require.NoError(t, err)
	require.Equal(t, "COLOUR=blue\n", b.tree()["app.env"])
	require.Empty(t, b.store.LastError())
}
