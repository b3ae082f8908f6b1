package draintest_test

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/drain/draintest"
	"github.com/nstance-go/nstance/internal/conformance"
)

// flawed is a coordinator with one defect.
type flawed struct {
	*drain.Coordinator
	defect string
}

func (f flawed) Start(ctx context.Context, d nstance.Drain) error {
	switch f.defect {
	case "announces again":
		_ = f.Coordinator.Cancel(ctx, d.Instance, d.Generation)
		d.Generation++
	case "keeps the deadline":
		if d.Deadline.Before(time.Date(2130, 1, 1, 0, 0, 0, 0, time.UTC)) {
			return nil
		}
	case "keeps the executor":
		d.Executor = nstance.ExecutorOperator
	case "accepts older", "restarts":
		_ = f.Coordinator.Start(ctx, d)
		return nil
	}
	return f.Coordinator.Start(ctx, d)
}

func (f flawed) Acknowledge(ctx context.Context, a nstance.Ack) error {
	d, ok := f.Of(a.Instance)
	switch {
	case f.defect == "acknowledges nothing" && !ok:
		return nil
	case f.defect == "anyone acknowledges" && ok:
		a.By = d.Executor
	case f.defect == "any generation acknowledges" && ok:
		a.Generation = d.Generation
	}
	return f.Coordinator.Acknowledge(ctx, a)
}

func (f flawed) Cancel(ctx context.Context, id nstance.InstanceID, generation uint64) error {
	switch f.defect {
	case "never cancels":
		return nil
	case "cancels newer":
		generation = 1000
	}
	return f.Coordinator.Cancel(ctx, id, generation)
}

func (f flawed) End(ctx context.Context, id nstance.InstanceID) error {
	if f.defect == "never ends" {
		return nil
	}
	return f.Coordinator.End(ctx, id)
}

func (f flawed) Watch(ctx context.Context, tenant nstance.TenantID, after nstance.Seq) iter.Seq2[nstance.DrainEvent, error] {
	switch f.defect {
	case "starts anew":
		after = 0
	case "shows every tenant":
		tenant = ""
	case "ignores its context":
		ctx = context.WithoutCancel(ctx)
	}
	return func(yield func(nstance.DrainEvent, error) bool) {
		for e, err := range f.Coordinator.Watch(ctx, tenant, after) {
			if f.defect == "shows nothing" || f.defect == "no snapshot" && e.Type == nstance.DrainSnapshot {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

func (f flawed) HasExecutor(tenant nstance.TenantID) bool {
	return f.defect != "no executors" && f.Coordinator.HasExecutor(tenant)
}

func (f flawed) NotifyExecutors(observe func(nstance.TenantID)) (stop func()) {
	if f.defect == "announces no executors" {
		return func() {}
	}
	stop = f.Coordinator.NotifyExecutors(observe)
	if f.defect == "tells after stop" {
		return func() {}
	}
	return stop
}

// defects are what breaks one promise each, and the subtest that must find it.
var defects = map[string]string{
	"announces again": "the_same_generation_again_publishes_nothing", "keeps the deadline": "an_earlier_deadline_tightens,_a_later_one_is_ignored",
	"keeps the executor": "another_executor_replaces_the_one_announced", "accepts older": "an_older_generation_is_a_conflict",
	"any generation acknowledges": "a_newer_generation_replaces_the_drain", "acknowledges nothing": "what_is_not_draining_cannot_be_acknowledged",
	"anyone acknowledges": "only_the_executor_of_this_generation_acknowledges", "never cancels": "a_drain_that_was_withdrawn_is_over",
	"cancels newer": "a_drain_that_was_withdrawn_is_over", "restarts": "a_drain_that_has_ended_cannot_be_started_again",
	"never ends": "a_drain_that_has_ended_cannot_be_started_again", "no snapshot": "a_watch_begins_with_what_is_under_way",
	"starts anew": "a_watch_resumes_after_a_number", "shows every tenant": "a_watch_shows_one_tenant,_or_all",
	"ignores its context": "a_watch_ends_with_its_context", "no executors": "executors_come_and_go",
	"announces no executors": "executors_come_and_go", "tells after stop": "executors_come_and_go",
}

// TestSuite runs the suite on the coordinator in memory, with the defect of this process.
func TestSuite(t *testing.T) {
	limit := 10 * time.Second
	if conformance.Defect() != "" { // it fails anyway: no need to wait
		limit = 300 * time.Millisecond
	}
	draintest.RunWithin(t, func(*testing.T) draintest.Subject {
		c := drain.New(nil)
		return draintest.Subject{Coordinator: flawed{c, conformance.Defect()}, AddExecutor: c.AddExecutor}
	}, limit)
}

func TestSuiteFindsDefects(t *testing.T) {
	for name, subtest := range defects {
		t.Run(name, func(t *testing.T) {
			if name == "announces again" { // the smoke test finds it too
				subtest = "smoke"
			}
			conformance.RequireFailure(t, "TestSuite", "/^(smoke|"+subtest+")$", name, "--- FAIL: TestSuite/"+subtest)
		})
	}
	conformance.RequireSmokeFailure(t, "TestSuite", "shows nothing", "a watch of drains yields nothing")
}

// The test of a coordinator is this long.
func ExampleRun() {
	_ = func(t *testing.T) {
		draintest.Run(t, func(*testing.T) draintest.Subject {
			c := drain.New(nil)
			return draintest.Subject{Coordinator: c, AddExecutor: c.AddExecutor}
		})
	}
	fmt.Println("see the names of its subtests with go test -v")
	// Output: see the names of its subtests with go test -v
}
