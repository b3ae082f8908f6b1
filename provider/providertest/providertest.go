// Package providertest is the specification of [nstance.Provider] in runnable
// form: each promise of its comments is a named subtest. A provider's own test
// is a few lines that call [Run] with a factory. Where the comments and this
// suite differ, the suite is right.
//
// The first subtest, smoke, makes one machine, finds it, and deletes it. If it fails,
// no other one is run. Every call has a limit of [Subject.Wait]: one that does not
// return is a failure with its name. A run of a provider that does not answer ends
// after little more than twice that. What is not checked is skipped, with the reason.
//
// A provider is called concurrently, as package reconcile calls it.
package providertest

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider"
)

// A Subject is one cloud under test. The suite marks everything it makes with a
// random installation ID and deletes it again, so the cloud need not be empty
// and may be shared.
type Subject struct {
	// Provider is the provider under test.
	Provider nstance.Provider

	// Shape sets the fields of a spec that this cloud needs: Image, InstanceType,
	// Subnet, Arch, Args. Nil leaves them empty.
	Shape func(*nstance.MachineSpec)

	// Spot says that the provider offers spot capacity. If not, it must refuse
	// a spec that asks for it.
	Spot bool

	// UserData returns the user data that the machine itself reads. It waits for
	// it until ctx ends. Nil where the test cannot read inside a machine: then
	// that promise is not checked.
	UserData func(ctx context.Context, m nstance.Machine) ([]byte, error)

	// BadArgs are arguments that the provider must refuse, by the name of the
	// argument its error has to mention. {"no_such_argument": true} is always
	// tried; add wrong types of the ones it has. They are the whole args of a spec:
	// write those that are required too.
	BadArgs map[string]json.RawMessage

	// Address is one that can move, for providers that are an
	// nstance.AddressMover; the suite takes it. Empty: those promises are not
	// checked. Elsewhere is the view of another machine on the same cloud,
	// NoAddress an address that the cloud does not have; promises that need a
	// missing one are not checked.
	Address   string
	Elsewhere nstance.AddressMover
	NoAddress string

	// Inputs for the optional abilities; those without input are not checked. An
	// image query that an image matches; subnets that the cloud can count, the
	// first with a free address; instance types; one with a spot price; a load balancer that the suite
	// may use, and the ID of one that does not exist, in the cloud's format
	// ("no-such-balancer" if empty).
	Image      nstance.ImageQuery
	Subnets    []string
	Types      []string
	Priced     string
	Balancer   nstance.LoadBalancer
	NoBalancer string

	// Park are modes in which machines of Shape can be parked, for providers that are
	// an nstance.Parker. None: these promises are not checked.
	Park []nstance.ParkMode

	// Page is how many machines there are when a listing must cross a page. 30; less
	// where a machine costs much, more where a page is larger.
	Page int

	// Break makes every call to the cloud fail, as in an outage, until restore is
	// called. Nil: it is not checked that an outage is not read as absence.
	Break func() (restore func())

	// Again returns a second provider of the same cloud, as the next leader has: with one
	// the suite finds what a provider keeps in memory only. Nil: it is not checked.
	Again func() nstance.Provider

	// Wait bounds each call, and how long a cloud may take to show a new machine and
	// to remove a deleted one. 30 seconds; use minutes for real clouds.
	Wait time.Duration
}

const (
	defaultWait = 30 * time.Second
	defaultPage = 30
)

// Run checks every promise against subjects that newSubject makes, one for each
// subtest. Clean up with t.Cleanup.
func Run(t *testing.T, newSubject func(t *testing.T) Subject) {
	s := newSubject(t)
	require.NotNil(t, s.Provider, "Subject.Provider is nil: set it to the provider under test")
	if s.Wait == 0 {
		s.Wait = defaultWait
	}
	r := &suiteRun{T: t, Run: conformance.NewRun(s.Wait), newSubject: newSubject}
	if !r.Smoke(t, func(t *testing.T, c *conformance.Calls) { checkSmoke(newFixture(t, c, newSubject(t))) }) {
		return
	}
	for _, p := range promises {
		r.check(p.name, p.check)
	}
	r.checkMarket(s)
	r.checkArgs(s)
	r.checkAddress(s)
	r.checkAbilities(s)
	r.checkUserData(s)
	r.checkOutage(s)
	r.checkAgain(s)
}

