package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance/agent/files"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

func isWanted(m *apiv1.ConnectRequest) bool  { return m.GetFilesWanted() != nil }
func isApplied(m *apiv1.ConnectRequest) bool { return m.GetFilesApplied() != nil }
func isKeys(m *apiv1.ConnectRequest) bool    { return m.GetFileKeys() != nil }

// announce begins a set of one file.
func (v *visit) announce(hash, path, content string) (digest string) {
	digest = files.Digest([]byte(content))
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FilesBegin{FilesBegin: &apiv1.FilesBegin{
		Hash: hash, Files: []*apiv1.File{{Path: path, Digest: digest, Size: int64(len(content))}},
	}}})
	return digest
}

func (v *visit) piece(digest, data string) {
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FileChunk{FileChunk: &apiv1.FileChunk{Digest: digest, Data: []byte(data)}}})
}

func (v *visit) commit(hash string) {
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FilesCommit{FilesCommit: &apiv1.FilesCommit{Hash: hash}}})
}

// placed gives the machine directories for files and keys.
func (m *machine) placed() (dir string) {
	dir = m.t.TempDir()
	m.o.RecvDir, m.o.KeysDir = filepath.Join(dir, "recv"), filepath.Join(dir, "keys")
	return dir
}

func TestFiles(t *testing.T) {
	t.Run("come over the session, and reports say so", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			dir := m.placed()
			_, stop := m.start()
			defer stop()
			v := s.next()
			require.Empty(t, v.until(t, isReport).GetReport().GetFiles())
			digest := v.announce("h1", "app/a", "content")
			require.Equal(t, []string{digest}, v.until(t, isWanted).GetFilesWanted().GetDigests())
			v.piece(digest, "content")
			v.commit("h1")
			applied := v.until(t, isApplied).GetFilesApplied()
			require.Empty(t, applied.GetError())
			require.Equal(t, digest, applied.GetFiles()[0].GetDigest())
			data, err := os.ReadFile(filepath.Join(dir, "recv", "app", "a"))
			require.NoError(t, err)
			require.Equal(t, "content", string(data))
			r := v.until(t, isReport).GetReport()
			require.Equal(t, "h1", r.GetConfigHash())
			require.Equal(t, digest, r.GetFiles()[0].GetDigest())
		})
	})
	t.Run("another content than announced changes nothing and is reported once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			dir := m.placed()
			_, stop := m.start()
			defer stop()
			v := s.next()
			digest := v.announce("h1", "a", "content")
			v.until(t, isWanted)
			v.piece(digest, "CONTENT")
			v.piece(digest, "content")
			v.commit("h1")
			require.Contains(t, v.until(t, isApplied).GetFilesApplied().GetError(), "announced as")
			r := v.until(t, isReport).GetReport()
			if r.GetFilesError() == "" { // it was collected before
				r = v.until(t, isReport).GetReport()
			}
			require.NotEmpty(t, r.GetFilesError())
			for len(v.up) > 0 {
				require.False(t, isApplied(<-v.up))
			}
			require.NoFileExists(t, filepath.Join(dir, "recv", "a"))
			v.announce("h2", "../a", "x")
			require.Contains(t, v.until(t, isApplied).GetFilesApplied().GetError(), "path")
		})
	})
	t.Run("an interrupted transfer begins again in the next session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			m.placed()
			_, stop := m.start()
			defer stop()
			v := s.next()
			v.announce("h1", "a", "content")
			v.until(t, isWanted)
			v.end <- status.Error(codes.Unavailable, "restart")
			v = s.next()
			v.commit("h1")
			require.NotEmpty(t, v.until(t, isApplied).GetFilesApplied().GetError(), "nothing is half applied")
			digest := v.announce("h1", "a", "content")
			v.until(t, isWanted)
			v.piece(digest, "content")
			v.commit("h1")
			require.Empty(t, v.until(t, isApplied).GetFilesApplied().GetError())
		})
	})
	t.Run("a key never leaves the machine", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			dir := m.placed()
			_, stop := m.start()
			defer stop()
			v := s.next()
			v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FileKeysRequest{FileKeysRequest: &apiv1.FileKeysRequest{Names: []string{"web"}}}})
			answer := v.until(t, isKeys)
			key, err := pki.LoadKey(filepath.Join(dir, "keys", "web.pem"))
			require.NoError(t, err)
			public, err := registration.ParseCSR(answer.GetFileKeys().GetKeys()[0].GetCsr())
			require.NoError(t, err, "it proves possession")
			require.True(t, public.Equal(key.Public()))
			report := v.until(t, isReport)
			for _, sent := range []*apiv1.ConnectRequest{answer, report} {
				wire, err := proto.Marshal(sent)
				require.NoError(t, err)
				require.NotContains(t, string(wire), string(key.Seed()))
			}
		})
	})
}
