package registration_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
)

// TestClaim: the keys belong to one cluster, at one place.
func TestClaim(t *testing.T) {
	refused := func(t *testing.T, err error, field string, words ...string) {
		t.Helper()
		require.ErrorIs(t, err, nstance.Invalid)
		e, ok := errors.AsType[*nstance.Error](err)
		require.True(t, ok)
		require.Equal(t, field, e.Field)
		require.NotEmpty(t, e.Remedy)
		for _, word := range words {
			require.ErrorContains(t, err, word)
		}
	}
	t.Run("the first server says both, durably, and later ones write nothing", func(t *testing.T) {
		w := newWorld(t, nil)
		require.Empty(t, w.ring.Cluster())
		require.NoError(t, w.ring.Check(cluster), "they belong to no cluster yet")
		require.NoError(t, w.ring.Claim(t.Context(), cluster, "s3://prod"))
		require.Equal(t, cluster, w.ring.Cluster())
		puts := w.vault.puts
		for _, location := range []string{"s3://prod", ""} {
			require.NoError(t, w.ring.Claim(t.Context(), cluster, location))
			require.NoError(t, w.other().Claim(t.Context(), cluster, location))
		}
		require.Equal(t, puts, w.vault.puts)
	})
	t.Run("another cluster is refused", func(t *testing.T) {
		w := newWorld(t, nil)
		require.NoError(t, w.ring.Claim(t.Context(), cluster, "s3://prod"))
		refused(t, w.other().Claim(t.Context(), "stage", "s3://prod"), "cluster.id", "of cluster prod", "not of stage")
		refused(t, w.ring.Check("stage"), "cluster.id")
		require.NoError(t, w.ring.Check(cluster))
	})
	t.Run("another place is refused: it is a copy", func(t *testing.T) {
		w := newWorld(t, nil)
		require.NoError(t, w.ring.Claim(t.Context(), cluster, "s3://prod"))
		refused(t, w.other().Claim(t.Context(), cluster, "s3://copy"), "storage", "it was s3://prod", "now s3://copy")
		require.NoError(t, w.other().Claim(t.Context(), cluster, "s3://prod"), "the original goes on")
	})
	t.Run("a place that was not known is said by the first server that knows it", func(t *testing.T) {
		w := newWorld(t, nil)
		require.NoError(t, w.ring.Claim(t.Context(), cluster, ""))
		require.Equal(t, cluster, w.vault.keys.Cluster)
		puts := w.vault.puts
		require.NoError(t, w.ring.Claim(t.Context(), cluster, ""))
		require.Equal(t, puts, w.vault.puts)
		require.NoError(t, w.ring.Claim(t.Context(), cluster, "s3://prod"))
		refused(t, w.other().Claim(t.Context(), cluster, "s3://copy"), "storage")
	})
	t.Run("of two clusters that claim them at the same time one is refused", func(t *testing.T) {
		w := newWorld(t, nil)
		late := w.other() // has read that they belong to no cluster
		require.NoError(t, w.ring.Claim(t.Context(), cluster, "s3://prod"))
		refused(t, late.Claim(t.Context(), "stage", "s3://stage"), "cluster.id", "of cluster prod")
		require.Equal(t, cluster, w.vault.keys.Cluster)
		require.Equal(t, "s3://prod", w.vault.keys.Location)
	})
	t.Run("what another process has said and is not usable yet is no permission", func(t *testing.T) {
		w := newWorld(t, nil)
		late := w.other()
		require.NoError(t, w.ring.Claim(t.Context(), cluster, "s3://prod"))
		w.mustStep(keyring.Workload, keyring.StepBegin)
		delete(w.vault.objects, "workload-ca.2.key")
		require.ErrorIs(t, late.Claim(t.Context(), "stage", ""), nstance.Invalid)
	})
	t.Run("a rotation keeps both", func(t *testing.T) {
		w := newWorld(t, nil)
		require.NoError(t, w.ring.Claim(t.Context(), cluster, "s3://prod"))
		w.mustStep(keyring.Workload, keyring.StepBegin)
		w.mustStep(keyring.Workload, keyring.StepAbort)
		require.Equal(t, cluster, w.vault.keys.Cluster)
		require.Equal(t, "s3://prod", w.vault.keys.Location)
	})
	t.Run("nothing is claimed without the write", func(t *testing.T) {
		w := newWorld(t, nil)
		w.vault.dieAt = w.vault.calls + 1
		require.ErrorIs(t, w.ring.Claim(t.Context(), cluster, "s3://prod"), nstance.Ambiguous)
		require.Empty(t, w.ring.Cluster())
		w.vault.dieAt = 0
		require.NoError(t, w.ring.Claim(t.Context(), cluster, "s3://prod"))
	})
}

