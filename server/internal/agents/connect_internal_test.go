package agents

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/storage"
)

// A connectShard has the records, and calls connected when a session begins.
type connectShard struct {
	*fakeShard
	recs      *records.Records
	connected func()
}

func (s connectShard) Records() *records.Records { return s.recs }

func (s connectShard) Observe(f nstance.Fact) {
	if _, ok := f.(nstance.Connected); ok {
		s.connected()
	}
}

// connect opens the session of an instance with a record. It returns what the agent is sent
// and the outcome. connected is called after the welcome.
func connect(t *testing.T, connected func(shard connectShard, conf *config.Config, id nstance.InstanceID)) (d *slowAgent, over chan error) {
	id := testID(t)
	shard := connectShard{fakeShard: &fakeShard{}, recs: records.New(storage.NewMemory(), "s1", nil)}
	_, err := shard.recs.Create(t.Context(), records.Instance{ID: id, Tenant: "default", Group: "web"})
	require.NoError(t, err)
	identity, err := keyring.NewAuthority(keyring.Identity, time.Now())
	require.NoError(t, err)
	conf := &config.Config{Shard: config.Shard{HealthInterval: time.Minute}}
	shard.connected = func() { connected(shard, conf, id) }
	a := New(storage.NewMemory(), shard, drain.New(nil), Options{
		Config: func() *config.Config { copied := *conf; return &copied }, Now: time.Now, Check: func() error { return nil },
		Keys: &keyring.Keys{Identity: identity}, Expiry: ports.Expiry{Now: time.Now, Interval: time.Minute}, Log: slog.New(slog.DiscardHandler),
	})
	_, d = newSlowAgent(t)
	close(d.Read)
	over = make(chan error, 1)
	who := nstance.Identity{Subject: string(id), Role: nstance.RoleAgent, Tenant: "default", Issuer: identity.Issuer(), NotAfter: time.Now().Add(time.Hour)}
	go func() { over <- a.Connect(&who, d) }()
	return d, over
}

// TestIntervalChangesAfterTheWelcome: nothing else tells the agent of the new interval.
func TestIntervalChangesAfterTheWelcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, over := connect(t, func(_ connectShard, conf *config.Config, _ nstance.InstanceID) { conf.Shard.HealthInterval = time.Hour })
		<-time.After(2 * closeGrace)
		close(d.Gone)
		require.ErrorIs(t, <-over, errInterval)
		require.Len(t, d.Sent, 2)
		require.Equal(t, time.Minute, d.Sent[0].GetWelcome().GetReportInterval().AsDuration())
		require.NotNil(t, d.Sent[1].GetGoAway(), "it comes back, and is welcomed with the interval in force")
	})
}

// TestDeletedAfterTheWelcome: the deletion found no session to end yet.
func TestDeletedAfterTheWelcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, over := connect(t, func(shard connectShard, _ *config.Config, id nstance.InstanceID) {
			_, err := shard.recs.Update(t.Context(), id, func(rec *records.Instance) error {
				rec.Deleting = &records.Deletion{At: time.Now()}
				return nil
			})
			require.NoError(t, err)
		})
		synctest.Wait()
		select {
		case err := <-over:
			require.ErrorIs(t, err, ErrDeleted)
		default:
			close(d.Gone)
			require.Fail(t, "the session goes on")
		}
	})
}
