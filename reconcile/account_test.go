package reconcile_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// An account is a cloud that names itself, unless err is set.
type account struct {
	nstance.Provider
	name  string
	err   error
	asked atomic.Int32
}

func (a *account) Account(context.Context) (string, error) {
	a.asked.Add(1)
	return a.name, a.err
}

func withAccount(t *testing.T, test func(w *world, a *account)) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		a := &account{Provider: w.cloud, name: "one"}
		w.wrap = func(o *leaderEnv) { o.provider = a }
		test(w, a)
	})
}

// TestUnknownAccount: while the account cannot be read, nothing is created and the
// reason is shown.
func TestUnknownAccount(t *testing.T) {
	withAccount(t, func(w *world, a *account) {
		a.err = nstance.Errorf(nstance.Denied, "no credentials")
		w.startLeader(webGroup(2))
		w.advance(time.Hour)
		require.Empty(w.t, w.cloud.Machines())
		require.Contains(w.t, w.attentionFor("loading")[0].Why, "no credentials")
		w.stopLeader()
		require.NoError(w.t, w.runError)

		a.err = nil
		w.startLeader(webGroup(2))
		w.advance(5 * time.Minute)
		w.requireMembers(2)
	})
}

// TestUnknownAccountIsLoggedOnce: the provider is asked ever less often meanwhile.
func TestUnknownAccountIsLoggedOnce(t *testing.T) {
	withAccount(t, func(w *world, a *account) {
		var text bytes.Buffer
		w.wrap = func(o *leaderEnv) {
			o.provider = a
			o.options = func(opts *reconcile.Options) { opts.Log = slog.New(slog.NewTextHandler(&text, nil)) }
		}
		a.err = nstance.Errorf(nstance.Denied, "no credentials")
		w.startLeader(webGroup(2))
		w.advance(time.Hour)
		require.LessOrEqual(w.t, a.asked.Load(), int32(3600/10+5))
		w.stopLeader()
		require.Equal(w.t, 1, strings.Count(text.String(), "account of the provider not known yet"))
	})
}

// TestAccountGrows: a shard with machines may get further places, in any order, and may lose
// none.
func TestAccountGrows(t *testing.T) {
	withAccount(t, func(w *world, a *account) {
		lead := func(name string, size int) {
			a.name = name
			w.startLeader(webGroup(size))
			w.advance(5 * time.Minute)
		}
		for i, name := range []string{"b", "b,c", "a,b,c"} {
			lead(name, i+1)
			w.requireMembers(i + 1)
			w.stopLeader()
			require.NoError(w.t, w.runError)
		}
		for _, name := range []string{"b", "a,b", "a,b,cc", "d"} {
			lead(name, 5)
			w.stopLeader()
			require.ErrorContains(w.t, w.runError, "are in account a,b,c")
			require.Len(w.t, w.cloud.Machines(), 3)
		}
	})
}

// TestEmptyShardChangesAccount: a shard without machines may move to another account.
func TestEmptyShardChangesAccount(t *testing.T) {
	withAccount(t, func(w *world, a *account) {
		w.startLeader(webGroup(1))
		w.advance(5 * time.Minute)
		w.requireMembers(1)
		w.stopLeader()
		a.name = "two"
		w.startLeader(webGroup(0))
		w.advance(time.Minute)
		w.stopLeader()
		require.ErrorIs(w.t, w.runError, nstance.Invalid)

		a.name = "one"
		w.startLeader(webGroup(0))
		w.advance(30 * time.Minute)
		w.requireMembers(0)
		w.stopLeader()
		a.name = "two"
		w.startLeader(webGroup(1))
		w.advance(5 * time.Minute)
		w.requireMembers(1)
		w.stopLeader()
		a.name = "one"
		w.startLeader(webGroup(1))
		w.advance(time.Minute)
		w.stopLeader()
		require.ErrorContains(w.t, w.runError, "are in account two")
	})
}