// A suiteRun is one call of Run.
type suiteRun struct {
	*testing.T
	*conformance.Run
	newSubject func(t *testing.T) Subject
}

// check runs a subtest with a subject of its own.
func (r *suiteRun) check(name string, check func(*fixture)) {
	r.Test(r.T, name, func(t *testing.T, c *conformance.Calls) { check(newFixture(t, c, r.newSubject(t))) })
}

// skip shows what this run does not check, and why.
func (r *suiteRun) skip(name, reason string) {
	r.T.Run(name, func(t *testing.T) { t.Skip("not checked: " + reason) })
}

// A promise is one sentence of the contract.
type promise struct {
	name  string
	check func(*fixture)
}

var promises = []promise{
	{"create/returns the machine asked for, with all its marks", checkCreate},
	{"create/the same spec returns the same machine", checkCreateTwice},
	{"create/the same spec at the same time makes one machine", checkCreateTogether},
	{"create/different specs at the same time make different machines", checkCreateMany},
	{"create/other parameters under the same ID are a conflict", checkOtherParameters},
	{"create/another owner of the same ID is a conflict", checkOtherOwner},
	{"create/an ID that is none is refused", checkBadID},
	{"create/a limit of machines on one host is heeded or refused", checkHostLimit},
	{"get/shows the marks from the first moment", checkGetMarks},
	{"get/an unknown machine is not found", checkGetUnknown},
	{"get/two reads agree", checkGetTwice},
	{"list/shows the marks from the first moment", checkListMarks},
	{"list/yields each machine once", checkListOnce},
	{"list/shows nothing of another installation", checkListInstallation},
	{"list/shows nothing of another cluster or shard", checkListShard},
	{"list/filters by tenant, and without one yields every tenant", checkListTenant},
	{"list/of nothing is empty and no error", checkListEmpty},
	{"list/may be left early", checkListBreak},
	{"list/its loop may call the provider", checkListCalls},
	{"delete/repeated until not found, and the machine is gone", checkDelete},
	{"delete/leaves other machines alone", checkDeleteOther},
	{"delete/an unknown machine is not found", checkDeleteUnknown},
	{"delete/without a handle finds the machine by its ID", checkDeleteByID},
	{"delete/with another ID is a conflict and touches nothing", checkDeleteWrongID},
	{"delete/with another owner is a conflict and touches nothing", checkDeleteWrongOwner},
	{"delete/with another machine's handle is a conflict and touches neither", checkDeleteSwapped},
	{"context/one that has ended fails every call and is no answer", checkCancelled},
	{"context/one that ends during a listing fails it", checkCancelledList},
}

// A fixture is a subject with the test that uses it.
type fixture struct {
	*testing.T
	Subject
	calls *conformance.Calls
	can   provider.Abilities
	mover nstance.AddressMover // nil if the provider is none
	owner nstance.Owner
}

func newFixture(t *testing.T, c *conformance.Calls, s Subject) *fixture {
	s.Page = cmp.Or(s.Page, defaultPage)
	b := &fixture{T: t, Subject: s, calls: c, owner: nstance.Owner{
		Installation: strings.ToLower(rand.Text()), Cluster: "suite", Shard: "a", Tenant: "default",
	}}
	bounded := recorded{s.Provider, c}
	b.Provider, b.can = bounded, recordAbilities(bounded)
	if m, ok := s.Provider.(nstance.AddressMover); ok {
		b.mover = recordedMover{bounded, m, "this machine"}
	}
	if s.Elsewhere != nil {
		b.Elsewhere = recordedMover{bounded, s.Elsewhere, "the other machine"}
	}
	return b
}

// spec returns a fresh, valid spec of the fixture's owner.
func (b *fixture) spec() nstance.MachineSpec {
	b.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	id, err := nstance.NewInstanceID("tst", now)
	require.NoError(b, err)
	s := nstance.MachineSpec{
		ID: id, Owner: b.owner, Group: "web", CreatedAt: now, Epoch: 7, Arch: nstance.AMD64,
		UserData: []byte("#cloud-config\n"), Token: string(id) + "-0123456789",
	}
	if b.Shape != nil {
		b.Shape(&s)
	}
	return s
}

