//go:build linux && qemu

package qemu_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/qemu"
)

// bootLimit is how long a guest may take under emulation on a busy machine.
const bootLimit = 5 * time.Minute

// built makes the options name what make qemu-guest has built, and real programs.
func built(t *testing.T) func(*qemu.Options) {
	dir := os.Getenv("NSTANCE_TEST_QEMU")
	require.NotEmpty(t, dir, "NSTANCE_TEST_QEMU must name the folder with vmlinuz and initrd: run make test-qemu")
	return func(o *qemu.Options) {
		o.Program, o.Relay = "", nil
		o.Kernel, o.Initrd = filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd")
		o.Grace = provider.Duration(bootLimit) // only a guest that powers itself off is gone in time
	}
}

// diskImage writes an image whose first sector prints text to the serial port
// and halts.
func diskImage(t *testing.T, text string) string {
	t.Helper()
	code := []byte{
		0x31, 0xc0, 0x8e, 0xd8, //       xor ax, ax; mov ds, ax
		0xbe, 0x20, 0x7c, 0xba, 0xf8, 0x03, // mov si, 0x7c20; mov dx, 0x3f8
		0xac, 0x84, 0xc0, 0x74, 0x03, // next: lodsb; test al, al; jz halt
		0xee, 0xeb, 0xf8, //             out dx, al; jmp next
		0xf4, 0xeb, 0xfd, //             halt: hlt; jmp halt
	}
	disk := make([]byte, 1<<20)
	copy(disk, code)
	copy(disk[0x20:], text+"\r\n\x00")
	disk[510], disk[511] = 0x55, 0xaa
	path := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(path, disk, 0o600))
	return path
}

func within(t *testing.T, c *qemu.Cloud, m nstance.Machine, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	defer cancel()
	rest, err := printed(ctx, c, m, text)
	require.NoError(t, err)
	return rest
}

// TestQEMUProvider runs the conformance suite on real virtual machines, whose
// disks have a boot sector and nothing else.
func TestQEMUProvider(t *testing.T) {
	disk := diskImage(t, "hello from the disk")
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		return providertest.Subject{
			Page: 13, Provider: cloud(t, func(o *qemu.Options) {
				built(t)(o)
				o.Images, o.Types = map[string]string{"disk": disk}, map[string]qemu.Type{"tiny": {Memory: 16}}
				o.Grace = provider.Duration(50 * time.Millisecond) // no guest handles the power button
			}),
			Shape: func(s *nstance.MachineSpec) { s.Image, s.InstanceType = "disk", "tiny" },
			Spot:  true, Wait: time.Minute, Types: []string{"tiny"},
		}
	})
}

func TestQEMUImage(t *testing.T) {
	disk := diskImage(t, "hello from the disk")
	before, err := os.ReadFile(disk)
	require.NoError(t, err)
	var dir string
	c := cloud(t, func(o *qemu.Options) {
		built(t)(o)
		o.Images, o.Grace = map[string]string{"disk": disk}, provider.Duration(50*time.Millisecond)
		dir = o.Dir
	})
	s := newSpec()
	s.Image, s.Args = "disk", []byte(`{"memory": 32, "disk": 1}`)
	s.UserData = bytes.Repeat([]byte("#cloud-config\n"), 1000)
	m := create(t, c, s)
	within(t, c, m, "hello from the disk")

	files, err := filepath.Glob(filepath.Join(dir, "*", string(m.ID), "*"))
	require.NoError(t, err)
	require.Len(t, files, 4)
	seed := filepath.Join(filepath.Dir(files[0]), "seed.iso")
	read := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "isoinfo", append(args, "-i", seed)...).Output()
		require.NoError(t, err)
		return string(out)
	}
	require.Contains(t, read("-d"), "Volume id: cidata")
	require.Equal(t, string(s.UserData), read("-J", "-x", "/user-data"))
	require.Equal(t, "instance-id: "+string(m.ID)+"\nlocal-hostname: "+string(m.ID)+"\n", read("-J", "-x", "/meta-data"))

	info, err := exec.CommandContext(t.Context(), "qemu-img", "info", "-U", "--output", "json", filepath.Join(filepath.Dir(seed), "disk.qcow2")).Output()
	require.NoError(t, err)
	require.Contains(t, string(info), `"virtual-size": `+strconv.Itoa(1<<30))
	after, err := os.ReadFile(disk)
	require.NoError(t, err)
	require.Equal(t, before, after, "the image was written to")
}

