package qemu_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/program"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/qemu"
)

// soon is a generous limit.
const soon = time.Minute

var owner = nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "a", Tenant: "default"}

func testContext() context.Context { return context.Background() }

func newSpec() nstance.MachineSpec {
	now := time.Now().UTC()
	id, err := nstance.NewInstanceID("vmx", now)
	if err != nil {
		panic(err)
	}
	return nstance.MachineSpec{ID: id, Owner: owner, CreatedAt: now, Market: nstance.Spot, Token: string(id)}
}

// options are those of a cloud whose QEMU is this test binary.
func options(dir string) *qemu.Options {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return &qemu.Options{
		Kernel: self, Initrd: self, Program: self, Relay: []string{self, "relay"}, Dir: dir, Accel: "tcg",
		Types: map[string]qemu.Type{"small": {Memory: 64}},
	}
}

func open(dir string) (*qemu.Cloud, error) { return qemu.New(options(dir), nil) }

// cloud returns a cloud that must leave nothing behind.
func cloud(t *testing.T, change func(*qemu.Options)) *qemu.Cloud {
	t.Helper()
	dir := t.TempDir()
	o := options(dir)
	if change != nil {
		change(o)
	}
	c, err := qemu.New(o, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left, "left behind by Close")
	})
	return c
}

// guest returns a spec whose guest follows the words.
func guest(words string) nstance.MachineSpec {
	s := newSpec()
	s.Args = json.RawMessage(`{"append": ` + strconv.Quote(words) + `}`)
	return s
}

func create(t *testing.T, c *qemu.Cloud, s nstance.MachineSpec) nstance.Machine {
	t.Helper()
	m, err := c.Create(t.Context(), s)
	require.NoError(t, err)
	return m
}

// becomes waits until the machine has the status, and returns it; "gone" is
// NotFound.
func becomes(t *testing.T, c *qemu.Cloud, id nstance.InstanceID, want nstance.MachineStatus) (m nstance.Machine) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		m, err = c.Get(t.Context(), id)
		if errors.Is(err, nstance.NotFound) {
			m.Status = "gone"
		}
		return m.Status == want
	}, soon, 5*time.Millisecond, "wanted %s", want)
	return m
}

