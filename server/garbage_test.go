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
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// configWithRetention is a configuration that keeps unused objects for the time.
func configWithRetention(size int, retention string) string {
	return configWithSettings(size, fmt.Sprintf(`"gc": {"retention": %q},`, retention))
}

// awaitGone waits until key is deleted.
func (w *world) awaitGone(key string) {
	w.Helper()
	require.Eventually(w, func() bool { return !w.objectExists(key) }, eventually, 10*time.Millisecond, key)
}

func (w *world) objectExists(key string) bool {
	w.Helper()
	_, err := w.store.Get(w.Context(), key)
	if err != nil {
		require.ErrorIs(w, err, nstance.NotFound)
	}
	return err == nil
}

// storeExpiredOperator stores an operator's registration and its used nonce, both
// expired for the time.
func (w *world) storeExpiredOperator(name string, ago time.Duration) (nonce, record string) {
	w.Helper()
	end := time.Now().UTC().Add(-ago)
	op := registration.OperatorRegistration{
		Name: name, Role: nstance.RoleOperator, Tenant: "default", JTI: name, RegisteredAt: end.Add(-time.Hour), NonceExpiry: end,
		Succession: registration.Succession{Current: &registration.KeyRecord{Serial: "01", NotAfter: end}},
	}
	nonce, record = layout.NonceKey(op.JTI), layout.OperatorKey(op.Tenant, op.Name)
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
	w := newWorld(t, setup{config: configWithRetention(1, "2d")})
	w.connectReady(w.awaitMachine(nstance.DefaultTenant))
	id := w.awaitMachine(nstance.DefaultTenant)
	digest := w.instanceRecord(nstance.DefaultTenant, "web", id).Definition
	unnamed, err := records.New(w.store, zone, nil).PutDefinition(t.Context(), nstance.Definition{Kind: "old"})
	require.NoError(t, err)
	nonce, record := w.storeExpiredOperator("operator-old", 36*time.Hour)
	fresh, standing := w.storeExpiredOperator("operator-new", 12*time.Hour)
	api := w.admin() // it also has a registration

	w.applyConfig(configWithRetention(1, "1s"))
	w.awaitGone(nonce)
	w.awaitGone(record)
	require.True(t, w.objectExists(fresh) && w.objectExists(standing))
	require.True(t, w.objectExists(layout.DefinitionKey(zone, digest)))
	require.True(t, w.objectExists(layout.DefinitionKey(zone, unnamed)), "something may be about to name it for an hour")
	require.Zero(t, w.attentionOfKind("garbage"))
	require.Contains(t, w.scrapeMetrics(), `nstance_storage_removed_total{prefix="operator"} 1`)

	_, err = w.store.PutIfAbsent(t.Context(), layout.NonceKey("damaged"), []byte("{"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		shard, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		return err == nil && strings.Contains(strings.Join(shard.GetProblems(), "\n"), "garbage under nonce/ is not collected: nonce/damaged cannot be read")
	}, eventually, 10*time.Millisecond)
	require.Equal(t, 1, w.attentionOfKind("garbage").Count)
	w.getGroup(api, "web")
}

func TestWrongClockExpiresNothing(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	p := newSlowClock(0)
	store := storagetest.NewFaulty(storage.NewMemory())
	looks := make(chan struct{}, 100)
	w := newWorld(t, setup{config: configWithRetention(1, "1s"), store: datedStore{store, time.Now}, opts: server.Options{Now: p.now}})
	w.connectReady(w.awaitMachine(nstance.DefaultTenant))
	p.advance(48 * time.Hour)
	w.awaitEvent(eventtype.ClockWrong, "")
	nonce, record := w.storeExpiredOperator("operator-old", time.Hour) // older than the retention, if that clock were right
	store.Inject(storagetest.Fault{Op: storagetest.List, Prefix: layout.FetchedPrefix(zone), Pass: true, Times: -1, Do: func() { looks <- struct{}{} }})
	for range 3 { // each pass starts with one list: the second pass has ended
		receive(t, looks)
	}
	require.True(t, w.objectExists(nonce) && w.objectExists(record))
}