// TestCallersWaitForOneAnother: calls of one process come one after the other, and the wait ends
// with the context.
func TestCallersWaitForOneAnother(t *testing.T) {
	w := newWorld(t, nil)
	began, proceed := make(chan struct{}), make(chan struct{})
	slow := &slowVault{vault: w.vault}
	ring, err := keyring.OpenKeyring(t.Context(), slow, w.clock)
	require.NoError(t, err)
	slow.before = func() { close(began); <-proceed }
	first := make(chan error, 1)
	go func() { _, err := ring.Refresh(t.Context()); first <- err }()
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func() error{
		"Refresh": func() error { _, err := ring.Refresh(ctx); return err },
		"Claim":   func() error { return ring.Claim(ctx, cluster, "") },
		"Rotate": func() error {
			_, err := ring.Rotate(ctx, keyring.Rotation{Set: keyring.Nonces, Step: keyring.StepBegin})
			return err
		},
	} {
		err := call()
		require.ErrorIs(t, err, nstance.Unavailable, name)
		require.ErrorIs(t, err, context.Canceled, name)
	}
	slow.before = func() {}
	close(proceed)
	require.NoError(t, <-first)
	for range 2 { // none has kept the others out
		_, err = ring.Refresh(t.Context())
		require.NoError(t, err)
		require.NoError(t, ring.Claim(t.Context(), cluster, ""))
		_, err = ring.Rotate(t.Context(), keyring.Rotation{Set: keyring.Nonces, Step: keyring.StepBegin})
		require.NoError(t, err)
	}
}

// A slowVault calls before in front of each read of the catalogue.
type slowVault struct {
	*vault
	before func()
}

func (s *slowVault) Catalogue(ctx context.Context) (keyring.Catalogue, error) {
	if s.before != nil {
		s.before()
	}
	return s.vault.Catalogue(ctx)
}

// TestCatalogueOutOfOrder: a catalogue that no rotation writes is refused, and changes no keys.
func TestCatalogueOutOfOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*keyring.KeySet)
		says   string
	}{
		"a phase that is unknown":       {func(s *keyring.KeySet) { s.Keys[1].Phase = "spare" }, `phase "spare" is unknown`},
		"no phase":                      {func(s *keyring.KeySet) { s.Keys[1].Phase = "" }, `phase "" is unknown`},
		"a generation before the first": {func(s *keyring.KeySet) { s.Keys[0].Generation = 0 }, "generation 0 is out of order"},
		"a generation after the last":   {func(s *keyring.KeySet) { s.Last = 1 }, "generation 2 is out of order"},
		"a generation twice":            {func(s *keyring.KeySet) { s.Keys[1] = s.Keys[0]; s.Keys[1].Phase = keyring.PhaseNext }, "generation 1 is out of order"},
		"the newest first":              {func(s *keyring.KeySet) { s.Keys[0], s.Keys[1] = s.Keys[1], s.Keys[0] }, "generation 1 is out of order"},
		"no current key":                {func(s *keyring.KeySet) { s.Keys[0].Phase = keyring.PhaseRetired }, "0 current keys"},
		"two current keys":              {func(s *keyring.KeySet) { s.Keys[1].Phase = keyring.PhaseCurrent }, "2 current keys"},
		"an ID of another key":          {func(s *keyring.KeySet) { s.Keys[1].ID = "00" }, "the catalogue says 00"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.mustStep(keyring.Identity, keyring.StepBegin)
			before := w.ring.Set(keyring.Identity)
			changed := before
			changed.Keys = slices.Clone(before.Keys)
			tc.change(&changed)
			sets := maps.Clone(w.vault.keys.Sets)
			sets[keyring.Identity] = changed
			w.vault.keys.Sets = sets
			_, err := w.ring.Refresh(t.Context())
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, tc.says)
			require.Equal(t, before, w.ring.Set(keyring.Identity))
			_, err = keyring.OpenKeyring(t.Context(), w.vault, w.clock)
			require.ErrorContains(t, err, tc.says)
		})
	}
}

// TestRootsOfAuthorities: the certificates of some of the keys that are trusted.
func TestRootsOfAuthorities(t *testing.T) {
	w := newWorld(t, nil)
	w.mustStep(keyring.Identity, keyring.StepBegin)
	a := w.keys.Identity
	ids := a.Issuers()
	require.Equal(t, string(a.CertPEM()), string(a.CertPEMOf([]string{ids[1], ids[0]})), "from the oldest to the newest")
	require.Equal(t, string(pki.MarshalCertificates(a.Certificates()[1])), string(a.CertPEMOf([]string{"gone", ids[1]})))
	require.Empty(t, a.CertPEMOf(nil))
}

// TestKeysAreReadOnce: after a step only the objects of the new key are read.
func TestKeysAreReadOnce(t *testing.T) {
	w := newWorld(t, nil)
	standby := w.other()
	changes := standby.Changes()
	w.mustStep(keyring.Identity, keyring.StepBegin)
	w.vault.calls = 0
	_, err := standby.Refresh(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, w.vault.calls, "the catalogue, a key and its certificate")
	require.Equal(t, changes+1, standby.Changes())
}