// TestQEMUHardware: QEMU takes a machine with all hardware that the arguments name, and the
// disks have their sizes.
func TestQEMUHardware(t *testing.T) {
	disk, dir := diskImage(t, "hello from the disk"), ""
	c := cloud(t, func(o *qemu.Options) {
		built(t)(o)
		o.Images, o.Grace = map[string]string{"disk": disk}, provider.Duration(50*time.Millisecond)
		dir = o.Dir
	})
	s := newSpec()
	s.Image, s.Args = "disk", []byte(`{"memory": 64, "cpus": 4, "sockets": 2, "cpu_type": "qemu64", "disks": [{"size": 3}, {"size": 5}], "networks": [
		{"mtu": 9000}, {"model": "e1000"}, {"model": "e1000e"}, {"model": "rtl8139"}, {"model": "vmxnet3"}]}`)
	m := create(t, c, s)
	within(t, c, m, "hello from the disk")
	files, err := filepath.Glob(filepath.Join(dir, "*", string(m.ID), "disk[12].qcow2"))
	require.NoError(t, err)
	require.Len(t, files, 2)
	for i, size := range []int{3, 5} {
		info, err := exec.CommandContext(t.Context(), "qemu-img", "info", "-U", "--output", "json", files[i]).Output()
		require.NoError(t, err)
		require.Contains(t, string(info), `"virtual-size": `+strconv.Itoa(size<<30))
	}
	s = newSpec()
	s.Image, s.Args = "disk", []byte(`{"cpu_type": "i486-of-nobody"}`)
	create(t, c, s)
	require.Contains(t, becomesWithin(t, c, s.ID, nstance.StatusFailed).CauseText, "i486-of-nobody")
}

// TestQEMUGuest boots a real kernel whose user data is a script.
func TestQEMUGuest(t *testing.T) {
	c := cloud(t, built(t))
	s := newSpec()
	s.UserData = []byte(`#!/bin/sh
echo "user data of $(hostname) runs"
until wget -q -O /run/notice http://169.254.169.254/latest/meta-data/spot/instance-action; do sleep 1; done
echo "notice: $(cat /run/notice)"
`)
	m := create(t, c, s)
	require.Equal(t, "runs", within(t, c, m, "user data of "+m.ProviderID+" "))
	require.NoError(t, c.Interrupt(m.ID, "terminate", time.Hour))
	require.Contains(t, within(t, c, m, "notice: "), `"action":"terminate"`)
	require.NoError(t, c.Delete(t.Context(), m))
	require.Eventually(t, func() bool {
		_, err := c.Get(t.Context(), m.ID)
		return nstance.CodeOf(err) == nstance.NotFound
	}, bootLimit/2, 50*time.Millisecond, "the guest does not hear its power button")
}

// TestQEMUHibernate: a program in the guest continues, twice.
func TestQEMUHibernate(t *testing.T) {
	c := cloud(t, built(t))
	s := newSpec()
	s.Park, s.Market = nstance.ParkHibernated, nstance.OnDemand
	s.UserData = []byte("#!/bin/sh\ni=0\nwhile :; do i=$((i + 1)); echo \"count $i.\"; sleep 1; done\n")
	m := create(t, c, s)
	within(t, c, m, "count 1.")
	for n := 2; n <= 3; n++ {
		require.NoError(t, c.Park(t.Context(), m, nstance.ParkHibernated))
		becomesWithin(t, c, m.ID, nstance.StatusStopped)
		out, err := c.ConsoleOutput(t.Context(), m)
		require.NoError(t, err)
		next := bytes.Count(out, []byte("count ")) + 1
		require.NoError(t, c.Wake(t.Context(), m))
		within(t, c, m, "count "+strconv.Itoa(next)+".")
	}
	out, err := c.ConsoleOutput(t.Context(), m)
	require.NoError(t, err)
	require.Equal(t, 1, bytes.Count(out, []byte("count 1.")), "it started anew")
	becomesWithin(t, c, m.ID, nstance.StatusRunning)
}

// TestQEMUStop: a stopped machine boots again.
func TestQEMUStop(t *testing.T) {
	c := cloud(t, built(t))
	s := newSpec()
	s.Park, s.Market = nstance.ParkStopped, nstance.OnDemand
	s.UserData = []byte("#!/bin/sh\necho up.\n")
	m := create(t, c, s)
	within(t, c, m, "up.")
	require.NoError(t, c.Park(t.Context(), m, nstance.ParkStopped))
	becomesWithin(t, c, m.ID, nstance.StatusStopped)
	require.NoError(t, c.Wake(t.Context(), m))
	require.Eventually(t, func() bool {
		out, err := c.ConsoleOutput(t.Context(), m)
		return err == nil && bytes.Count(out, []byte("up.")) == 2
	}, bootLimit, 50*time.Millisecond)
}

// TestQEMUAccel: with or without /dev/kvm, machines run, and one that powers itself off
// has stopped.
func TestQEMUAccel(t *testing.T) {
	c := cloud(t, func(o *qemu.Options) { built(t)(o); o.Accel = "" })
	s := newSpec()
	s.UserData = []byte("#!/bin/sh\necho \"a guest runs.\"\npoweroff -f\n")
	m := create(t, c, s)
	within(t, c, m, "a guest runs.")
	require.Equal(t, nstance.LossGuest, becomesWithin(t, c, m.ID, nstance.StatusStopped).Cause)
}

// becomesWithin is becomes with a limit for guests.
func becomesWithin(t *testing.T, c *qemu.Cloud, id nstance.InstanceID, want nstance.MachineStatus) (m nstance.Machine) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		m, err = c.Get(t.Context(), id)
		return err == nil && m.Status == want
	}, bootLimit, 20*time.Millisecond, "wanted %s", want)
	return m
}
