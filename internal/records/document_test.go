package records_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage/storagetest"
)

type groupState struct {
	Paused   bool `json:"paused,omitempty"`
	Failures int  `json:"failures,omitempty"`
}

type state struct {
	records.Header
	Groups map[string]groupState `json:"groups,omitempty"`
}

const stateKey = "state/z1.json"

func pauseGroup(name string) func(*state) error {
	return func(s *state) error {
		if s.Groups == nil {
			s.Groups = map[string]groupState{}
		}
		g := s.Groups[name]
		g.Paused = true
		s.Groups[name] = g
		return nil
	}
}

func TestDoc(t *testing.T) {
	newDoc := func(b recordsTest) *records.Doc[state] {
		return records.NewDoc[state](b, stateKey, &records.DocOptions{Epoch: 7})
	}
	bubble(t, "a missing one is zero, and created by the first update", func(t *testing.T) {
		b := newBed()
		d := newDoc(b)
		got, err := d.Load(t.Context())
		require.NoError(t, err)
		require.Zero(t, got)
		_, ok := d.Held()
		require.False(t, ok)
		b.Reset()
		got, err = d.Update(t.Context(), pauseGroup("a"))
		require.NoError(t, err)
		require.True(t, got.Groups["a"].Paused)
		require.Equal(t, 1, b.Count(""), "one put, no read")
		held, ok := d.Held()
		require.True(t, ok)
		require.Equal(t, got, held)
		read, err := newDoc(b).Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, got, read)
	})
	bubble(t, "an update without a load reads once", func(t *testing.T) {
		b := newBed()
		_, err := newDoc(b).Update(t.Context(), pauseGroup("a"))
		require.NoError(t, err)
		d := newDoc(b)
		b.Reset()
		got, err := d.Update(t.Context(), pauseGroup("b"))
		require.NoError(t, err)
		require.Len(t, got.Groups, 2)
		_, err = d.Update(t.Context(), pauseGroup("c"))
		require.NoError(t, err)
		require.Equal(t, 1, b.Count(storagetest.Get))
		require.Equal(t, 2, b.Count(storagetest.PutIfMatch))
		require.Equal(t, 3, b.Count(""), "it is not tried as a new one")
	})
	bubble(t, "header and content are one object", func(t *testing.T) {
		b := newBed()
		_, err := newDoc(b).Update(t.Context(), pauseGroup("a"))
		require.NoError(t, err)
		obj, err := b.mem.Get(t.Context(), stateKey)
		require.NoError(t, err)
		require.Regexp(t, `^\{"format":"1\.0","epoch":7,"write_id":"[A-Z2-7]{26}","groups":\{"a":\{"paused":true\}\}\}\n$`, string(obj.Data))
	})
	bubble(t, "two writers lose no update", func(t *testing.T) {
		b := newBed()
		one, two := newDoc(b), newDoc(b)
		var wg sync.WaitGroup
		for _, d := range []*records.Doc[state]{one, two} {
			wg.Go(func() {
				for range 3 {
					_, err := d.Update(t.Context(), func(s *state) error {
						if s.Groups == nil {
							s.Groups = map[string]groupState{}
						}
						s.Groups["a"] = groupState{Failures: s.Groups["a"].Failures + 1}
						return nil
					})
					require.NoError(t, err)
				}
			})
		}
		wg.Wait()
		got, err := newDoc(b).Load(t.Context())
		require.NoError(t, err)
		require.Equal(t, 6, got.Groups["a"].Failures)
	})
	bubble(t, "others that change it again and again win for a while only", func(t *testing.T) {
		b := newBed()
		one, other := newDoc(b), newDoc(b)
		began := time.Now()
		got, err := one.Update(t.Context(), func(s *state) error {
			if time.Since(began) < 200*time.Millisecond {
				_, err := other.Update(t.Context(), func(s *state) error {
					s.Groups = map[string]groupState{"b": {Failures: s.Groups["b"].Failures + 1}}
					return nil
				})
				require.NoError(t, err)
			}
			return pauseGroup("a")(s)
		})
		require.NoError(t, err)
		require.True(t, got.Groups["a"].Paused)
		require.NotZero(t, got.Groups["b"].Failures)
	})
	bubble(t, "a lost answer is resolved, also of the first write", func(t *testing.T) {
		b := newBed()
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer},
			storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer, Err: nstance.Conflict})
		d := newDoc(b)
		for _, name := range []string{"a", "b"} {
			_, err := d.Update(t.Context(), pauseGroup(name))
			require.NoError(t, err)
		}
		require.Zero(t, b.Count(storagetest.Delete))
		got, _ := d.Held()
		require.Len(t, got.Groups, 2)
	})
	none := func(*state) error { return nil }
	bubble(t, "the first update of a term keeps writes of earlier terms from landing", func(t *testing.T) {
		b := newBed()
		old := newDoc(b)
		_, err := old.Update(t.Context(), pauseGroup("a"))
		require.NoError(t, err)
		next := records.NewDoc[state](b, stateKey, &records.DocOptions{Epoch: 8})
		_, err = next.Load(t.Context())
		require.NoError(t, err)
		late, err := b.mem.Get(t.Context(), stateKey)
		require.NoError(t, err)
		_, err = next.Update(t.Context(), none)
		require.NoError(t, err)
		_, err = b.mem.PutIfMatch(t.Context(), stateKey, late.Data, late.Version)
		require.ErrorIs(t, err, nstance.Conflict, "the old leader's write was on its way")
		b.Reset()
		got, err := next.Update(t.Context(), none)
		require.NoError(t, err)
		require.True(t, got.Groups["a"].Paused)
		require.Zero(t, b.Count(""), "once")
	})
	bubble(t, "an update after an unanswered write returns what is durable, and nothing lands after it", func(t *testing.T) {
		for _, landed := range []bool{false, true} {
			b := newBed()
			d := newDoc(b)
			_, err := d.Update(t.Context(), pauseGroup("a"))
			require.NoError(t, err)
			ctx, leave := context.WithCancel(t.Context())
			b.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.Late, Err: nstance.Ambiguous, Do: leave})
			_, err = d.Update(ctx, pauseGroup("b"))
			require.Error(t, err)
			if landed {
				b.ApplyLate()
			}
			got, err := d.Update(t.Context(), none)
			require.NoError(t, err)
			require.Equal(t, landed, got.Groups["b"].Paused)
			b.ApplyLate()
			got, err = newDoc(b).Load(t.Context())
			require.NoError(t, err)
			require.Equal(t, landed, got.Groups["b"].Paused, "what was on its way is refused from now on")
		}
	})
	bubble(t, "top-level fields that the type lacks survive", func(t *testing.T) {
		b := newBed()
		b.put(t, stateKey, `{"format":"1.3","epoch":3,"frozen":{"why":"<x>"},"groups":{"a":{"paused":true}}}`)
		_, err := newDoc(b).Update(t.Context(), func(s *state) error {
			*s = state{Groups: map[string]groupState{"a": {Failures: 1}}} // also when the header is overwritten
			return nil
		})
		require.NoError(t, err)
		obj, err := b.mem.Get(t.Context(), stateKey)
		require.NoError(t, err)
		require.Regexp(t, `^\{"format":"1\.3","epoch":7,"write_id":"[A-Z2-7]{26}","groups":\{"a":\{"failures":1\}\},"frozen":\{"why":"<x>"\}\}\n$`, string(obj.Data))
	})
	bubble(t, "an unreadable one is never zero", func(t *testing.T) {
		for _, data := range []string{`{"format":"2.1"}`, `{`, ``, `{}`, `{"format":"1.0","groups":[]}`} {
			b := newBed()
			b.put(t, stateKey, data)
			d := newDoc(b)
			_, err := d.Load(t.Context())
			require.ErrorIs(t, err, nstance.Invalid, data)
			require.ErrorContains(t, err, stateKey)
			_, err = d.Update(t.Context(), pauseGroup("a"))
			require.ErrorIs(t, err, nstance.Invalid, data)
			obj, err := b.mem.Get(t.Context(), stateKey)
			require.NoError(t, err)
			require.Equal(t, data, string(obj.Data))
		}
		b := newBed()
		b.Inject(storagetest.Fault{Op: storagetest.Get, Times: -1})
		_, err := newDoc(b).Load(t.Context())
		require.ErrorIs(t, err, nstance.Unavailable)
	})
	bubble(t, "an error of fn ends the update", func(t *testing.T) {
		b := newBed()
		no := errors.New("no")
		_, err := newDoc(b).Update(t.Context(), func(*state) error { return no })
		require.Equal(t, no, err)
		_, err = b.mem.Get(t.Context(), stateKey)
		require.ErrorIs(t, err, nstance.NotFound)
	})
	bubble(t, "an ended term writes nothing", func(t *testing.T) {
		b := newBed()
		over := errors.New("over")
		d := records.NewDoc[state](b, stateKey, &records.DocOptions{Check: func() error { return over }})
		_, err := d.Update(t.Context(), pauseGroup("a"))
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorIs(t, err, over)
	})
	bubble(t, ".jsonc may have comments and no format", func(t *testing.T) {
		b := newBed()
		b.put(t, "groups/z1.jsonc", "{\n  // for the weekend\n  \"groups\": {\"a\": {\"paused\": true},},\n}\n")
		d := records.NewDoc[state](b, "groups/z1.jsonc", nil)
		got, err := d.Load(t.Context())
		require.NoError(t, err)
		require.True(t, got.Groups["a"].Paused)
		_, err = d.Update(t.Context(), pauseGroup("b"))
		require.NoError(t, err)
		got, err = records.NewDoc[state](b, "groups/z1.jsonc", nil).Load(t.Context())
		require.NoError(t, err)
		require.Len(t, got.Groups, 2)
	})
	bubble(t, "a type may embed the header to see and raise the epoch", func(t *testing.T) {
		type lease struct {
			records.Header
			Holder string `json:"holder"`
		}
		b := newBed()
		d := records.NewDoc[lease](b, "lease/z1.json", nil)
		for want := range uint64(3) {
			got, err := d.Update(t.Context(), func(l *lease) error { l.Epoch++; return nil })
			require.NoError(t, err)
			require.Equal(t, want+1, got.Epoch)
		}
	})
}
