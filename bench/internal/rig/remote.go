package rig

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"syscall"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
)

// serveVar is set in the environment of a process that serves: its orders as JSON.
const serveVar = "NSTANCE_BENCH_SERVE"

// Orders say what a process of its own serves.
type Orders struct {
	Machines int    `json:"machines"`          // of a whole server; 0: no server
	Bare     bool   `json:"bare"`              // the bare servers too
	Operator bool   `json:"operator"`          // with an operator, and one that is revoked
	Profile  string `json:"profile,omitempty"` // file for a profile of the processor; empty: none
	Heap     string `json:"heap,omitempty"`    // file for a profile of the memory, at the end; empty: none
}

// An opening is the first line of a process that serves.
type opening struct {
	Registration, Agent string
	Operators           string
	Operator, Revoked   credential
	Bare                Addresses
	Certificates, Key   []byte // PEM
	Specs               []nstance.MachineSpec
}

// A credential is a client's certificate and its key, in PEM.
type credential struct{ Chain, Key []byte }

func credentialOf(cert *tls.Certificate) (c credential, err error) {
	key, ok := cert.PrivateKey.(ed25519.PrivateKey)
	if !ok {
		return c, errors.New("a key of another kind")
	}
	c.Chain = pki.MarshalCertificates(cert.Certificate...)
	c.Key, err = pki.MarshalKey(key)
	return c, err
}

func (c credential) certificate() (*tls.Certificate, error) {
	if len(c.Key) == 0 {
		return nil, nil
	}
	pair, err := tls.X509KeyPair(c.Chain, c.Key)
	return &pair, err
}

// A Remote is a server in another process, with the keys of its cluster.
type Remote struct {
	*Client
	Bare     Addresses
	Identity *keyring.Authority
	Specs    []nstance.MachineSpec // of the machines

	Operators         string           // address; with Orders.Operator
	Operator, Revoked *tls.Certificate // likewise

	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Launch runs this program again, for which Served must return true. Stop ends it.
func Launch(ctx context.Context, o Orders) (r *Remote, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	orders, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	r = &Remote{cmd: exec.CommandContext(ctx, self)}
	r.cmd.Env = append(os.Environ(), serveVar+"="+string(orders))
	r.cmd.Stderr = os.Stderr
	out, err := r.cmd.StdoutPipe()
	if err == nil {
		r.in, err = r.cmd.StdinPipe()
	}
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	r.out = bufio.NewReader(out)
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	return r, nil
}

func (r *Remote) open() error {
	var o opening
	if err := r.read(&o); err != nil {
		return fmt.Errorf("the server did not start: %w", err)
	}
	identity, err := keyring.LoadAuthority(o.Certificates, o.Key)
	if err != nil {
		return err
	}
	r.Identity, r.Bare, r.Specs = identity, o.Bare, o.Specs
	r.Client = &Client{Registration: o.Registration, Agent: o.Agent, Roots: identity.Pool()}
	r.Operators = o.Operators
	if r.Operator, err = o.Operator.certificate(); err != nil {
		return err
	}
	r.Revoked, err = o.Revoked.certificate()
	return err
}

func (r *Remote) read(v any) error {
	line, err := r.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}

// Stop ends the process.
func (r *Remote) Stop() error {
	_ = r.in.Close()
	return r.cmd.Wait()
}

// ProcessorTime returns what the process has used.
func (r *Remote) ProcessorTime() (time.Duration, error) { return ProcessorTime(r.cmd.Process.Pid) }

// Resident returns the resident memory of the process in bytes.
func (r *Remote) Resident() (int, error) { return ResidentBytes(r.cmd.Process.Pid) }

// A Memory is what a process has resident, in bytes.
type Memory struct {
	AsItIs  int `json:"-"`
	Settled int `json:"-"` // after a garbage collection that gives free memory back
	Heap    int // of Settled: objects
	Stacks  int // of Settled: stacks of goroutines
}

// Memory measures the process as it is, and then without garbage.
func (r *Remote) Memory() (m Memory, err error) {
	if m.AsItIs, err = ResidentBytes(r.cmd.Process.Pid); err != nil {
		return m, err
	}
	if _, err = r.in.Write([]byte("\n")); err == nil {
		err = r.read(&m)
	}
	if err == nil {
		m.Settled, err = ResidentBytes(r.cmd.Process.Pid)
	}
	return m, err
}

// Served serves what it is ordered to until its input ends, and returns true, where this
// process was started by Launch.
func Served() bool {
	orders := os.Getenv(serveVar)
	if orders == "" {
		return false
	}
	if err := serve(orders); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
	return true
}

func serve(text string) (err error) {
	var o Orders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	first, end, err := begin(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	answers := json.NewEncoder(os.Stdout)
	if err := answers.Encode(first); err != nil {
		return err
	}
	*first = opening{} // it would count as memory
	stopProfile, err := profile(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfile()) }()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		for range 4 { // each halves stacks that are too large
			runtime.GC()
		}
		debug.FreeOSMemory()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		if err := answers.Encode(Memory{Heap: int(stats.HeapAlloc), Stacks: int(stats.StackInuse)}); err != nil {
			return err
		}
	}
	return nil
}

