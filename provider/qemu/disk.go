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

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nocloud"
)

// imageTool makes overlays. It comes with QEMU.
const imageTool = "qemu-img"

// makeDisks makes the further disks, and the overlay and the seed of a machine that boots
// an image.
func (m *machine) makeDisks(ctx context.Context) error {
	for i, d := range m.shape.disks {
		if err := m.runImageTool(ctx, "create", "-q", "-f", "qcow2", furtherDisk(i), strconv.Itoa(d.Size)+"G"); err != nil {
			return err
		}
	}
	if m.shape.image == "" {
		return nil
	}
	if err := m.makeOverlay(ctx); err != nil {
		return err
	}
	seed, err := nocloud.Seed(string(m.spec.ID), string(m.spec.ID), m.spec.UserData, nil)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.Dir, seedFile), seed, 0o600)
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
	return m.runImageTool(ctx, args...)
}

// runImageTool runs qemu-img in the machine's folder.
func (m *machine) runImageTool(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, imageTool, args...)
	cmd.Dir, cmd.WaitDelay = m.Dir, outputLimit
	if errors.Is(cmd.Err, exec.ErrNotFound) {
		return nstance.FieldError("args.disks", "install it on the host (Debian: qemu-utils)", "%v", cmd.Err)
	}
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