// printed waits until the machine has printed text, and returns the rest of the line.
func printed(ctx context.Context, c *qemu.Cloud, m nstance.Machine, text string) (string, error) {
	for {
		out, err := c.ConsoleOutput(ctx, m)
		if err != nil {
			return "", err
		}
		if _, rest, ok := strings.Cut(string(out), text); ok {
			if line, _, ok := strings.Cut(rest, "\n"); ok {
				return strings.TrimSpace(line), nil
			}
		}
		select {
		case <-ctx.Done():
			return "", errors.New("never printed " + text + ", but: " + string(out))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func prints(t *testing.T, c *qemu.Cloud, m nstance.Machine, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	rest, err := printed(ctx, c, m, text)
	require.NoError(t, err)
	return rest
}

func TestProvider(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		c := cloud(t, nil)
		return providertest.Subject{
			Page: 13, Provider: c, Park: c.ParkModes(),
			Shape: func(s *nstance.MachineSpec) {
				s.InstanceType, s.Args = "small", json.RawMessage(`{"append": "metadata"}`)
			},
			Spot: true, Wait: soon, Types: []string{"small"},
			UserData: func(ctx context.Context, m nstance.Machine) ([]byte, error) {
				text, err := printed(ctx, c, m, "user data ")
				if err != nil {
					return nil, err
				}
				return base64.StdEncoding.DecodeString(strings.TrimSuffix(text, "."))
			},
			BadArgs: map[string]json.RawMessage{
				"memory":    json.RawMessage(`{"memory": 1}`),
				"cpus":      json.RawMessage(`{"cpus": "two"}`),
				"disk":      json.RawMessage(`{"disk": 10}`),
				"image":     json.RawMessage(`{"image": "debian"}`),
				"user_data": json.RawMessage(`{"user_data": ""}`),
			},
		}
	})
}

// TestHardware: what the arguments name arrives at QEMU.
func TestHardware(t *testing.T) {
	c := cloud(t, nil)
	s := newSpec()
	s.Args = json.RawMessage(`{"append": "hardware", "cpus": 4, "sockets": 2, "cpu_type": "Haswell", "networks": [{"mtu": 9000}, {"model": "e1000"}]}`)
	m := create(t, c, s)
	out := prints(t, c, m, "hardware -cpu ")
	require.Equal(t, "Haswell", out)
	require.Equal(t, "4,sockets=2", prints(t, c, m, "hardware -smp "))
	prints(t, c, m, "files ")
	text, err := c.ConsoleOutput(t.Context(), m)
	require.NoError(t, err)
	for _, line := range []string{
		"-netdev user,id=net1,net=10.0.2.0/24,restrict=on", "-device virtio-net-pci,netdev=net1,romfile=,host_mtu=9000",
		"-netdev user,id=net2,net=10.0.3.0/24,restrict=on", "-device e1000,netdev=net2,romfile=",
	} {
		require.Contains(t, string(text), "hardware "+line+"\n")
	}
}

// TestFurtherDisks: they are made empty and go with the machine.
func TestFurtherDisks(t *testing.T) {
	s := newSpec()
	s.Args = json.RawMessage(`{"append": "hardware", "disks": [{"size": 3}, {"size": 5}]}`)
	c := cloud(t, nil)
	m, err := c.Create(t.Context(), s)
	if _, missing := exec.LookPath("qemu-img"); missing != nil {
		require.ErrorContains(t, err, "qemu-utils")
		return
	}
	require.NoError(t, err)
	require.Equal(t, "[disk1.qcow2 disk2.qcow2] <nil>", prints(t, c, m, "files "))
	prints(t, c, m, "hardware -drive file=disk1.qcow2,format=qcow2,if=virtio")
	prints(t, c, m, "hardware -drive file=disk2.qcow2,format=qcow2,if=virtio")
}

// TestImages: a machine's disk lies over its image, whose format is that of its content. One that
// cannot be made is refused.
func TestImages(t *testing.T) {
	tools := t.TempDir()
	t.Setenv("PATH", tools+string(os.PathListSeparator)+os.Getenv("PATH"))
	for content, want := range map[string]string{"QFI\xfb and more": "-F qcow2", "anything else": "-F raw", "broken": ""} {
		end := "exit 0"
		if want == "" {
			end = "echo it is broken; exit 1"
		}
		require.NoError(t, program.Write(filepath.Join(tools, "qemu-img"), []byte("#!/bin/sh\necho \"$@\" >"+tools+"/asked\n"+end+"\n")))
		image := filepath.Join(tools, "image")
		require.NoError(t, os.WriteFile(image, []byte(content), 0o600))
		c := cloud(t, func(o *qemu.Options) { o.Images = map[string]string{"debian": image} })
		s := newSpec()
		s.Image = "debian"
		_, err := c.Create(t.Context(), s)
		if want == "" {
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "it is broken")
			continue
		}
		require.NoError(t, err)
		asked, err := os.ReadFile(filepath.Join(tools, "asked"))
		require.NoError(t, err)
		require.Contains(t, string(asked), want+" -b "+image)
	}
}

