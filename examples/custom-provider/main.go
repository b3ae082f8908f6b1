// Command custom-provider is what it takes to bring one's own cloud: rack.go
// implements nstance.Provider for machines that are files in a folder,
// rack_test.go holds it to the contract in a few lines, and this file uses it
// the way a server does, behind a provider.Client.
//
//	go run ./custom-provider
//	go test ./custom-provider
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

func main() {
	dir, err := os.MkdirTemp("", "nstance-rack-")
	if err == nil {
		err = run(context.Background(), dir, os.Stdout)
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "custom-provider:", err)
		os.Exit(1)
	}
}

// us marks everything that this program makes.
var us = nstance.Owner{Installation: "example", Cluster: "demo", Shard: "a", Tenant: nstance.DefaultTenant}

// run plays the life of a few machines on a rack in dir and tells about it.
func run(ctx context.Context, dir string, w io.Writer) error {
	rack, err := OpenRack(dir)
	if err != nil {
		return err
	}
	codes := map[string][]string{} // of the provider's answers, by operation
	client, err := provider.New(rack, &provider.Options{
		Observe: func(op string, code nstance.Code, _ time.Duration) {
			codes[op] = append(codes[op], cmp.Or(string(code), "ok"))
		},
	})
	if err != nil {
		return err
	}
	machines, err := launch(ctx, client, w)
	if err != nil {
		return err
	}
	if err := mistakes(ctx, client, machines[0], w); err != nil {
		return err
	}
	if err := retire(ctx, client, machines[0], w); err != nil {
		return err
	}
	for _, op := range slices.Sorted(maps.Keys(codes)) {
		fmt.Fprintf(w, "%s: %s\n", op, strings.Join(codes[op], ", "))
	}
	return nil
}

// launch makes three machines, each twice, as a server would after a crash.
func launch(ctx context.Context, p nstance.Provider, w io.Writer) ([]nstance.Machine, error) {
	var machines []nstance.Machine
	for unit := 1; unit <= 3; unit++ {
		spec, err := newSpec(unit)
		if err != nil {
			return nil, err
		}
		m, err := p.Create(ctx, spec)
		if err != nil {
			return nil, err
		}
		again, err := p.Create(ctx, spec)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(w, "unit %d: %s; asked again, the same machine: %t\n", unit, m.Status, again.ProviderID == m.ProviderID)
		machines = append(machines, m)
	}
	return machines, nil
}

// mistakes shows what is refused.
func mistakes(ctx context.Context, p nstance.Provider, m nstance.Machine, w io.Writer) error {
	spec, err := newSpec(4)
	if err != nil {
		return err
	}
	spec.Args = json.RawMessage(`{"unti": 4}`)
	_, err = p.Create(ctx, spec)
	fmt.Fprintln(w, "a misspelt argument:", errors.Unwrap(err))
	m.Owner.Tenant = "other"
	err = p.Delete(ctx, m)
	fmt.Fprintln(w, "another tenant deletes unit 1:", nstance.CodeOf(err))
	return nil
}

// retire deletes m and counts what is left.
func retire(ctx context.Context, p nstance.Provider, m nstance.Machine, w io.Writer) error {
	var err error
	for err == nil { // accepted is not gone: only NotFound is
		err = p.Delete(ctx, m)
	}
	if !errors.Is(err, nstance.NotFound) {
		return err
	}
	left := 0
	for _, err := range p.List(ctx, us) {
		if err != nil {
			return err
		}
		left++
	}
	fmt.Fprintf(w, "unit 1 is gone, %d machines are left\n", left)
	return nil
}

// newSpec returns the spec of a machine for a unit of the rack.
func newSpec(unit int) (nstance.MachineSpec, error) {
	now := time.Now()
	id, err := nstance.NewInstanceID("rck", now)
	if err != nil {
		return nstance.MachineSpec{}, err
	}
	return nstance.MachineSpec{
		ID: id, Owner: us, Group: "web", CreatedAt: now.UTC(), Epoch: 1,
		Args:     json.RawMessage(fmt.Sprintf(`{"unit": %d}`, unit)),
		UserData: []byte("#cloud-config\n"),
		Token:    string(id),
	}, nil
}
