package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// writeArchive writes an OCI image layout into a tar file, in the order of names and without
// times or owners. The index is the only entry of the layout's own one: that is what podman and
// skopeo take from an archive with images of several platforms.
func writeArchive(path string, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := at.AppendIndex(index); err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	return errors.Join(addFolder(w, dir), w.Close(), out.Close())
}

func addFolder(w *tar.Writer, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		below, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: filepath.ToSlash(below), Mode: 0o644, Size: info.Size(), Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = io.Copy(w, in)
		return err
	})
}

// openArchive returns the index of an archive that build wrote. It is valid until done is
// called.
func openArchive(path string) (index v1.ImageIndex, done func(), err error) {
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return nil, nil, err
	}
	done = func() { _ = os.RemoveAll(dir) }
	in, err := os.Open(path)
	if err == nil {
		err = errors.Join(extractTar(in, dir), in.Close())
	}
	if err == nil {
		index, err = onlyIndex(dir)
	}
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return index, done, nil
}

func onlyIndex(dir string) (v1.ImageIndex, error) {
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := outer.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("it has %d entries, not one index: image build writes such an archive", len(manifest.Manifests))
	}
	return outer.ImageIndex(manifest.Manifests[0].Digest)
}

// extract writes the files of an image into a folder.
func extract(img v1.Image, dir string) error {
	files := mutate.Extract(img)
	return errors.Join(extractTar(files, dir), files.Close())
}

// extractTar writes the files of a tar into a folder, and refuses those that would be beside it.
func extractTar(in io.Reader, dir string) error {
	for r := tar.NewReader(in); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(header.Name) {
			return fmt.Errorf("%q leads out of the archive", header.Name)
		}
		if err := extractFile(r, header, filepath.Join(dir, filepath.FromSlash(header.Name))); err != nil {
			return err
		}
	}
}

func extractFile(in io.Reader, header *tar.Header, path string) error {
	switch header.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(path, 0o755)
	case tar.TypeReg:
	default:
		return fmt.Errorf("%q is neither a file nor a folder", header.Name)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(header.Mode)&fs.ModePerm)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
