package lease_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// messages returns the messages of a log, in order, and empties it, once everything waits.
func messages(log *bytes.Buffer) (out []string) {
	synctest.Wait()
	for _, m := range regexp.MustCompile(`msg="([^"]*)"`).FindAllStringSubmatch(log.String(), -1) {
		out = append(out, m[1])
	}
	log.Reset()
	return out
}

// TestLog: an operator sees each change of leadership and of storage once.
func TestLog(t *testing.T) {
	setUp := func(t *testing.T, s storage.Store, o lease.Options) (*lease.Lease, *storagetest.Faulty, *bytes.Buffer) {
		var log bytes.Buffer
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		f := storagetest.NewFaulty(s)
		return candidate(t, f, o), f, &log
	}
	bubble(t, "of a term that is released", func(t *testing.T) {
		l, _, log := setUp(t, newShardStore(t), lease.Options{})
		campaign(t, l)
		after(t.Context(), time.Minute)
		require.NoError(t, l.Resign(t.Context()))
		require.Equal(t, 2, strings.Count(log.String(), "shard=z1"), log.String())
		require.Equal(t, []string{"lease acquired", "lease released"}, messages(log))
	})
	bubble(t, "of storage that cannot be reached, and can be again", func(t *testing.T) {
		l, f, log := setUp(t, newShardStore(t), lease.Options{})
		f.Inject(storagetest.Fault{Times: 5})
		campaign(t, l)
		require.Equal(t, []string{"lease cannot be read or written", "lease acquired"}, messages(log), "once")

		l, f, log = setUp(t, f, lease.Options{})
		f.Inject(storagetest.Fault{Times: 5}, storagetest.Fault{Skip: 5, Times: 5})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := l.Campaign(ctx)
		require.ErrorIs(t, err, nstance.Unavailable, "the lease is held")
		const broken, works = "lease cannot be read or written", "lease can be read and written again"
		require.Equal(t, []string{broken, works, broken, works}, messages(log))
	})
	bubble(t, "of a renewal that fails, and of a term that runs out", func(t *testing.T) {
		l, f, log := setUp(t, newShardStore(t), lease.Options{})
		term := campaign(t, l)
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch})
		after(t.Context(), time.Minute)
		require.NoError(t, term.Err())
		require.Equal(t, []string{"lease acquired", "lease not renewed"}, messages(log))
		f.Inject(storagetest.Fault{Times: -1})
		<-term.Context().Done()
		after(t.Context(), time.Minute)
		require.Equal(t, []string{"lease lost"}, messages(log))
	})
	bubble(t, "of a campaign that ends the term: it is not lost", func(t *testing.T) {
		l, _, log := setUp(t, newShardStore(t), lease.Options{TakeAtOnce: true})
		campaign(t, l)
		campaign(t, l)
		require.Equal(t, []string{"lease acquired", "lease acquired"}, messages(log))
	})
	bubble(t, "not of a lease that another process takes first", func(t *testing.T) {
		mem := storage.NewMemory()
		putForeign(t, mem, foreign, 4, "w", 6000, false)
		l, f, log := setUp(t, mem, lease.Options{})
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Pass: true, Do: func() {
			obj, err := mem.Get(t.Context(), leaseKey)
			require.NoError(t, err)
			_, err = mem.PutIfMatch(t.Context(), leaseKey, fmt.Appendf(nil, foreign, 5, "x", 6000, false), obj.Version)
			require.NoError(t, err)
		}})
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		_, err := l.Campaign(ctx)
		require.ErrorIs(t, err, nstance.Unavailable, "the lease is held")
		require.Equal(t, 1, f.Count(storagetest.PutIfMatch))
		require.Empty(t, messages(log))
	})
	bubble(t, "of a lease that is missing, once", func(t *testing.T) {
		l, _, log := setUp(t, storage.NewMemory(), lease.Options{})
		campaign(t, l)
		got := messages(log)
		require.Len(t, got, 2)
		require.Contains(t, got[0], "missing")
		require.Equal(t, "lease acquired", got[1])
		l, _, log = setUp(t, storage.NewMemory(), lease.Options{TakeAtOnce: true})
		campaign(t, l)
		require.Equal(t, []string{"lease acquired"}, messages(log), "nothing waits for it")
	})
}
