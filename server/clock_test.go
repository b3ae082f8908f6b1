package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// A datedStore is a store that reports the time.
type datedStore struct {
	storage.Store
	now func() time.Time
}

// Date implements storage.Dated.
func (d datedStore) Date() (storage.Reading, bool) {
	return storage.Reading{Local: time.Now(), Remote: d.now().UTC().Truncate(time.Second), Within: time.Second}, true
}

func TestWrongClockIsShown(t *testing.T) {
	t.Parallel()
	p := newSlowClock(time.Hour)
	for name, c := range map[string]struct {
		store storage.Store
		now   func() time.Time
		then  func(*world)
		want  string
	}{
		"by storage's": {datedStore{storage.NewMemory(), time.Now}, p.now, func(*world) {}, "behind storage's"},
		"by its step": {storage.NewMemory(), p.now, func(w *world) {
			p.advance(time.Minute)
			w.applyConfig(replaceOnce(t, defaultConfig(1), `"red"`, `"green"`)) // planning checks the clock; otherwise it is checked every 5 s
		}, "was set 1m0s forward"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{webSize: 1, store: c.store, opts: server.Options{Now: c.now}})
			w.connectReady(w.awaitMachine(nstance.DefaultTenant))
			c.then(w)
			said := w.awaitEvent(eventtype.ClockWrong, "")
			require.Contains(t, said.Reason, c.want)

			api := w.admin()
			hold := w.awaitHold(api, "web", plan.HoldClock)
			require.Contains(t, hold.GetReason(), c.want)
			require.WithinDuration(t, said.Time, hold.GetSince().AsTime(), time.Second)
			shard, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
			require.NoError(t, err)
			require.Len(t, shard.GetHolds(), 1)
			require.Equal(t, hold.GetSince().AsTime(), shard.GetHolds()[0].GetSince().AsTime())
			require.Len(t, shard.GetProblems(), 1)
			for _, step := range []keyring.Step{keyring.StepBegin, keyring.StepActivate, keyring.StepFinish} {
				_, err = api.RotateKey(t.Context(), &apiv1.RotateKeyRequest{Name: keyring.Workload, Step: string(step)})
				require.ErrorContains(t, err, "clock cannot be trusted")
			}
			s := w.status()
			require.Len(t, s.Groups[1].Holds, 1)
			require.Equal(t, string(plan.HoldClock), s.Groups[1].Holds[0].Kind)
			require.Equal(t, hold.GetReason(), s.Groups[1].Holds[0].Reason)
			require.Contains(t, w.attentionOfKind(string(plan.HoldClock)).Why, c.want)
			require.Contains(t, w.scrapeMetrics(), `nstance_group_held{group="web",kind="clock",tenant="default"} 1`)
		})
	}
}
