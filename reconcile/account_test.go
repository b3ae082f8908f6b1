package reconcile_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// An account is a cloud that names itself, unless err is set.
type account struct {
	nstance.Provider
	name string
	err  error
}

func (a *account) Account(context.Context) (string, error) { return a.name, a.err }

func inAccounts(t *testing.T, test func(w *world, a *account)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		a := &account{Provider: w.cloud, name: "one"}
		w.wrap = func(o *office) { o.provider = a }
		test(w, a)
	})
}

// TestUnknownAccount: while the account cannot be read, nothing is done, and that
// is shown.
func TestUnknownAccount(t *testing.T) {
	inAccounts(t, func(w *world, a *account) {
		a.err = nstance.Errorf(nstance.Denied, "no credentials")
		w.lead(wanted(2))
		w.passes(time.Hour)
		require.Empty(w.t, w.cloud.Machines())
		require.Contains(w.t, w.attention(reconcile.AttentionLoading)[0].Why, "no credentials")
		w.depose()
		require.NoError(w.t, w.ended)

		a.err = nil
		w.lead(wanted(2))
		w.passes(5 * time.Minute)
		w.agrees(2)
	})
}

// TestEmptyShardChangesAccount: what has no machines loses none.
func TestEmptyShardChangesAccount(t *testing.T) {
	inAccounts(t, func(w *world, a *account) {
		w.lead(wanted(1))
		w.passes(5 * time.Minute)
		w.agrees(1)
		w.depose()
		a.name = "two"
		w.lead(wanted(0))
		w.passes(time.Minute)
		w.depose()
		require.ErrorIs(w.t, w.ended, nstance.Invalid)

		a.name = "one"
		w.lead(wanted(0))
		w.passes(30 * time.Minute)
		w.agrees(0)
		w.depose()
		a.name = "two"
		w.lead(wanted(1))
		w.passes(5 * time.Minute)
		w.agrees(1)
		w.depose()
		a.name = "one"
		w.lead(wanted(1))
		w.passes(time.Minute)
		w.depose()
		require.ErrorContains(w.t, w.ended, "are in account two")
	})
}
