package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/lease"
)

// A brokenElector fails with one of some errors, each a number of times in a row.
type brokenElector struct {
	lease.Elector
	attempts int
}

func (b *brokenElector) Campaign(context.Context) (*lease.Term, error) {
	b.attempts++
	return nil, fmt.Errorf("outage %d", b.attempts/100)
}

// TestFailureToLeadIsLoggedOnce: what fails for long is logged when it changes.
func TestFailureToLeadIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		e := &brokenElector{}
		s := &Server{elector: e, log: slog.New(slog.NewTextHandler(&text, nil))}
		s.opts.intervals.campaign = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 199*time.Second+time.Millisecond)
		defer cancel()
		s.campaign(ctx)
		require.Equal(t, 200, e.attempts, "a server that can lead again does so soon")
		require.Equal(t, 3, strings.Count(text.String(), "does not lead"), text.String())
	})
}

// TestTermsThatCannotBegin: the pauses between terms that end as soon as they began grow.
func TestTermsThatCannotBegin(t *testing.T) {
	t.Parallel()
	f, broken := failedTerms{pause: time.Second}, errors.New("broken")
	var waits []int
	for range 6 {
		f.add(broken, true)
		waits = append(waits, int(f.wait(broken).Seconds()))
	}
	require.Equal(t, []int{1, 2, 4, 8, 10, 10}, waits)
	f.add(broken, false)
	require.Equal(t, time.Second, f.wait(broken), "after a term that lasted")
	require.Equal(t, 10*time.Second, f.wait(nstance.FieldError("a", "b", "c")))
}
