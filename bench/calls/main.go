// Command calls counts the calls to object storage during an instance's life:
// the intent, the registration over mutual TLS, the drain where there is one, the
// mark and the deletion. A whole server leads the shard. Calls are counted by the key
// of the record, below all layers that could save or add any.
//
//	go run ./bench/calls [-machines 50] [-json calls.json]
package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/bench/internal/figures"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/storage"
)

func main() {
	machines := flag.Int("machines", 50, "instances of each kind of life")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	err := run(ctx, *machines, *out)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "calls:", err)
		os.Exit(1)
	}
}

// A result is the largest number of calls that any instance of a kind made.
type result struct {
	Case      string `json:"case"`
	Instances int    `json:"instances"`
	calls
	Target calls `json:"target"` // T10
	OK     bool  `json:"ok"`
}

// A report is written as JSON.
type report struct {
	Bench   string   `json:"bench"`
	Target  string   `json:"target"`
	Go      string   `json:"go"`
	CPUs    int      `json:"cpus"`
	Results []result `json:"results"`
	Ledger  int      `json:"ledger_puts"` // for all of them
}

func run(ctx context.Context, n int, out string) (err error) {
	store := &countingStore{Store: storage.NewMemory(), of: map[nstance.InstanceID]*calls{}}
	r, err := rig.Start(ctx, rig.Options{Machines: 2 * n, Store: store})
	if err != nil {
		return err
	}
	defer func() {
		if serr := r.Stop(); err == nil {
			err = serr
		}
	}()
	for i, spec := range r.Specs {
		if _, err := r.Register(ctx, i, spec); err != nil {
			return err
		}
	}
	o, err := newOperator(ctx, r)
	if err != nil {
		return err
	}
	defer o.close()
	rep := report{Bench: "calls", Target: "T10", Go: runtime.Version(), CPUs: runtime.GOMAXPROCS(0)}
	for i, c := range []struct {
		name    string
		noDrain bool
		target  calls
	}{{"deleted", true, calls{Puts: 3, Deletes: 1}}, {"drained, then deleted", false, calls{Puts: 4, Deletes: 1}}} {
		res := result{Case: c.name, Instances: n, Target: c.target}
		for _, spec := range r.Specs[i*n : (i+1)*n] {
			if err := o.deleteInstance(ctx, spec.ID, c.noDrain); err != nil {
				return err
			}
			res.calls = res.max(store.calls(spec.ID))
		}
		res.OK = res.max(c.target) == c.target
		rep.Results = append(rep.Results, res)
	}
	rep.Ledger = store.ledgerPuts()
	return rep.print(out)
}

func (r report) print(file string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "life\tinstances\tputs\tdeletes\tgets\ttarget\tok\t")
	for _, c := range r.Results {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d, %d, %d\t%t\t\n", c.Case, c.Instances, c.Puts, c.Deletes, c.Gets, c.Target.Puts, c.Target.Deletes, c.Target.Gets, c.OK)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("batches of the ledger, for all of them: %d\n", r.Ledger)
	return figures.Save(file, r)
}

// An operator deletes instances and is the executor of its tenant's drains.
type operator struct {
	api   apiv1.OperatorServiceClient
	watch apiv1.OperatorService_WatchInstanceEventsClient
	close func()
}

func newOperator(ctx context.Context, r *rig.Rig) (*operator, error) {
	cert, err := registerOperator(ctx, r)
	if err != nil {
		return nil, err
	}
	conn, err := r.Dial(r.Server.Addresses().Operator, 0, cert)
	if err != nil {
		return nil, err
	}
	o := &operator{api: apiv1.NewOperatorServiceClient(conn), close: func() { _ = conn.Close() }}
	if o.watch, err = o.api.WatchInstanceEvents(ctx, &apiv1.WatchInstanceEventsRequest{DrainExecutor: true}); err == nil {
		err = o.await(func(m *apiv1.WatchInstanceEventsResponse) bool { return m.GetSynced() != nil })
	}
	if err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

func registerOperator(ctx context.Context, r *rig.Rig) (*tls.Certificate, error) {
	nonce, err := r.Keys.Nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleOperator, Subject: string(rig.Cluster), Cluster: rig.Cluster, Shard: rig.Zone, Tenant: nstance.DefaultTenant,
		JTI: rand.Text(), NotBefore: time.Now().Add(-time.Minute), Expiry: time.Now().Add(time.Hour),
	})
	if err != nil {
		return nil, err
	}
	key := pki.NewKey()
	csr, err := pki.NewCSR(key, "bench")
	if err != nil {
		return nil, err
	}
	conn, err := r.Dial(r.Server.Addresses().Registration, 0, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterOperator(ctx, &apiv1.RegisterOperatorRequest{Nonce: nonce, Csr: csr})
	if err != nil {
		return nil, wire.ErrorOf(err)
	}
	return &tls.Certificate{Certificate: wire.CredentialOf(resp.GetCredential()).Chain, PrivateKey: key}, nil
}

// await reads until a message is accepted by is.
func (o *operator) await(is func(*apiv1.WatchInstanceEventsResponse) bool) error {
	for {
		m, err := o.watch.Recv()
		if err != nil || is(m) {
			return err
		}
	}
}

// deleteInstance drains, unless noDrain, and deletes an instance and returns when its
// record is deleted.
func (o *operator) deleteInstance(ctx context.Context, id nstance.InstanceID, noDrain bool) error {
	if _, err := o.api.DeleteInstance(ctx, &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: noDrain}); err != nil {
		return wire.ErrorOf(err)
	}
	var failed error
	err := o.await(func(m *apiv1.WatchInstanceEventsResponse) bool {
		e := m.GetEvent()
		if e.GetInstance() != string(id) {
			return false
		}
		if e.GetType() == string(nstance.EventDrainStarted) {
			_, failed = o.api.AcknowledgeDrained(ctx, &apiv1.AcknowledgeDrainedRequest{
				Id: string(id), Generation: e.GetDrain().GetGeneration(), Outcome: string(nstance.OutcomeDrained),
			})
		}
		return failed != nil || e.GetType() == string(nstance.EventDeleted)
	})
	if failed != nil {
		return wire.ErrorOf(failed)
	}
	return err
}
