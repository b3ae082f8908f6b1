package dev

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/nstance-go/nstance"
)

// A home is the directory that everything is kept in.
type home struct {
	dir       string
	temporary bool
	lock      *os.File
	machines  *os.File // what machines print
}

// openHome opens dir, or makes a temporary one. Nobody else can open it until
// it is closed, or its process has ended.
func openHome(dir string) (*home, error) {
	h := &home{dir: dir, temporary: dir == ""}
	err := h.open()
	if err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *home) open() (err error) {
	if h.temporary {
		h.dir, err = os.MkdirTemp("", "nstance-dev-")
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
		return &nstance.Error{
			Code: nstance.Denied, Field: "data", Msg: err.Error(), Err: err,
			Remedy: "name a directory that you may write to, or none for a temporary one",
		}
	}
	if !lock(h.lock) {
		return &nstance.Error{
			Code: nstance.Conflict, Field: "data", Msg: h.dir + " is in use by another nstance-server dev",
			Remedy: "stop it, or name another directory",
		}
	}
	return nil
}

func (h *home) storageDir() string  { return filepath.Join(h.dir, "storage") }
func (h *home) cacheFile() string   { return filepath.Join(h.dir, "journal.db") }
func (h *home) identityDir() string { return filepath.Join(h.dir, "admin") }
func (h *home) machinesDir() string { return filepath.Join(h.dir, "machines") }
func (h *home) machineLog() string  { return filepath.Join(h.dir, "machines.log") }

// pid returns the process of a machine, which has left word of it.
func (h *home) pid(id nstance.InstanceID) (int, error) {
	files, err := filepath.Glob(filepath.Join(h.machinesDir(), "*", string(id), pidFile))
	if err != nil || len(files) != 1 {
		return 0, nstance.Errorf(nstance.NotFound, "machine %s has left no word of its process", id)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return 0, nstance.Errorf(nstance.Internal, "process of machine %s: %w", id, err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil || pid <= 1 {
		return 0, nstance.Errorf(nstance.Internal, "process of machine %s: %.64q is no process", id, text)
	}
	return pid, nil
}

// close lets go of the directory, and removes it if it is temporary.
func (h *home) close() error {
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

// free returns addr, or the same with the next port that nobody listens on.
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
