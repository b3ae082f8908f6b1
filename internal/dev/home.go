package dev

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/nstance-go/nstance"
)

// A home is the directory that everything is kept in.
type home struct {
	dir       string
	temporary bool
	lock      *os.File
	machines  *os.File // what machines print
}

// openHome opens dir, or makes a temporary one in temp. No other process can open it until
// it is closed, or its process has ended.
func openHome(dir, temp string) (*home, error) {
	h := &home{dir: dir, temporary: dir == ""}
	err := h.open(temp)
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *home) open(temp string) (err error) {
	if h.temporary {
		h.dir, err = os.MkdirTemp(temp, "nstance-dev-")
	} else if h.dir, err = filepath.Abs(h.dir); err == nil {
		err = os.MkdirAll(h.dir, 0o700)
	}
	if err == nil {
		err = os.MkdirAll(h.machinesDir(), 0o700)
	}
	if err == nil {
		h.lock, err = os.OpenFile(filepath.Join(h.dir, "dev.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	}
	if err == nil {
		h.machines, err = os.OpenFile(h.machineLog(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	}
	if err != nil {
		code := nstance.Denied
		if errors.Is(err, syscall.ENOTDIR) {
			code = nstance.Invalid
		}
		return &nstance.Error{
			Code: code, Field: "data", Msg: err.Error(), Err: err,
			Remedy: "name a directory that you may write to, or none for a temporary one",
		}
	}
	if !lock(h.lock) {
		return &nstance.Error{
			Code: nstance.Conflict, Field: "data", Msg: h.dir + " is in use by another run of single-machine mode",
			Remedy: "stop it, or name another directory",
		}
	}
	return nil
}

func (h *home) storageDir() string  { return filepath.Join(h.dir, "storage") }
func (h *home) identityDir() string { return filepath.Join(h.dir, "admin") }
func (h *home) machinesDir() string { return filepath.Join(h.dir, "machines") }
func (h *home) machineLog() string  { return filepath.Join(h.dir, "machines.log") }
func (h *home) serverLog() string   { return filepath.Join(h.dir, "servers.log") }
func (h *home) configFile() string  { return filepath.Join(h.dir, "dev.jsonc") }
func (h *home) socket() string      { return filepath.Join(h.machinesDir(), "cloud.sock") }

// pid returns the process of a machine, which has left word of it.
func (h *home) pid(id nstance.InstanceID) (int, error) {
	files, err := h.left(string(id), pidFile)
	if err != nil || len(files) != 1 {
		return 0, nstance.Errorf(nstance.NotFound, "machine %s has left no word of its process", id)
	}
	return readPID(files[0])
}

// machine returns the process of a machine and where it logs; "": it has left no
// word of them.
func (h *home) machine(id nstance.InstanceID) string {
	pid, err := h.pid(id)
	logs, lerr := h.left(string(id), logFile)
	if err != nil || lerr != nil || len(logs) != 1 {
		return ""
	}
	return "process " + strconv.Itoa(pid) + ", log " + logs[0]
}

func readPID(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, nstance.Errorf(nstance.Internal, "process of a machine: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0, nstance.Errorf(nstance.Internal, "process of a machine: %s: %.64q is no process", file, text)
	}
	return pid, nil
}

// running returns the processes of all machines that have left word of theirs.
func (h *home) running() (map[nstance.InstanceID]int, error) {
	files, err := h.left("*", pidFile)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "%w", err)
	}
	out := map[nstance.InstanceID]int{}
	for _, file := range files {
		pid, err := readPID(file)
		if err != nil {
			return nil, err
		}
		if alive(pid) {
			out[nstance.InstanceID(filepath.Base(filepath.Dir(file)))] = pid
		}
	}
	return out, nil
}

// left returns the files of that name which machines have left in their folders;
// id is one machine, or * for every one.
func (h *home) left(id, name string) ([]string, error) {
	return filepath.Glob(filepath.Join(h.machinesDir(), "*", id, name))
}

// drains returns how often a machine has begun to be emptied.
func (h *home) drains(id nstance.InstanceID) int {
	files, err := h.left(string(id), drainFile)
	if err != nil || len(files) != 1 {
		return 0
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return 0 // the machine is just being removed
	}
	return bytes.Count(text, []byte("\n"))
}

// close lets go of the directory, and removes it if it is temporary.
func (h *home) close() error {
	if h.lock != nil {
		unlock(h.lock)
	}
	for _, f := range []*os.File{h.lock, h.machines} {
		if f != nil {
			_ = f.Close() // nothing of worth is buffered
		}
	}
	if h.temporary && h.dir != "" {
		return os.RemoveAll(h.dir)
	}
	return nil
}

// ports is how many ports are tried from the one asked for.
const ports = 100

// free returns addr, or the same with the next free port.
func free(ctx context.Context, addr string) (string, error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", nstance.FieldError("http", "write host:port", "%v", err)
	}
	first, err := net.LookupPort("tcp", text)
	if err != nil {
		return "", nstance.FieldError("http", "write host:port", "%v", err)
	}
	if first == 0 {
		return addr, nil // the system chooses
	}
	for port := first; port < first+ports && port <= 65535; port++ {
		candidate := net.JoinHostPort(host, strconv.Itoa(port))
		l, lerr := (&net.ListenConfig{}).Listen(ctx, "tcp", candidate)
		if lerr == nil {
			return candidate, l.Close()
		}
		err = lerr
	}
	return "", nstance.FieldError("http", "name another port", "no port from %d on is free: %v", first, err)
}
