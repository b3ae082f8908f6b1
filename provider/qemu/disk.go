package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

// imageTool makes overlays. It comes with QEMU.
const imageTool = "qemu-img"

// makeDisks makes the overlay and the seed of a machine that boots an image.
func (m *machine) makeDisks(ctx context.Context) error {
	if m.shape.image == "" {
		return nil
	}
	if err := m.makeOverlay(ctx); err != nil {
		return err
	}
	return writeSeed(filepath.Join(m.dir, seedFile), map[string][]byte{
		"user-data": m.spec.UserData,
		"meta-data": fmt.Appendf(nil, "instance-id: %[1]s\nlocal-hostname: %[1]s\n", m.spec.ID),
	})
}

// makeOverlay makes the disk that a machine writes to. The image stays as it is.
func (m *machine) makeOverlay(ctx context.Context) error {
	format, err := imageFormat(m.shape.image)
	if err != nil {
		return err
	}
	args := []string{"create", "-q", "-f", "qcow2", "-F", format, "-b", m.shape.image, diskFile}
	if m.shape.disk > 0 {
		args = append(args, strconv.Itoa(m.shape.disk)+"G")
	}
	cmd := exec.CommandContext(ctx, imageTool, args...)
	cmd.Dir = m.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", imageTool, err, bytes.TrimSpace(out))
	}
	return nil
}

// imageFormat tells qcow2 from raw by the first bytes ("Qcow2 Image File
// Format", docs/interop/qcow2.txt in QEMU's sources).
func imageFormat(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	magic := make([]byte, 4)
	if _, err := io.ReadFull(f, magic); err != nil {
		return "", fmt.Errorf("%s is no disk image: %w", path, err)
	}
	if string(magic) == "QFI\xfb" {
		return "qcow2", nil
	}
	return "raw", nil
}

// seedLabel is how cloud-init finds the seed ("NoCloud", cloud-init
// documentation: a file system labelled CIDATA or cidata).
const seedLabel = "cidata"

// Of a seed. The library needs to know the size beforehand.
const (
	seedBlock = 2048
	seedSize  = 4<<20 + maxUserData
)

// writeSeed writes an ISO 9660 file system with Rock Ridge names.
func writeSeed(path string, files map[string][]byte) (err error) {
	image, err := file.CreateFromPath(path, seedSize)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, image.Close()) }()
	fs, err := iso9660.Create(image, seedSize, 0, seedBlock, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(fs.Workspace())) }()
	for name, content := range files {
		f, err := fs.OpenFile("/"+name, os.O_CREATE|os.O_RDWR)
		if err != nil {
			return err
		}
		_, err = f.Write(content)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return fs.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: seedLabel})
}
