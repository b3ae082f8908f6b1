package dev_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/reconcile/plan"
)

func TestStory(t *testing.T) {
	ready := nstance.Event{Type: nstance.EventReady}
	t.Run("every event is printed once, in order", func(t *testing.T) {
		for _, forget := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				s := dev.NewStory(forget)
				ctx, cancel := context.WithCancel(t.Context())
				var seen []string
				done := make(chan error, 1)
				go func() {
					done <- dev.Print(s, ctx, func(e nstance.Event) error { seen = append(seen, e.Reason); return nil })
				}()
				var want []string
				for i := range 10 {
					want = append(want, fmt.Sprint(i))
					dev.Tell(s, nstance.Event{Type: nstance.EventAlarm, Reason: want[i]})
					if i%3 == 0 {
						synctest.Wait()
					}
				}
				cancel()
				require.NoError(t, <-done)
				require.Equal(t, want, seen)
			})
		}
	})
	t.Run("await sees what was told before and what comes after", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := dev.NewStory(false)
			dev.Tell(s, ready)
			go dev.Tell(s, ready)
			require.NoError(t, dev.Await(s, t.Context(), func(h dev.History) (bool, error) { return len(h) == 2, nil }))
		})
	})
	t.Run("await ends with its context's cause", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("why")
		cancel(why)
		require.ErrorIs(t, dev.Await(dev.NewStory(false), ctx, func(dev.History) (bool, error) { return false, nil }), why)
	})
	t.Run("what was lost is not taken for what did not happen", func(t *testing.T) {
		s := dev.NewStory(false)
		for range dev.MaxEvents + 1 {
			dev.Tell(s, ready)
		}
		err := dev.Await(s, t.Context(), func(h dev.History) (bool, error) { return true, nil })
		require.ErrorIs(t, err, nstance.Internal)
		require.ErrorContains(t, err, "1 events were lost")
	})
}

// rolling is a rollout of a group of two, as it should be.
func rolling() dev.History {
	return dev.History{
		{Type: nstance.EventCreateRequested, Instance: "a", Reason: string(plan.ReasonSize)},
		{Type: nstance.EventCreateRequested, Instance: "b", Reason: string(plan.ReasonSize)},
		{Type: nstance.EventReady, Instance: "a"},
		{Type: nstance.EventReady, Instance: "b"},
		{Type: nstance.EventGroupReady},
		{Type: nstance.EventCreateRequested, Instance: "c", Reason: string(plan.ReasonRollout)},
		{Type: nstance.EventReady, Instance: "c"},
		{Type: nstance.EventDrainStarted, Instance: "a"},
		{Type: nstance.EventCreateRequested, Instance: "d", Reason: string(plan.ReasonRollout)},
		{Type: nstance.EventReady, Instance: "d"},
		{Type: nstance.EventDrainStarted, Instance: "b"},
	}
}

func TestOrderly(t *testing.T) {
	require.NoError(t, dev.Orderly(rolling(), 2))
	t.Run("drained before the replacement was ready", func(t *testing.T) {
		h := rolling()
		h[6], h[7] = h[7], h[6]
		require.ErrorContains(t, dev.Orderly(h, 2), "only 1 of 2")
	})
	t.Run("two at the same time", func(t *testing.T) {
		h := rolling()
		h[6], h[8] = h[8], h[6]
		require.ErrorContains(t, dev.Orderly(h, 2), "2 replacements")
	})
}

func TestConfiguration(t *testing.T) {
	text, err := dev.Configuration(dev.Options{Scenario: dev.Mass, Count: 7, DrainHook: []string{"/bin/a hook", "{{.Nonce}}"}}, "127.0.0.1:1", 3)
	require.NoError(t, err)
	conf, err := config.Parse("dev.jsonc", text)
	require.NoError(t, err)
	g := conf.Groups()[0]
	require.Equal(t, 7, g.Size)
	require.Equal(t, nstance.Spot, g.Definition.Market.Type)
	require.Contains(t, g.Definition.UserData.Content, `"NSTANCE_DEV_RELEASE": "3"`)
	require.JSONEq(t, `["/bin/a hook", "{{.Nonce}}"]`, g.Definition.Vars["drain_hook"])
}

func TestQuote(t *testing.T) {
	require.Equal(t, "/tmp/a-b_c.d", dev.Quote("/tmp/a-b_c.d"))
	require.Equal(t, `'/tmp/it'\''s here'`, dev.Quote("/tmp/it's here"))
}
