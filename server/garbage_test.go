package server_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// retained is a configuration that keeps what is of no use any more for so long.
func retained(size int, retention string) string {
	return tuned(size, fmt.Sprintf(`"gc": {"retention": %q},`, retention))
}

// gone waits until nothing stands under a key.
func (w *world) gone(key string) {
	w.Helper()
	require.Eventually(w, func() bool { return !w.stands(key) }, eventually, 10*time.Millisecond, key)
}

func (w *world) stands(key string) bool {
	w.Helper()
	_, err := w.store.Get(w.Context(), key)
	if err != nil {
		require.ErrorIs(w, err, nstance.NotFound)
	}
	return err == nil
}

// expired stores an operator's registration, and the mark of its nonce, which
// ended so long ago.
func (w *world) expired(name string, ago time.Duration) (nonce, record string) {
	w.Helper()
	end := time.Now().UTC().Add(-ago)
	op := registration.OperatorRegistration{
		Name: name, Role: nstance.RoleOperator, Tenant: "default", JTI: name, RegisteredAt: end.Add(-time.Hour), NonceExpiry: end,
		Succession: registration.Succession{Current: &registration.KeyRecord{Serial: "01", NotAfter: end}},
	}
	nonce, record = storage.NonceKey(op.JTI), storage.OperatorKey(op.Tenant, op.Name)
	for _, key := range []string{nonce, record} {
		data, err := json.Marshal(map[string]any{"format": "1.0", "epoch": 0, "write_id": name, "operator": op})
		require.NoError(w, err)
		_, err = w.store.PutIfAbsent(w.Context(), key, data)
		require.NoError(w, err)
	}
	return nonce, record
}

func TestLeaderCollectsGarbage(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	w := newWorld(t, setup{text: retained(1, "2d")})
	w.ready(w.machine(nstance.DefaultTenant))
	id := w.machine(nstance.DefaultTenant)
	digest := w.record(nstance.DefaultTenant, "web", id).Definition
	unnamed, err := storage.NewRecords(w.store, zone, nil).PutDefinition(t.Context(), nstance.Definition{Kind: "old"})
	require.NoError(t, err)
	nonce, record := w.expired("operator-old", 36*time.Hour)
	fresh, standing := w.expired("operator-new", 12*time.Hour)
	api := w.admin() // whose own registration is among them

	w.adopt(retained(1, "1s"))
	w.gone(nonce)
	w.gone(record)
	require.True(t, w.stands(fresh) && w.stands(standing))
	require.True(t, w.stands(storage.DefinitionKey(zone, digest)))
	require.True(t, w.stands(storage.DefinitionKey(zone, unnamed)), "something may be about to name it for an hour")
	require.Zero(t, w.shown("garbage"))
	require.Contains(t, w.scrape(), `nstance_storage_removed_total{prefix="operator"} 1`)

	_, err = w.store.PutIfAbsent(t.Context(), storage.NonceKey("damaged"), []byte("{"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		shard, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		return err == nil && strings.Contains(strings.Join(shard.GetProblems(), "\n"), "garbage under nonce/ is not collected: nonce/damaged cannot be read")
	}, eventually, 10*time.Millisecond)
	require.Equal(t, 1, w.shown("garbage").Count)
	w.group(api, "web")
}

func TestWrongClockExpiresNothing(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	p := newPast(0)
	store := storagetest.NewFaulty(storage.NewMemory())
	looks := make(chan struct{}, 100)
	w := newWorld(t, setup{text: retained(1, "1s"), store: dated{store, time.Now}, opts: server.Options{Now: p.now}})
	w.ready(w.machine(nstance.DefaultTenant))
	p.pass(48 * time.Hour)
	w.await(nstance.EventClockWrong, "")
	nonce, record := w.expired("operator-old", time.Hour) // too long ago, if that clock were right
	store.Inject(storagetest.Fault{Op: storagetest.List, Prefix: storage.FetchedPrefix(zone), Pass: true, Times: -1, Do: func() { looks <- struct{}{} }})
	for range 3 { // each pass begins with one: the second has ended then
		receive(t, looks)
	}
	require.True(t, w.stands(nonce) && w.stands(record))
}
