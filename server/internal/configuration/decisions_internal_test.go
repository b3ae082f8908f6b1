package configuration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/reconcile"
)

// A recorder is groups that record what they are asked for.
type recorder struct {
	*server
	calls    []string
	applyErr error
}

// record has what a server asks of its groups recorded.
func (s *server) record() *recorder {
	r := &recorder{server: s}
	s.Groups = r
	s.Changed = func() { r.calls = append(r.calls, "changed to size "+string(rune('0'+s.size()))) }
	return r
}

func (r *recorder) LookUpTypes(context.Context, *config.Config) {
	r.calls = append(r.calls, "look up types")
}

func (r *recorder) Impact(c *config.Config) (reconcile.Impact, error) {
	r.calls = append(r.calls, "impact")
	return r.server.Impact(c)
}

func (r *recorder) Apply(context.Context) error {
	r.calls = append(r.calls, "apply")
	return r.applyErr
}

func (r *recorder) ApplySoon()      { r.calls = append(r.calls, "apply soon") }
func (r *recorder) RefreshLookups() { r.calls = append(r.calls, "refresh lookups") }

// next returns what was asked for since the last time.
func (r *recorder) next() []string {
	calls := r.calls
	r.calls = nil
	return calls
}

// TestOrder: the types that a configuration names are known before its impact is asked for and
// before it is in force; groups are told after it is.
func TestOrder(t *testing.T) {
	s := started(t, newStore(), textOf(4))
	r := s.record()
	_, err := s.refresh(textOf(3))
	require.NoError(t, err)
	require.Equal(t, []string{"look up types", "impact", "changed to size 3", "apply", "refresh lookups"}, r.next())

	r.applyErr = nstance.Unavailable
	_, err = s.refresh(textOf(4))
	require.NoError(t, err, "it is in force")
	require.Equal(t, []string{"look up types", "impact", "changed to size 4", "apply", "apply soon", "refresh lookups"}, r.next())
	r.applyErr = nil

	s.impact.Removed = 3
	_, err = s.refresh(textOf(1))
	require.ErrorIs(t, err, nstance.Conflict)
	require.Equal(t, []string{"look up types", "impact"}, r.next(), "nothing is looked up again after an error")
	require.NoError(t, s.Confirm(t.Context(), s.Status().HeldDigest, "test", true))
	require.Empty(t, r.next())
	require.NoError(t, s.Confirm(t.Context(), s.Status().HeldDigest, "test", false))
	require.Equal(t, []string{"look up types", "changed to size 1", "apply"}, r.next())

	_, err = s.refresh(textOf(1))
	require.NoError(t, err)
	require.Equal(t, []string{"refresh lookups"}, r.next(), "it is in force already")
}

// requireAt fails unless all instants are one.
func requireAt(t *testing.T, want time.Time, all ...time.Time) {
	t.Helper()
	for i, at := range all {
		require.True(t, want.Equal(at), "%d: %s, not %s", i, at, want)
	}
}

// TestWhen: each decision has its time, its reason and its name, and events say them.
func TestWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := started(t, newStore(), textOf(4))
		requireAt(t, began, s.Status().AcceptedAt)
		sleep.For(t.Context(), time.Minute)
		_, err := s.refresh(textOf(3))
		require.NoError(t, err)
		requireAt(t, began.Add(time.Minute), s.Status().AcceptedAt)
		name, digest, data := s.Document()
		require.Equal(t, []string{"shard.jsonc", s.Status().Digest, textOf(3)}, []string{name, digest, string(data)})
		require.Equal(t, digest+" of shard.jsonc: test", s.journalled(eventtype.ConfigAccepted)[1])

		sleep.For(t.Context(), time.Minute)
		s.impact = reconcile.Impact{Members: 5, Removed: 3}
		_, err = s.refresh(textOf(1))
		held := s.Status()
		require.ErrorContains(t, err, held.HeldReason)
		requireAt(t, began.Add(2*time.Minute), held.HeldAt, s.Attention()[0].Since)
		require.Equal(t, held.HeldDigest+" of shard.jsonc: "+held.HeldReason+": test", s.journalled(eventtype.ConfigHeld)[0])
		require.Contains(t, s.journalled(nstance.EventAlarm)[0], held.HeldDigest)
		sleep.For(t.Context(), time.Minute)
		next := started(t, s.store, textOf(9)).Status() // the next leader knows
		requireAt(t, began.Add(time.Minute), next.AcceptedAt)
		requireAt(t, began.Add(2*time.Minute), next.HeldAt)
		require.Equal(t, held.HeldReason, next.HeldReason)

		require.NoError(t, s.Confirm(t.Context(), held.HeldDigest, "test", false))
		requireAt(t, began.Add(3*time.Minute), s.Status().AcceptedAt)
		s.impact = reconcile.Impact{}

		sleep.For(t.Context(), time.Minute)
		_, err = s.refresh("{")
		require.Error(t, err)
		require.Equal(t, err, s.Status().Refusal)
		requireAt(t, began.Add(4*time.Minute), s.Status().RefusedAt, s.Attention()[0].Since)
		for _, e := range s.events {
			require.False(t, e.Time.IsZero(), e.Type)
		}
	})
}