// TestCreateOnStorageThatHangs: a caller is not kept longer than its context lasts, nor is any
// other, and the cloud can be closed.
func TestCreateOnStorageThatHangs(t *testing.T) {
	tools := t.TempDir()
	t.Setenv("PATH", tools+string(os.PathListSeparator)+os.Getenv("PATH"))
	began := filepath.Join(tools, "began")
	require.NoError(t, program.Write(filepath.Join(tools, "qemu-img"), []byte("#!/bin/sh\ntouch "+began+"\nexec sleep 3600\n")))
	image := filepath.Join(tools, "image")
	require.NoError(t, os.WriteFile(image, []byte("an image"), 0o600))
	c := cloud(t, func(o *qemu.Options) { o.Images = map[string]string{"debian": image} })
	s := newSpec()
	s.Image = "debian"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := make(chan error, 2)
	for range cap(answers) {
		go func() {
			_, err := c.Create(ctx, s)
			answers <- err
		}()
	}
	require.Eventually(t, func() bool { _, err := os.Stat(began); return err == nil }, soon, 5*time.Millisecond)
	cancel()
	for range cap(answers) {
		require.ErrorIs(t, <-answers, nstance.Ambiguous)
	}
	for m, err := range c.List(t.Context(), owner) {
		require.NoError(t, err)
		require.Equal(t, nstance.StatusPending, m.Status)
	}
	require.NoError(t, c.Close())
}

func TestCheckHardware(t *testing.T) {
	settings := provider.Settings{Options: json.RawMessage(`{"kernel": "/boot/vmlinuz", "types": {"odd": {"cpus": 3}}}`)}
	for args, field := range map[string]string{
		`{"cpus": 4, "sockets": 2}`: "",
		`{"cpus": 3, "sockets": 2}`: "args.sockets",
		`{"sockets": 2}`:            "args.sockets",
		`{"sockets": 17}`:           "args.sockets",
		`{"cpu_type": "host,+vmx"}`: "args.cpu_type",
		`{"disks": [{"size": 0}]}`:  "args.disks[0].size",
		`{"disks": [{}]}`:           "args.disks[0].size",
		`{"disks": [` + strings.Repeat(`{"size": 1},`, 8) + `{"size": 1}]}`: "args.disks",
		`{"networks": [{"model": "virtoi"}]}`:                               "args.networks[0].model",
		`{"networks": [{"mtu": 100}]}`:                                      "args.networks[0].mtu",
		`{"networks": [{"model": "e1000", "mtu": 9000}]}`:                   "args.networks[0].mtu",
		`{"networks": [` + strings.Repeat(`{},`, 8) + `{}]}`:                "args.networks",
	} {
		s := newSpec()
		s.InstanceType, s.Args = "odd", json.RawMessage(args)
		err := qemu.Kind().CheckSpec(settings, s)
		if field == "" {
			require.NoError(t, err, args)
			continue
		}
		e, ok := errors.AsType[*nstance.Error](err)
		require.True(t, ok, "%s: %v", args, err)
		require.Equal(t, field, e.Field, args)
	}
}