// begin starts the servers.
func begin(ctx context.Context, o Orders) (first *opening, end func() error, err error) {
	first, end = &opening{}, func() error { return nil }
	identity, err := keyring.NewAuthority(keyring.Identity, time.Now())
	if err != nil {
		return nil, nil, err
	}
	if o.Machines > 0 {
		r, err := Start(ctx, Options{Machines: o.Machines})
		if err != nil {
			return nil, nil, err
		}
		identity, end = r.Keys.Identity, r.Stop
		first.Registration, first.Agent = r.Registration, r.Agent
		for _, s := range r.Specs {
			first.Specs = append(first.Specs, nstance.MachineSpec{ID: s.ID, UserData: s.UserData})
		}
		r.Specs = nil
		if o.Operator {
			if err := first.addOperators(ctx, r); err != nil {
				return nil, nil, errors.Join(err, end())
			}
		}
	}
	if o.Bare {
		b, err := startBare(ctx, identity)
		stopOthers := end
		end = func() error { b.stop(); return stopOthers() }
		if err != nil {
			return nil, nil, errors.Join(err, end())
		}
		first.Bare = b.Addresses
	}
	first.Certificates = identity.CertPEM()
	first.Key, err = identity.KeyPEM()
	return first, end, err
}

// addOperators registers two operators, and revokes one of them.
func (o *opening) addOperators(ctx context.Context, r *Rig) error {
	o.Operators = r.Server.Addresses().Operator
	for n, to := range []*credential{&o.Operator, &o.Revoked} {
		cert, err := r.RegisterOperator(ctx, n, nstance.RoleOperator, nstance.DefaultTenant)
		if err != nil {
			return err
		}
		if *to, err = credentialOf(cert); err != nil {
			return err
		}
		if to == &o.Revoked {
			if err := r.Revoke(ctx, cert); err != nil {
				return err
			}
		}
	}
	return nil
}

// profile begins the profiles.
func profile(o Orders) (stop func() error, err error) {
	var processor *os.File
	if o.Profile != "" {
		if processor, err = os.Create(o.Profile); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(processor); err != nil {
			return nil, err
		}
	}
	return func() error {
		if processor != nil {
			pprof.StopCPUProfile()
			if err := processor.Close(); err != nil {
				return err
			}
		}
		if o.Heap == "" {
			return nil
		}
		heap, err := os.Create(o.Heap)
		if err != nil {
			return err
		}
		runtime.GC()
		return errors.Join(pprof.Lookup("heap").WriteTo(heap, 0), heap.Close())
	}, nil
}

// Issue returns a certificate of an agent for the bare servers.
func (r *Remote) Issue(id nstance.InstanceID) (*tls.Certificate, error) {
	key := pki.NewKey()
	public, _ := key.Public().(ed25519.PublicKey)
	issued, err := r.Identity.Issue(keyring.Template{
		Subject: string(id), Tenant: nstance.DefaultTenant, Role: nstance.RoleAgent, Key: public, Lifetime: time.Hour, Now: time.Now(),
	})
	return &tls.Certificate{Certificate: [][]byte{issued.Certificate}, PrivateKey: key}, err
}

// NewID returns the ID of an agent that no server knows.
func NewID() (nstance.InstanceID, error) { return nstance.NewInstanceID("web", time.Now()) }