// TestRefusedAgain: a configuration that is refused, corrected, and put back is refused in the
// journal twice; one that storage could not decide about is in none.
func TestRefusedAgain(t *testing.T) {
	s := started(t, newStore(), textOf(4))
	for range 2 {
		_, err := s.refresh("{")
		require.Error(t, err)
		_, err = s.refresh(textOf(4))
		require.NoError(t, err)
	}
	require.Len(t, s.journalled(eventtype.ConfigRefused), 2)
	s.impact.Removed = 3
	for range 2 {
		_, err := s.refresh("{")
		require.Error(t, err)
		_, err = s.refresh(textOf(1))
		require.ErrorIs(t, err, nstance.Conflict)
	}
	require.Len(t, s.journalled(eventtype.ConfigRefused), 4, "a held one is not refused")
	require.Equal(t, []string{AttentionHeld}, s.kinds())
	s.impact = reconcile.Impact{}
	for _, code := range []nstance.Code{nstance.Unavailable, nstance.Throttled, nstance.Ambiguous} {
		s.publishRefusal(nstance.Errorf(code, "not now"), "test")
	}
	require.Len(t, s.journalled(eventtype.ConfigRefused), 4)
}

// TestEachIdentity: a shard of another name, or another kind of provider, is another shard.
func TestEachIdentity(t *testing.T) {
	for field, change := range map[string][2]string{
		"cluster.id": {`"c1"`, `"c2"`}, "shard.provider.kind": {`"sim"`, `"sim2"`},
	} {
		store := newStore()
		started(t, store, textOf(4))
		_, err := start(t, store, strings.Replace(textOf(4), change[0], change[1], 1))
		require.ErrorIs(t, err, nstance.Invalid, field)
		require.ErrorContains(t, err, field)
	}
	store := newStore()
	s := started(t, store, textOf(4))
	obj, err := store.Get(t.Context(), layout.AcceptedKey("s1"))
	require.NoError(t, err)
	_, err = store.PutIfAbsent(t.Context(), layout.AcceptedKey("s2"), obj.Data) // a copied shard
	require.NoError(t, err)
	_, err = start(t, store, strings.Replace(textOf(4), `"s1"`, `"s2"`, 1))
	require.ErrorIs(t, err, nstance.Invalid)
	require.ErrorContains(t, err, "shard.id")

	// What another cluster's server writes after the next leader has read is not put in force.
	opts := s.TermOptions
	opts.Epoch = 2
	s.Term, err = s.Begin(t.Context(), opts)
	require.NoError(t, err)
	other, err := config.Parse("x", []byte(strings.Replace(textOf(1), `"c1"`, `"c2"`, 1)))
	require.NoError(t, err)
	_, err = records.NewDoc[accepted](store, layout.AcceptedKey("s1"), &records.DocOptions{Epoch: 1}).Update(t.Context(), func(a *accepted) error {
		a.document = document{Name: "x", Digest: other.Digest(), Data: []byte(strings.Replace(textOf(1), `"c1"`, `"c2"`, 1))}
		return nil
	})
	require.NoError(t, err)
	require.ErrorIs(t, s.settle(t.Context()), nstance.Invalid)
	require.Equal(t, 4, s.size())
}