func TestLife(t *testing.T) {
	t.Run("a machine runs, prints, and powers itself off when deleted", func(t *testing.T) {
		c := cloud(t, nil)
		m := create(t, c, guest("x"))
		becomes(t, c, m.ID, nstance.StatusRunning)
		prints(t, c, m, "a guest boots")
		require.NoError(t, c.Delete(t.Context(), m))
		becomes(t, c, m.ID, "gone")
		_, err := c.ConsoleOutput(t.Context(), m)
		require.ErrorIs(t, err, nstance.NotFound)
	})
	t.Run("one that ignores its power button is killed after the grace", func(t *testing.T) {
		c := cloud(t, func(o *qemu.Options) { o.Grace = provider.Duration(50 * time.Millisecond) })
		m := create(t, c, guest("deaf"))
		becomes(t, c, m.ID, nstance.StatusRunning)
		require.NoError(t, c.Delete(t.Context(), m))
		becomes(t, c, m.ID, "gone")
	})
	for _, end := range []struct {
		words  string
		status nstance.MachineStatus
		cause  nstance.LossCause
	}{
		{"guest-shutdown", nstance.StatusStopped, nstance.LossGuest},
		{"guest-panic", nstance.StatusFailed, nstance.LossGuest},
		{"no-kernel", nstance.StatusFailed, nstance.LossInvalid},
		{"no-memory", nstance.StatusFailed, nstance.LossCapacity},
		{"no-ram", nstance.StatusFailed, nstance.LossCapacity},
		{"no-space", nstance.StatusFailed, nstance.LossCapacity},
		{"no-descriptors", nstance.StatusFailed, nstance.LossQuota},
		{"no-threads", nstance.StatusFailed, nstance.LossQuota},
		{"no-kvm", nstance.StatusFailed, nstance.LossHost},
		{"no-access", nstance.StatusFailed, nstance.LossHost},
	} {
		t.Run("cause of "+end.words, func(t *testing.T) {
			c := cloud(t, nil)
			m := create(t, c, guest(end.words))
			ended := becomes(t, c, m.ID, end.status)
			require.Equal(t, end.cause, ended.Cause)
			require.Contains(t, ended.CauseText, refusals[end.words])
			require.NoError(t, c.Delete(t.Context(), m))
			becomes(t, c, m.ID, "gone")
		})
	}
	t.Run("one more than permitted is sold out", func(t *testing.T) {
		c := cloud(t, func(o *qemu.Options) { o.MaxMachines = 1 })
		m := create(t, c, newSpec())
		_, err := c.Create(t.Context(), newSpec())
		require.ErrorIs(t, err, nstance.Capacity)
		require.NoError(t, c.Delete(t.Context(), m))
		becomes(t, c, m.ID, "gone")
		create(t, c, newSpec())
	})
	t.Run("a killed machine has failed", func(t *testing.T) {
		c := cloud(t, nil)
		m := create(t, c, newSpec())
		becomes(t, c, m.ID, nstance.StatusRunning)
		require.NoError(t, c.Kill(t.Context(), m.ID))
		require.Equal(t, nstance.LossHost, becomes(t, c, m.ID, nstance.StatusFailed).Cause)
		require.ErrorIs(t, c.Kill(t.Context(), m.ID), nstance.Conflict)
		require.ErrorIs(t, c.Kill(t.Context(), newSpec().ID), nstance.NotFound)
	})
	t.Run("a machine ends with its owner, in every way", func(t *testing.T) {
		self, err := os.Executable()
		require.NoError(t, err)
		dir := t.TempDir()
		cmd := exec.Command(self, "own a machine")
		cmd.Env = append(os.Environ(), "TEST_DIR="+dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "machine made <nil>\n", line)
		booted := func() bool {
			logs, _ := filepath.Glob(filepath.Join(dir, "*", "*", "console.log"))
			return len(logs) == 1
		}
		require.Eventually(t, booted, soon, 5*time.Millisecond)
		require.NotEmpty(t, processes(t, dir))
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.Eventually(t, func() bool { return len(processes(t, dir)) == 0 }, soon, 5*time.Millisecond, "QEMU outlives its owner")
	})
}

// processes returns those that work below dir.
func processes(t *testing.T, dir string) (pids []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, dir) {
			pids = append(pids, link)
		}
	}
	return pids
}

func TestInterrupt(t *testing.T) {
	t.Run("announced, and taken", func(t *testing.T) {
		c := cloud(t, nil)
		m := create(t, c, newSpec())
		becomes(t, c, m.ID, nstance.StatusRunning)
		require.NoError(t, c.Interrupt(m.ID, "", 0))
		require.Equal(t, nstance.LossReclaimed, becomes(t, c, m.ID, nstance.StatusStopped).Cause)
		becomes(t, c, m.ID, "gone")
		require.ErrorIs(t, c.Interrupt(m.ID, "", 0), nstance.NotFound)
	})
	t.Run("refused", func(t *testing.T) {
		c := cloud(t, nil)
		s := newSpec()
		s.Market = nstance.OnDemand
		m := create(t, c, s)
		require.ErrorIs(t, c.Interrupt(m.ID, "", 0), nstance.Invalid)
		require.ErrorIs(t, c.Interrupt(m.ID, "explode", 0), nstance.Invalid)
		require.NoError(t, c.Withdraw(m.ID))
	})
}

