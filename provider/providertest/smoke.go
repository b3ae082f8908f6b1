package providertest

import (
	"context"
	"slices"

	"github.com/nstance-go/nstance"
)

// checkSmoke makes one machine, finds it, and deletes it.
func checkSmoke(b *fixture) {
	s := b.spec()
	m, err := b.Provider.Create(b.Context(), s)
	b.smokeError(err)
	b.Cleanup(func() { // best effort: a failed smoke test has its own message
		_ = b.Provider.Delete(context.WithoutCancel(b.Context()), m)
	})
	if m.ID != s.ID {
		b.Fatalf("%s: its ID must be %s", b.calls.Last(), s.ID)
	}
	got := b.smokeGet(s.ID)
	if got.ProviderID != m.ProviderID { // Delete would look for another machine
		b.Fatalf("%s: its provider ID must be %q, as Create answered", b.calls.Last(), m.ProviderID)
	}
	b.smokeListed(s.ID)
	b.smokeDelete(m)
}

func (b *fixture) smokeError(err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: no error was due", b.calls.Last())
	}
}

// smokeWait waits until try is true. The failure is about the last call.
func (b *fixture) smokeWait(due string, try func(context.Context) (bool, error)) {
	b.Helper()
	if why := b.poll(b.Context(), try); why != "" {
		b.Fatalf("%s; %s was due", b.calls.Last(), due)
	}
}

func (b *fixture) smokeGet(id nstance.InstanceID) (m nstance.Machine) {
	b.Helper()
	b.smokeWait("the machine", func(ctx context.Context) (_ bool, err error) {
		if m, err = b.Provider.Get(ctx, id); nstance.CodeOf(err) == nstance.NotFound {
			return false, nil
		}
		return true, err
	})
	return m
}

func (b *fixture) smokeListed(id nstance.InstanceID) {
	b.Helper()
	b.smokeWait("a sequence with the machine "+string(id), func(ctx context.Context) (bool, error) {
		got, err := collect(ctx, b.Provider, b.owner)
		return slices.ContainsFunc(got, func(m nstance.Machine) bool { return m.ID == id }), err
	})
}

// smokeDelete deletes m until NotFound, which Get must then answer too.
func (b *fixture) smokeDelete(m nstance.Machine) {
	b.Helper()
	why := b.poll(b.Context(), func(ctx context.Context) (bool, error) {
		err := b.Provider.Delete(ctx, m)
		if nstance.CodeOf(err) == nstance.NotFound {
			return true, nil
		}
		return false, err
	})
	deleted := b.calls.Last()
	_, err := b.Provider.Get(b.Context(), m.ID)
	switch gone := nstance.CodeOf(err) == nstance.NotFound; {
	case why != "" && err == nil:
		b.Fatalf("%s, Get still finds it: %s", deleted, b.calls.Last())
	case why != "":
		b.Fatalf("%s; NotFound was due once the machine is gone; then %s", deleted, b.calls.Last())
	case !gone && err == nil:
		b.Fatalf("%s, Get still finds it: %s", deleted, b.calls.Last())
	case !gone:
		b.Fatalf("%s: NotFound was due, because %s", b.calls.Last(), deleted)
	}
}
