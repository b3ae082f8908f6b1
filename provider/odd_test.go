package provider_test

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// odd is a provider that shows one machine, whatever it is asked.
type odd struct {
	machine nstance.Machine
	err     error
	rounds  int // that a listing shows the machine; negative: without end
}

func (p odd) Create(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
	return p.machine, p.err
}

func (p odd) Get(context.Context, nstance.InstanceID) (nstance.Machine, error) {
	return p.machine, p.err
}

func (p odd) Delete(context.Context, nstance.Machine) error { return p.err }

func (p odd) List(ctx context.Context, _ nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		for n := 0; n != p.rounds; n++ {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				yield(nstance.Machine{}, ctx.Err())
				return
			}
			if !yield(p.machine, nil) {
				return
			}
		}
	}
}

// TestWordsOfNoSet: a status, and a cause, that are in no closed set count as unknown in every
// answer, and each raises one alarm. The word of a cause is what the cloud says.
func TestWordsOfNoSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := spec(t)
		m := nstance.Machine{ID: s.ID, Owner: s.Owner, ProviderID: "h", Status: "TERMINATED", Cause: "evicted by the vendor"}
		want := m
		want.Status, want.Cause, want.CauseText = nstance.StatusUnknown, "", "evicted by the vendor"
		for call, ask := range map[string]func(*provider.Client) (nstance.Machine, error){
			"create": func(c *provider.Client) (nstance.Machine, error) { return c.Create(t.Context(), s) },
			"get":    func(c *provider.Client) (nstance.Machine, error) { return c.Get(t.Context(), s.ID) },
			"list": func(c *provider.Client) (out nstance.Machine, err error) {
				for m, e := range c.List(t.Context(), s.Owner) {
					out, err = m, e
				}
				return out, err
			},
		} {
			var alarms []string
			c := client(t, odd{machine: m, rounds: 1}, &provider.Options{Alarm: func(text string) { alarms = append(alarms, text) }})
			for range 2 {
				got, err := ask(c)
				require.NoError(t, err, call)
				require.Equal(t, want, got, call)
			}
			require.Len(t, alarms, 2, call)
		}
		c := client(t, odd{err: nstance.Lost("evicted by the vendor", "it is gone")}, nil)
		_, err := c.Get(t.Context(), s.ID)
		for _, err := range []error{err, c.Delete(t.Context(), m)} {
			require.ErrorIs(t, err, nstance.NotFound)
			require.ErrorContains(t, err, "it is gone")
			require.Empty(t, nstance.LossCauseOf(err))
		}
	})
}

// TestCloudsOwnText: what the cloud says of a cause explains more than the cause's word.
func TestCloudsOwnText(t *testing.T) {
	s := spec(t)
	m := nstance.Machine{ID: s.ID, Owner: s.Owner, Cause: "evicted", CauseText: "the host is broken"}
	got, err := client(t, odd{machine: m}, nil).Get(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, "the host is broken", got.CauseText)
	for words, want := range map[string]string{"the host is broken": "the host is broken", "": "evicted"} {
		_, err := client(t, odd{err: &nstance.Error{Code: nstance.NotFound, Cause: "evicted", Words: words, Msg: "gone"}}, nil).Get(t.Context(), s.ID)
		var e *nstance.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, want, e.Words)
	}
}

// TestNoStatus: a provider that gives a machine no status says nothing of whether it runs.
func TestNoStatus(t *testing.T) {
	s := spec(t)
	m, err := client(t, odd{machine: nstance.Machine{ID: s.ID, Owner: s.Owner}}, nil).Get(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, nstance.StatusUnknown, m.Status)
}

// TestListInCircles: a machine that is listed again is yielded once, and a list that has
// nothing else ends.
func TestListInCircles(t *testing.T) {
	for name, rounds := range map[string]int{"twice": 2, "without end": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := spec(t)
				c := client(t, odd{machine: nstance.Machine{ID: s.ID, Owner: s.Owner, Status: nstance.StatusRunning}, rounds: rounds}, nil)
				var machines int
				var last error
				for _, err := range c.List(t.Context(), s.Owner) {
					if last = err; err == nil {
						machines++
					}
				}
				require.Equal(t, 1, machines)
				if rounds < 0 {
					require.ErrorIs(t, last, nstance.Unavailable)
				} else {
					require.NoError(t, last)
				}
			})
		})
	}
}