func TestPark(t *testing.T) {
	parked := func(mode nstance.ParkMode, words string) nstance.MachineSpec {
		s := guest(words)
		s.Park, s.Market = mode, nstance.OnDemand
		return s
	}
	for mode, again := range map[nstance.ParkMode]string{nstance.ParkStopped: "a guest boots", nstance.ParkHibernated: "a guest goes on"} {
		t.Run(string(mode)+" and woken", func(t *testing.T) {
			var dir string
			c := cloud(t, func(o *qemu.Options) { dir = o.Dir })
			m := create(t, c, parked(mode, "x"))
			becomes(t, c, m.ID, nstance.StatusRunning)
			prints(t, c, m, "a guest boots")
			for range 2 {
				require.NoError(t, c.Park(t.Context(), m, mode))
				require.NoError(t, c.Park(t.Context(), m, mode), "twice")
				becomes(t, c, m.ID, nstance.StatusStopped)
				require.NoError(t, c.Wake(t.Context(), m))
				require.NoError(t, c.Wake(t.Context(), m), "twice")
				becomes(t, c, m.ID, nstance.StatusRunning)
			}
			require.Eventually(t, func() bool {
				out, err := c.ConsoleOutput(t.Context(), m)
				return err == nil && strings.HasSuffix(string(out), strings.Repeat(again+"\n", 2))
			}, soon, 5*time.Millisecond)
			requireNoMemory(t, dir)
		})
	}
	t.Run("hibernation that fails leaves the machine running", func(t *testing.T) {
		var dir string
		c := cloud(t, func(o *qemu.Options) { dir = o.Dir })
		m := create(t, c, parked(nstance.ParkHibernated, "stays"))
		becomes(t, c, m.ID, nstance.StatusRunning)
		require.NoError(t, c.Park(t.Context(), m, nstance.ParkHibernated))
		prints(t, c, m, "a guest goes on")
		becomes(t, c, m.ID, nstance.StatusRunning)
		requireNoMemory(t, dir)
		require.ErrorContains(t, c.Park(t.Context(), m, nstance.ParkHibernated), "cannot hibernate", "it is said why")
		require.NoError(t, c.Park(t.Context(), m, nstance.ParkHibernated), "and tried again")
		becomes(t, c, m.ID, nstance.StatusRunning)
	})
	t.Run("a parked machine is deleted", func(t *testing.T) {
		c := cloud(t, nil)
		m := create(t, c, parked(nstance.ParkHibernated, "x"))
		becomes(t, c, m.ID, nstance.StatusRunning)
		require.NoError(t, c.Park(t.Context(), m, nstance.ParkHibernated))
		becomes(t, c, m.ID, nstance.StatusStopped)
		require.NoError(t, c.Delete(t.Context(), m))
		becomes(t, c, m.ID, "gone")
		require.ErrorIs(t, c.Wake(t.Context(), m), nstance.NotFound)
	})
	t.Run("refused", func(t *testing.T) {
		c := cloud(t, nil)
		never := create(t, c, newSpec())
		require.ErrorIs(t, c.Park(t.Context(), never, nstance.ParkStopped), nstance.Invalid)
		off := create(t, c, parked(nstance.ParkStopped, "guest-shutdown"))
		becomes(t, c, off.ID, nstance.StatusStopped)
		require.ErrorIs(t, c.Park(t.Context(), off, nstance.ParkHibernated), nstance.Invalid)
		require.ErrorIs(t, c.Park(t.Context(), off, nstance.ParkStopped), nstance.Conflict)
		require.ErrorIs(t, c.Wake(t.Context(), off), nstance.Conflict)
		off.ProviderID = never.ProviderID
		require.ErrorIs(t, c.Park(t.Context(), off, nstance.ParkStopped), nstance.Conflict)
	})
}