// TestAbilities: what the provider cannot do is refused however it is proposed, also when it
// was held by a server that could.
func TestAbilities(t *testing.T) {
	s := started(t, newStore(), textOf(4))
	s.impact = reconcile.Impact{Members: 5, Removed: 3}
	_, err := s.refresh(textOf(1))
	require.ErrorIs(t, err, nstance.Conflict)
	digest, unable := s.Status().HeldDigest, nstance.Errorf(nstance.Invalid, "the provider has no spot market")
	s.CheckAbilities = func(*config.Config) error { return unable }
	for name, ask := range map[string]func() error{
		"confirm":      func() error { return s.Confirm(t.Context(), digest, "test", false) },
		"dry run":      func() error { return s.Confirm(t.Context(), digest, "test", true) },
		"a refresh":    func() error { _, err := s.refresh(textOf(3)); return err },
		"the source":   func() error { return s.CheckSource(t.Context()) },
		"a proposal":   func() error { _, err := s.Parse(t.Context(), []byte(textOf(3))); return err },
		"at the start": func() error { _, err := Open(t.Context(), s.Options); return err },
	} {
		require.ErrorIs(t, ask(), unable, name)
	}
	require.Equal(t, 4, s.size())
	require.Equal(t, digest, s.Status().HeldDigest)
}

// TestParse: a proposal is parsed as a refresh would read it, and changes nothing; without one
// it is the source's.
func TestParse(t *testing.T) {
	s := started(t, newStore(), textOf(4))
	conf, err := s.Parse(t.Context(), []byte(textOf(3)))
	require.NoError(t, err)
	require.Equal(t, 3, conf.Groups()[0].Size)
	_, err = s.Parse(t.Context(), []byte("{"))
	require.ErrorContains(t, err, "proposed configuration")
	_, err = s.Parse(t.Context(), []byte(strings.Replace(textOf(3), `"c1"`, `"c2"`, 1)))
	require.ErrorContains(t, err, "cluster.id")

	conf, err = s.Parse(t.Context(), nil)
	require.NoError(t, err)
	require.Same(t, s.InForce(), conf)
	s.set(textOf(2), nil)
	conf, err = s.Parse(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 2, conf.Groups()[0].Size)
	s.set("{", nil)
	_, err = s.Parse(t.Context(), nil)
	require.ErrorContains(t, err, "shard.jsonc")
	s.set("", nstance.Denied)
	_, err = s.Parse(t.Context(), nil)
	require.ErrorIs(t, err, nstance.Denied)
	require.Equal(t, 4, s.size())
	require.Nil(t, s.Status().Refusal)
}

// TestCheckSource: a standby shows why what is at its source would be refused, until it is not.
func TestCheckSource(t *testing.T) {
	s := started(t, newStore(), textOf(4))
	s.set("{", nil)
	require.Error(t, s.CheckSource(t.Context()))
	require.Equal(t, []string{AttentionRefused}, s.kinds())
	s.set(textOf(2), nil)
	require.NoError(t, s.CheckSource(t.Context()))
	require.Empty(t, s.kinds())
	require.Equal(t, 4, s.size(), "it changes nothing")
}

// TestNoImpactNoDecision: what a configuration would change is known before it is in force.
func TestNoImpactNoDecision(t *testing.T) {
	s := started(t, newStore(), textOf(4))
	unknown := errors.New("no machine type small")
	s.Groups = noImpact{s, unknown}
	_, err := s.refresh(textOf(3))
	require.ErrorIs(t, err, unknown)
	require.Equal(t, 4, s.size())
	require.Empty(t, s.Status().HeldDigest)
}

type noImpact struct {
	*server
	err error
}

func (n noImpact) Impact(*config.Config) (reconcile.Impact, error) { return reconcile.Impact{}, n.err }

// TestUnreadableIsNotAskedForAgain: a server whose accepted configuration is damaged does not
// ask for it in a loop.
func TestUnreadableIsNotAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		_, err := store.PutIfAbsent(t.Context(), layout.AcceptedKey("s1"), []byte("{"))
		require.NoError(t, err)
		s := started(t, store, textOf(4))
		require.Equal(t, []string{AttentionNotDurable}, s.kinds())
		store.Reset()
		ctx, stop := context.WithCancel(t.Context())
		go s.Run(ctx)
		sleep.For(t.Context(), time.Hour)
		stop()
		synctest.Wait()
		require.Zero(t, store.Count(""))
		require.Equal(t, 4, s.size())
	})
}
