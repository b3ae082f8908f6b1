package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user runs the program: no user of any machine.
const user = "65532:65532"

type platformImage struct {
	v1.Image
	platform v1.Platform
}

// programs returns an index with the image of each PLATFORM=PROGRAM, in the order of platforms.
func programs(args []string, created time.Time) (v1.ImageIndex, error) {
	args = slices.Clone(args)
	slices.Sort(args)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arg := range args {
		platform, path, found := strings.Cut(arg, "=")
		if !found {
			return nil, fmt.Errorf("%q: write PLATFORM=PROGRAM, such as linux/amd64=dist/nstance-server", arg)
		}
		img, err := program(platform, path, created)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img.Image, Descriptor: v1.Descriptor{Platform: &img.platform}})
	}
	return index, nil
}

// program returns the image of one program.
func program(platform, path string, created time.Time) (platformImage, error) {
	parsed, err := v1.ParsePlatform(platform)
	if err != nil || parsed.OS == "" || parsed.Architecture == "" {
		return platformImage{}, fmt.Errorf("%q is no platform: write OS/ARCHITECTURE, such as linux/amd64", platform)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return platformImage{}, err
	}
	files, err := layer(data, created)
	if err != nil {
		return platformImage{}, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(base, &v1.ConfigFile{
		OS: parsed.OS, Architecture: parsed.Architecture, Variant: parsed.Variant, Created: v1.Time{Time: created},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{User: user, Entrypoint: []string{"/program"}, Env: []string{"PATH=/"}},
	})
	if err != nil {
		return platformImage{}, err
	}
	img, err = mutate.Append(img, mutate.Addendum{Layer: files, History: v1.History{Created: v1.Time{Time: created}}})
	return platformImage{img, *parsed}, err
}

// layer has the program and the authorities.
func layer(program []byte, created time.Time) (v1.Layer, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		name string
		mode int64
		data []byte
	}{{"program", 0o755, program}, {"etc/ssl/certs/ca-certificates.crt", 0o644, authorities()}} {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: created, Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// authorities returns Mozilla's list, without those that it trusts under a condition only: a
// file of certificates cannot say so.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // to memory
		}
	}
	return out.Bytes()
}

// withImage calls a function with the image of -platform in the archive -from.
func withImage(o flags, use func(platformImage) error) error {
	index, done, err := openArchive(o.from)
	if err != nil {
		return err
	}
	defer done()
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	var known []string
	for _, m := range manifest.Manifests {
		if m.Platform == nil {
			continue
		}
		if m.Platform.String() == o.platform {
			img, err := index.Image(m.Digest)
			if err != nil {
				return err
			}
			return use(platformImage{img, *m.Platform})
		}
		known = append(known, m.Platform.String())
	}
	if known == nil {
		return errors.New("-from: it has no image with a platform")
	}
	return fmt.Errorf("-platform: there is no %q, but %s", o.platform, strings.Join(known, ", "))
}