// TestParkThroughEndpoint: machines of a cloud that another process serves are parked and woken
// too. Their consoles are not read.
func TestParkThroughEndpoint(t *testing.T) {
	c := cloud(t, nil)
	path := filepath.Join(t.TempDir(), "socket")
	l, err := local.Listen(t.Context(), path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- local.Serve(ctx, l, c) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	p, end, err := qemu.Kind().Open(t.Context(), provider.Settings{Options: json.RawMessage(`{"endpoint": ` + strconv.Quote(path) + `}`)})
	require.NoError(t, err)
	defer func() { require.NoError(t, end()) }()
	abilities := provider.AbilitiesOf(p)
	require.Nil(t, abilities.Console)
	for _, mode := range qemu.Kind().Park {
		s := newSpec()
		s.Park, s.Market = mode, nstance.OnDemand
		m, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		becomes(t, c, m.ID, nstance.StatusRunning)
		require.NoError(t, abilities.Parking.Park(t.Context(), m, mode))
		becomes(t, c, m.ID, nstance.StatusStopped)
		require.NoError(t, abilities.Parking.Wake(t.Context(), m))
		becomes(t, c, m.ID, nstance.StatusRunning)
	}
}

// requireNoMemory requires that no folder of a machine holds its memory, which is as large as
// that, and is older than the disk of a machine that runs on.
func requireNoMemory(t *testing.T, dir string) {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(dir, "nstance-qemu-*", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	found, err := filepath.Glob(filepath.Join(dir, "nstance-qemu-*", "*", "memory"))
	require.NoError(t, err)
	require.Empty(t, found)
}

func TestOptions(t *testing.T) {
	for field, change := range map[string]func(*qemu.Options){
		"options.kernel":             func(o *qemu.Options) { o.Kernel, o.Initrd = "", "" },
		"options.initrd":             func(o *qemu.Options) { o.Initrd = "/no/such/file" },
		"options.images.debian":      func(o *qemu.Options) { o.Images = map[string]string{"debian": "/no/such/file"} },
		"options.protocol":           func(o *qemu.Options) { o.Protocol = "azure" },
		"options.accel":              func(o *qemu.Options) { o.Accel = "hvf" },
		"options.program":            func(o *qemu.Options) { o.Program = "no-such-program" },
		"options.relay":              func(o *qemu.Options) { o.Relay = []string{"no-such-program"} },
		"options.grace":              func(o *qemu.Options) { o.Grace = -1 },
		"options.max_machines":       func(o *qemu.Options) { o.MaxMachines = -1 },
		"options.types.small.memory": func(o *qemu.Options) { o.Types = map[string]qemu.Type{"small": {Memory: 1}} },
		"options.types.small.cpus":   func(o *qemu.Options) { o.Types = map[string]qemu.Type{"small": {CPUs: 1000}} },
		"options.dir":                func(o *qemu.Options) { o.Dir = "/no/such/folder" },
		"options.endpoint":           func(o *qemu.Options) { o.Endpoint = "/run/x.sock" },
	} {
		t.Run(field, func(t *testing.T) {
			if _, err := exec.LookPath("qemu-img"); err != nil && strings.Contains(field, "images") {
				field = "options.images" // the missing program is reported first
			}
			o := options(t.TempDir())
			change(o)
			_, err := qemu.New(o, nil)
			e, ok := errors.AsType[*nstance.Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, field, e.Field)
			require.NotEmpty(t, e.Remedy)
		})
	}
}

func TestKind(t *testing.T) {
	kind := qemu.Kind()
	settings := provider.Settings{Options: json.RawMessage(`{"kernel": "/no/such/file", "types": {"small": {"memory": 64}}, "images": {"debian": "/x"}}`)}
	require.NoError(t, kind.Check(settings), "files are not looked for offline")
	require.ErrorIs(t, kind.Check(provider.Settings{Zone: "b"}), nstance.Invalid)
	require.ErrorContains(t, kind.Check(provider.Settings{Options: json.RawMessage(`{"kernle": ""}`)}), `did you mean "kernel"`)
	_, _, err := kind.Open(t.Context(), settings)
	require.ErrorIs(t, err, nstance.Invalid)
	for field, change := range map[string]func(*nstance.MachineSpec){
		"arch":             func(s *nstance.MachineSpec) { s.Arch = nstance.ARM64 },
		"image":            func(s *nstance.MachineSpec) { s.Image = "debain" },
		"instance_type":    func(s *nstance.MachineSpec) { s.InstanceType = "smal" },
		"subnet_pool":      func(s *nstance.MachineSpec) { s.Subnet = "a" },
		"market.max_price": func(s *nstance.MachineSpec) { s.MaxPrice = "1" },
		"args.append":      func(s *nstance.MachineSpec) { s.Image, s.Args = "debian", json.RawMessage(`{"append": "x"}`) },
		"userdata":         func(s *nstance.MachineSpec) { s.UserData = make([]byte, 1<<20+1) },
	} {
		t.Run(field, func(t *testing.T) {
			s := newSpec()
			require.NoError(t, kind.CheckSpec(settings, s))
			change(&s)
			err := kind.CheckSpec(settings, s)
			e, ok := errors.AsType[*nstance.Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, field, e.Field)
		})
	}
	t.Run("of a cloud that another process serves", func(t *testing.T) {
		served := provider.Settings{Options: json.RawMessage(`{"endpoint": "` + filepath.Join(t.TempDir(), "s") + `"}`)}
		require.NoError(t, kind.CheckSpec(served, newSpec()))
		p, end, err := kind.Open(t.Context(), served)
		require.NoError(t, err)
		_, err = p.Get(t.Context(), newSpec().ID)
		require.ErrorIs(t, err, nstance.Unavailable)
		require.NoError(t, end())
	})
}

// lines collects the output of machines.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestConsole(t *testing.T) {
	var copied lines
	c := cloud(t, func(o *qemu.Options) { o.Console = &copied })
	m := create(t, c, newSpec())
	prints(t, c, m, "a guest boots")
	require.Eventually(t, func() bool { return copied.String() == "a guest boots\n" }, soon, time.Millisecond)
}

// A hangingWriter takes nothing until it is released.
type hangingWriter struct{ began, release chan struct{} }

func (w hangingWriter) Write(b []byte) (int, error) {
	select {
	case w.began <- struct{}{}:
	default:
	}
	<-w.release
	return len(b), nil
}

// TestConsoleThatHangs: what takes no copy of what machines print keeps no call waiting.
func TestConsoleThatHangs(t *testing.T) {
	hanging := hangingWriter{make(chan struct{}, 1), make(chan struct{})}
	defer close(hanging.release)
	c := cloud(t, func(o *qemu.Options) { o.Console = hanging })
	m := create(t, c, newSpec())
	<-hanging.began
	prints(t, c, m, "a guest boots")
	becomes(t, c, m.ID, nstance.StatusRunning)
	require.NoError(t, c.Delete(t.Context(), m))
	becomes(t, c, m.ID, "gone")
	require.NoError(t, c.Close())
}

// TestStartFailures: the messages of the test's QEMU cover every row of the table, one
// row each.
func TestStartFailures(t *testing.T) {
	used := map[string]int{}
	for _, message := range refusals {
		for _, text := range qemu.StartFailures() {
			if strings.Contains(strings.ToLower(message), text) {
				used[text]++
			}
		}
	}
	for _, text := range qemu.StartFailures() {
		require.Equal(t, 1, used[text], text)
	}
	require.Len(t, refusals, len(used)+1, "one message is not in the table")
	require.Equal(t, nstance.LossHost, qemu.StartCause(fmt.Errorf("no greeting: %w", context.DeadlineExceeded)), "QEMU that does not greet")
}
