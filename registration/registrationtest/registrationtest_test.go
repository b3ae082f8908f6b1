package registrationtest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/registration/registrationtest"
)

// flawed is an implementation with one defect.
type flawed struct {
	*registration.Memory
	defect string
	met    chan struct{} // where two callers meet
}

func (f flawed) RefreshRegistration(ctx context.Context, id nstance.InstanceID) (registration.Registration, error) {
	if ctx.Err() != nil && f.defect == "an outage is an absence" {
		return registration.Registration{}, nstance.NotFound
	}
	return f.Memory.RefreshRegistration(ctx, id)
}

func (f flawed) UpdateRegistration(ctx context.Context, id nstance.InstanceID, fn func(*registration.Registration) error) (registration.Registration, error) {
	switch f.defect {
	case "writes nothing":
		r, err := f.Registration(ctx, id)
		if err == nil {
			err = fn(&r)
		}
		return r, err
	case "forgets the pending key":
		return f.Memory.UpdateRegistration(ctx, id, func(r *registration.Registration) error { err := fn(r); r.Pending = nil; return err })
	case "writes what was refused":
		var refused error
		r, err := f.Memory.UpdateRegistration(ctx, id, func(r *registration.Registration) error { refused = fn(r); return nil })
		if err == nil {
			err = refused
		}
		return r, err
	case "makes instances":
		if _, err := f.Registration(ctx, id); err != nil {
			f.Put(registration.Registration{ID: id})
		}
	case "reads, then writes":
		r, err := f.Registration(ctx, id)
		if err == nil {
			err = fn(&r)
		}
		if err == nil {
			select { // another has read it too
			case f.met <- struct{}{}:
			case <-f.met:
			case <-time.After(100 * time.Millisecond):
			}
			f.Put(r)
		}
		return r, err
	}
	return f.Memory.UpdateRegistration(ctx, id, fn)
}

func (f flawed) ConsumeNonce(ctx context.Context, jti string, r registration.OperatorRegistration) (registration.OperatorRegistration, error) {
	switch f.defect {
	case "consumes again":
		return f.Memory.ConsumeNonce(ctx, jti+r.Name, r)
	case "undoes a revocation":
		got, err := f.Memory.ConsumeNonce(ctx, jti, r)
		if err == nil {
			_, err = f.UpdateOperator(ctx, got.Tenant, got.Name, func(o *registration.OperatorRegistration) error { *o = got; return nil })
		}
		return got, err
	}
	return f.Memory.ConsumeNonce(ctx, jti, r)
}

func (f flawed) Operator(ctx context.Context, tenant nstance.TenantID, name string) (registration.OperatorRegistration, error) {
	switch f.defect {
	case "mixes tenants":
		tenant = "acme"
	case "empty operator":
		r, _ := f.Memory.Operator(ctx, tenant, name)
		return r, nil
	}
	return f.Memory.Operator(ctx, tenant, name)
}

// defects are what breaks one promise each, and the subtest that must find it.
var defects = map[string]string{
	"forgets the pending key": "a_change_is_there_for_every_reader", "writes what was refused": "an_error_of_the_change_is_returned,_and_nothing_is_written",
	"makes instances": "an_instance_that_does_not_exist_is_NotFound", "reads, then writes": "no_change_of_many_at_the_same_time_is_lost",
	"consumes again": "a_nonce_is_consumed_once,_for_ever", "mixes tenants": "an_operator_belongs_to_its_tenant",
	"undoes a revocation": "a_change_of_an_operator_is_there_for_every_reader", "empty operator": "an_operator_that_does_not_exist_is_NotFound",
	"an outage is an absence": "a_call_whose_context_has_ended_is_no_absence",
}

const one, other = nstance.InstanceID("web06h1hqt7bhzs7crtrwwaneajb4"), nstance.InstanceID("web06h1hqt7bhtrh0ytzt9mn4pzy8")

func newMemory() *registration.Memory {
	m := registration.NewMemory()
	for _, id := range []nstance.InstanceID{one, other} {
		m.Put(registration.Registration{ID: id, Kind: "web", Tenant: "default", Group: "web"})
	}
	return m
}

// TestSuite runs the suite on the records in memory, with the defect of this process.
func TestSuite(t *testing.T) {
	limit := 10 * time.Second
	if conformance.Defect() != "" { // it fails anyway: no need to wait
		limit = time.Second
	}
	registrationtest.RunWithin(t, func(*testing.T) registrationtest.Subject {
		return registrationtest.Subject{Records: flawed{newMemory(), conformance.Defect(), make(chan struct{})}, Instances: [2]nstance.InstanceID{one, other}}
	}, limit)
}

func TestSuiteFindsDefects(t *testing.T) {
	for name, subtest := range defects {
		t.Run(name, func(t *testing.T) {
			conformance.RequireFailure(t, "TestSuite", "/^(smoke|"+subtest+")$", name, "--- FAIL: TestSuite/"+subtest)
		})
	}
	conformance.RequireSmokeFailure(t, "TestSuite", "writes nothing", "the changed registration was due")
}

// The test of an implementation is this long.
func ExampleRun() {
	_ = func(t *testing.T) {
		registrationtest.Run(t, func(*testing.T) registrationtest.Subject {
			return registrationtest.Subject{Records: newMemory(), Instances: [2]nstance.InstanceID{one, other}}
		})
	}
	fmt.Println("see the names of its subtests with go test -v")
	// Output: see the names of its subtests with go test -v
}
