package agent_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/machinefiles"
	"github.com/nstance-go/nstance/internal/pki"
)

func isWanted(m *apiv1.ConnectRequest) bool  { return m.GetFilesWanted() != nil }
func isApplied(m *apiv1.ConnectRequest) bool { return m.GetFilesApplied() != nil }
func isKeys(m *apiv1.ConnectRequest) bool    { return m.GetFileKeys() != nil }

// sendBegin starts a set of one file.
func (v *serverSession) sendBegin(hash, path, content string) (digest string) {
	digest = machinefiles.Digest([]byte(content))
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FilesBegin{FilesBegin: &apiv1.FilesBegin{
		Hash: hash, Files: []*apiv1.File{{Path: path, Digest: digest, Size: int64(len(content))}},
	}}})
	return digest
}

func (v *serverSession) sendChunk(digest, data string) {
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FileChunk{FileChunk: &apiv1.FileChunk{Digest: digest, Data: []byte(data)}}})
}

func (v *serverSession) sendCommit(hash string) {
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FilesCommit{FilesCommit: &apiv1.FilesCommit{Hash: hash}}})
}

// setFileDirs sets the machine's directories for files and keys.
func (m *machine) setFileDirs() (dir string) {
	dir = m.t.TempDir()
	m.options.RecvDir, m.options.KeysDir = filepath.Join(dir, "recv"), filepath.Join(dir, "keys")
	return dir
}

func TestFiles(t *testing.T) {
	t.Parallel()
	t.Run("arrive over the session and are reported", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			dir := m.setFileDirs()
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			require.Empty(t, v.awaitMessage(t, isReport).GetReport().GetFiles())
			digest := v.sendBegin("h1", "app/a", "content")
			require.Equal(t, []string{digest}, v.awaitMessage(t, isWanted).GetFilesWanted().GetDigests())
			v.sendChunk(digest, "content")
			v.sendCommit("h1")
			applied := v.awaitMessage(t, isApplied).GetFilesApplied()
			require.Empty(t, applied.GetError())
			require.Equal(t, digest, applied.GetFiles()[0].GetDigest())
			data, err := os.ReadFile(filepath.Join(dir, "recv", "app", "a"))
			require.NoError(t, err)
			require.Equal(t, "content", string(data))
			r := v.awaitMessage(t, isReport).GetReport()
			require.Equal(t, "h1", r.GetConfigHash())
			require.Equal(t, digest, r.GetFiles()[0].GetDigest())
		})
	})
	t.Run("content with a wrong digest changes nothing and is reported once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			dir := m.setFileDirs()
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			digest := v.sendBegin("h1", "a", "content")
			v.awaitMessage(t, isWanted)
			v.sendChunk(digest, "CONTENT")
			v.sendChunk(digest, "content")
			v.sendCommit("h1")
			require.Contains(t, v.awaitMessage(t, isApplied).GetFilesApplied().GetError(), "announced as")
			advance(time.Second)
			for len(v.received) > 0 {
				require.False(t, isApplied(<-v.received))
			}
			r := v.awaitMessage(t, isReport).GetReport()
			if r.GetFilesError() == "" { // the report was collected before
				r = v.awaitMessage(t, isReport).GetReport()
			}
			require.NotEmpty(t, r.GetFilesError())
			require.NoFileExists(t, filepath.Join(dir, "recv", "a"))
			v.sendBegin("h2", "../a", "x")
			require.Contains(t, v.awaitMessage(t, isApplied).GetFilesApplied().GetError(), "path")
		})
	})
	t.Run("an interrupted transfer starts again in the next session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.setFileDirs()
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			v.sendBegin("h1", "a", "content")
			v.awaitMessage(t, isWanted)
			v.endWith <- status.Error(codes.Unavailable, "restart")
			v = s.awaitSession()
			v.sendCommit("h1")
			require.NotEmpty(t, v.awaitMessage(t, isApplied).GetFilesApplied().GetError(), "nothing is half applied")
			digest := v.sendBegin("h1", "a", "content")
			v.awaitMessage(t, isWanted)
			v.sendChunk(digest, "content")
			v.sendCommit("h1")
			require.Empty(t, v.awaitMessage(t, isApplied).GetFilesApplied().GetError())
		})
	})
	t.Run("a key never leaves the machine", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			dir := m.setFileDirs()
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_FileKeysRequest{FileKeysRequest: &apiv1.FileKeysRequest{Names: []string{"web"}}}})
			answer := v.awaitMessage(t, isKeys)
			key, err := pki.LoadKey(filepath.Join(dir, "keys", "web.pem"))
			require.NoError(t, err)
			public, err := keyring.ParseCSR(answer.GetFileKeys().GetKeys()[0].GetCsr())
			require.NoError(t, err, "it proves possession")
			require.True(t, public.Equal(key.Public()))
			report := v.awaitMessage(t, isReport)
			for _, sent := range []*apiv1.ConnectRequest{answer, report} {
				wire, err := proto.Marshal(sent)
				require.NoError(t, err)
				require.NotContains(t, string(wire), string(key.Seed()))
			}
		})
	})
}
