package registration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

func TestExposed(t *testing.T) {
	var exposed []string
	watching := func() *registration.Options {
		exposed = nil
		return &registration.Options{Exposed: func(id nstance.Identity, _ string) { exposed = append(exposed, id.Subject) }}
	}
	t.Run("a superseded certificate exposes its holder", func(t *testing.T) {
		w := newWorld(t, watching())
		id, first := w.agent()
		w.pass(time.Hour)
		renewed := w.mustRenew(first, pki.NewKey())
		reg := w.store.truth[id]
		require.True(t, reg.Promote(renewed.Serial))
		w.store.truth[id], w.store.memory[id] = reg, reg
		_, err := w.reg.Verify(t.Context(), first)
		require.ErrorIs(t, err, nstance.Denied)
		require.Equal(t, []string{string(id)}, exposed)
		require.Equal(t, nstance.Denied, w.alarms[0].Code)
	})
	t.Run("a certificate newer than the record does not: storage was restored", func(t *testing.T) {
		w := newWorld(t, watching())
		id, first := w.agent()
		before := w.store.truth[id]
		w.pass(time.Hour)
		renewed := w.mustRenew(first, pki.NewKey())
		w.store.truth[id], w.store.memory[id] = before, before
		_, err := w.reg.Verify(t.Context(), renewed)
		require.ErrorIs(t, err, nstance.Denied)
		require.Empty(t, exposed)
		require.Contains(t, w.alarms[0].Reason, "newer than the record")
	})
	t.Run("a nonce does not, nor a certificate without proof", func(t *testing.T) {
		w := newWorld(t, watching())
		_, nonce := w.instance()
		w.mustRegister(nonce, pki.NewKey())
		_, err := w.register(nonce, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
		require.Empty(t, exposed)
	})
}
