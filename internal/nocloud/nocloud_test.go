package nocloud_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/nocloud"
)

func TestSeedWithNetwork(t *testing.T) {
	image, err := nocloud.Seed("tst1", "host1", []byte("x"), []byte(`{"version": 2}`))
	require.NoError(t, err)
	got, err := nocloud.ReadFile(image, nocloud.NetworkConfig)
	require.NoError(t, err)
	require.Equal(t, `{"version": 2}`, string(got))
	image, err = nocloud.Seed("tst1", "host1", []byte("x"), nil)
	require.NoError(t, err)
	_, err = nocloud.ReadFile(image, nocloud.NetworkConfig)
	require.Error(t, err)
}

func TestSeed(t *testing.T) {
	userData := bytes.Repeat([]byte("#cloud-config ä\n"), 1000)
	image, err := nocloud.Seed("tst1", "host1", userData, nil)
	require.NoError(t, err)
	again, err := nocloud.Seed("tst1", "host1", userData, nil)
	require.NoError(t, err)
	require.Equal(t, image, again)
	got, err := nocloud.ReadFile(image, nocloud.UserData)
	require.NoError(t, err)
	require.Equal(t, userData, got)
	got, err = nocloud.ReadFile(image, nocloud.MetaData)
	require.NoError(t, err)
	require.Equal(t, "instance-id: tst1\nlocal-hostname: host1\n", string(got))
}

// TestOtherReaders has readers that were not written here judge the image.
func TestOtherReaders(t *testing.T) {
	image, err := nocloud.Seed("tst1", "host1", []byte("x"), nil)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "seed.iso")
	require.NoError(t, os.WriteFile(path, image, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	fs, err := iso9660.Read(file.New(f, true), int64(len(image)), 0, 2048)
	require.NoError(t, err)
	require.Equal(t, "cidata", strings.TrimSpace(fs.Label()))
	files, err := fs.ReadDir("/")
	require.NoError(t, err)
	require.Len(t, files, 2)
	if isoinfo, err := exec.LookPath("isoinfo"); err == nil { // the program of cdrkit, where there is one
		for _, flag := range []string{"-J", "-l"} {
			out, err := exec.CommandContext(t.Context(), isoinfo, "-i", path, flag, "-f").CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(bytes.ToLower(out)), "user-data")
		}
	}
}

func TestRefused(t *testing.T) {
	_, err := nocloud.Image(map[string][]byte{"a/\x00": nil})
	require.Error(t, err)
	long := strings.Repeat("x", 30)
	image, err := nocloud.Image(map[string][]byte{long: []byte("y")})
	require.NoError(t, err)
	got, err := nocloud.ReadFile(image, long)
	require.NoError(t, err)
	require.Equal(t, "y", string(got))
	_, err = nocloud.Image(map[string][]byte{long + "x": nil})
	require.Error(t, err, "no reader finds it")
	image, err = nocloud.Seed("tst1", "host1", bytes.Repeat([]byte("x"), 4096), nil)
	require.NoError(t, err)
	_, err = nocloud.ReadFile(slices.Clip(image[:len(image)-2048]), nocloud.UserData)
	require.ErrorContains(t, err, "cut off")
	many := map[string][]byte{}
	for i := range 100 {
		many[fmt.Sprintf("file-with-a-long-name-%d", i)] = nil
	}
	_, err = nocloud.Image(many)
	require.Error(t, err)
}

func FuzzReadFile(f *testing.F) {
	image, err := nocloud.Seed("tst1", "host1", []byte("x"), nil)
	require.NoError(f, err)
	f.Add(image)
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, image []byte) {
		_, _ = nocloud.ReadFile(image, nocloud.UserData)
	})
}

func Example() {
	image, err := nocloud.Seed("web1", "web1", []byte("#cloud-config\n"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := nocloud.ReadFile(image, nocloud.UserData)
	fmt.Printf("%s%v\n", b, err)
	// Output:
	// #cloud-config
	// <nil>
}