// create makes the machine of s, and deletes it after the test.
func (b *fixture) create(s nstance.MachineSpec) nstance.Machine {
	b.Helper()
	m, err := b.Provider.Create(b.Context(), s)
	require.NoError(b, err)
	b.Cleanup(func() { b.remove(m) })
	return m
}

// remove deletes m until it is not found, whether or not the test failed.
func (b *fixture) remove(m nstance.Machine) {
	if why := b.poll(context.WithoutCancel(b.Context()), func(ctx context.Context) (bool, error) {
		return nstance.CodeOf(b.Provider.Delete(ctx, m)) == nstance.NotFound, nil
	}); why != "" {
		b.Errorf("machine %s could not be deleted: %s", m.ID, why)
	}
}

// eventually waits until try is true. An error ends the test.
func (b *fixture) eventually(what string, try func(ctx context.Context) (bool, error)) {
	b.Helper()
	if why := b.poll(b.Context(), try); why != "" {
		require.FailNow(b, what, "%s", why)
	}
}

// poll calls try until it is true, fails, or the wait is over. It returns in words why
// it was in vain.
func (b *fixture) poll(ctx context.Context, try func(context.Context) (bool, error)) string {
	limit, began := b.calls.Run().Limit(), time.Now()
	for attempt := 1; ; attempt++ {
		if done, err := try(ctx); err != nil {
			return err.Error()
		} else if done {
			return ""
		}
		left := limit - time.Since(began)
		if left <= 0 {
			b.calls.Run().Waste(limit)
			return fmt.Sprintf("after %s: %s", limit, b.calls.Last())
		}
		sleep.For(ctx, min(left, sleep.Backoff(attempt, 2*time.Millisecond, time.Second)))
	}
}

// waitKnown waits until Get finds the machine, and returns it.
func (b *fixture) waitKnown(id nstance.InstanceID) (m nstance.Machine) {
	b.Helper()
	b.eventually("Get must find the machine "+string(id), func(ctx context.Context) (_ bool, err error) {
		m, err = b.Provider.Get(ctx, id)
		if nstance.CodeOf(err) == nstance.NotFound {
			return false, nil
		}
		return true, err
	})
	return m
}

// waitListed waits until List of owner yields at least n machines, and returns them.
func (b *fixture) waitListed(owner nstance.Owner, n int) (out []nstance.Machine) {
	b.Helper()
	b.eventually(fmt.Sprintf("List must show %d machines", n), func(ctx context.Context) (_ bool, err error) {
		out, err = collect(ctx, b.Provider, owner)
		return len(out) >= n, err
	})
	return out
}

func collect(ctx context.Context, p nstance.Provider, owner nstance.Owner) ([]nstance.Machine, error) {
	var out []nstance.Machine
	for m, err := range p.List(ctx, owner) {
		if err != nil {
			return out, err
		}
		out = append(out, m)
	}
	return out, nil
}

// requireMarks requires m to have the marks of s.
func (b *fixture) requireMarks(s nstance.MachineSpec, m nstance.Machine) {
	b.Helper()
	require.Equal(b, s.ID, m.ID, "instance ID")
	require.Equal(b, s.Owner, m.Owner, "owner")
	require.Equal(b, s.Group, m.Group, "group")
	require.Equal(b, s.Epoch, m.Epoch, "epoch")
	require.WithinDuration(b, s.CreatedAt, m.CreatedAt, time.Second, "creation time")
	require.NotEmpty(b, m.ProviderID, "provider ID")
	require.NotEmpty(b, m.Status, "status; use StatusUnknown where there is none")
}

// requireCode requires err to have the given code, classified by the provider.
func (b *fixture) requireCode(code nstance.Code, err error) {
	b.Helper()
	require.Error(b, err)
	require.True(b, classified(err), "the error has no code: %v", err)
	require.Equal(b, code, nstance.CodeOf(err), "code of: %v", err)
}
