package main

import (
	"bytes"
	"crypto/x509"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// archive builds an image of two platforms, whose programs have the names of these.
func archive(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"build", "-to", filepath.Join(dir, "out.tar"), "-created", "1700000000"}
	for _, platform := range []string{"linux/arm64", "linux/amd64"} {
		path := filepath.Join(dir, strings.ReplaceAll(platform, "/", "-"))
		must(t, os.WriteFile(path, []byte(platform), 0o755))
		args = append(args, platform+"="+path)
	}
	must(t, run(args, nil))
	return filepath.Join(dir, "out.tar")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, want, got T) {
	t.Helper()
	if want != got {
		t.Fatalf("want %v, got %v", want, got)
	}
}

func TestSameProgramsSameBytes(t *testing.T) {
	one, err := os.ReadFile(archive(t))
	must(t, err)
	two, err := os.ReadFile(archive(t))
	must(t, err)
	if len(one) == 0 || !bytes.Equal(one, two) {
		t.Fatal("two archives of the same programs differ")
	}
}

func TestUnpack(t *testing.T) {
	from := archive(t)
	for _, platform := range []string{"linux/amd64", "linux/arm64"} {
		dir := t.TempDir()
		must(t, run([]string{"unpack", "-from", from, "-to", dir, "-platform", platform}, nil))
		program, err := os.ReadFile(filepath.Join(dir, "program"))
		must(t, err)
		equal(t, platform, string(program))
		info, err := os.Stat(filepath.Join(dir, "program"))
		must(t, err)
		equal(t, fs.FileMode(0o755), info.Mode())
		roots, err := os.ReadFile(filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt"))
		must(t, err)
		if !x509.NewCertPool().AppendCertsFromPEM(roots) || bytes.Count(roots, []byte("BEGIN")) < 50 {
			t.Fatal("there are no authorities")
		}
	}
	err := run([]string{"unpack", "-from", from, "-to", t.TempDir(), "-platform", "linux/s390x"}, nil)
	if err == nil || !strings.Contains(err.Error(), "linux/amd64, linux/arm64") {
		t.Fatalf("the error names the platforms that there are: %v", err)
	}
}

// TestPush: a registry gives back what was built, with a program for each platform that no root runs.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	tag := strings.TrimPrefix(server.URL, "http://") + "/nstance-server:v1"
	var out bytes.Buffer
	must(t, run([]string{"push", "-from", archive(t), tag}, &out))
	ref, err := name.ParseReference(tag)
	must(t, err)
	index, err := remote.Index(ref)
	must(t, err)
	digest, err := index.Digest()
	must(t, err)
	equal(t, ref.Context().String()+"@"+digest.String(), strings.TrimSpace(out.String()))
	for _, architecture := range []string{"amd64", "arm64"} {
		img, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
		must(t, err)
		config, err := img.ConfigFile()
		must(t, err)
		equal(t, architecture, config.Architecture)
		equal(t, "65532:65532", config.Config.User)
		equal(t, "/program", strings.Join(config.Config.Entrypoint, " "))
		equal(t, int64(1700000000), config.Created.Unix())
	}
}

// TestDocker: what docker load reads has the tag.
func TestDocker(t *testing.T) {
	to := filepath.Join(t.TempDir(), "docker.tar")
	must(t, run([]string{"docker", "-from", archive(t), "-to", to, "-platform", "linux/arm64", "example.com/nstance-server:v1"}, nil))
	tag, err := name.NewTag("example.com/nstance-server:v1")
	must(t, err)
	img, err := tarball.ImageFromPath(to, &tag)
	must(t, err)
	config, err := img.ConfigFile()
	must(t, err)
	equal(t, "arm64", config.Architecture)
}

func TestMistakes(t *testing.T) {
	for want, args := range map[string]string{
		"build, docker, unpack, digest or push": "",
		"at least one PLATFORM=PROGRAM":         "build -to x",
		"write PLATFORM=PROGRAM":                "build -to x dist/nstance-server",
		"write OS/ARCHITECTURE":                 "build -to x amd64=y",
		"-from FILE, -to FILE":                  "docker a:b",
		"-to FOLDER":                            "unpack -from x",
		"one NAME:TAG":                          "push -from x",
	} {
		err := run(strings.Fields(args), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q, got %v", args, want, err)
		}
	}
}
