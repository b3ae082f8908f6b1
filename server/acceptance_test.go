package server_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// limited is a configuration with a limit on change, and default/web of a size.
func limited(t *testing.T, limit string, size int) string {
	return replace(t, ordinary(size), `"shutdown_timeout": "30s",`, `"shutdown_timeout": "30s", "max_change": `+limit+`,`)
}

func (w *world) refresh(api apiv1.OperatorServiceClient) error {
	_, err := api.RefreshConfig(w.Context(), &apiv1.RefreshConfigRequest{})
	return wire.ErrorOf(err)
}

func (w *world) configStatus(api apiv1.OperatorServiceClient) *apiv1.GetConfigStatusResponse {
	w.Helper()
	resp, err := api.GetConfigStatus(w.Context(), &apiv1.GetConfigStatusRequest{})
	require.NoError(w, err)
	return resp
}

func (w *world) confirm(api apiv1.OperatorServiceClient, digest string, dryRun bool) error {
	_, err := api.ConfirmConfig(w.Context(), &apiv1.ConfirmConfigRequest{Digest: digest, DryRun: dryRun})
	return wire.ErrorOf(err)
}

// accepted reads what is remembered of the configuration.
func (w *world) accepted() (doc struct {
	Digest string `json:"digest"`
	Data   []byte `json:"data"`
	Held   *struct {
		Digest string `json:"digest"`
	} `json:"held"`
}) {
	w.Helper()
	obj, err := w.store.Get(w.Context(), storage.AcceptedKey(zone))
	require.NoError(w, err)
	require.NoError(w, json.Unmarshal(obj.Data, &doc))
	return doc
}

// successor starts another server on the same store and cloud, after the first
// one has stopped.
func (w *world) successor(opts server.Options) {
	w.Helper()
	require.NoError(w, w.stop())
	opts.Journal, opts.Kinds = w.journal, kinds
	server.Hasten(&opts, func() { w.filePasses.Add(1) })
	var err error
	w.server, err = server.New(w.Context(), w.store, w.cloud, w.conf.read, &opts)
	require.NoError(w, err)
	w.run()
	w.leads()
}

func TestLargeChangeIsHeld(t *testing.T) {
	w := newWorld(t, setup{size: 4})
	w.conf.set(limited(t, "2", 4), nil)
	api := w.admin()
	require.NoError(t, w.refresh(api))
	require.Eventually(t, func() bool { return w.machines("default") == 4 }, eventually, time.Millisecond)
	before := w.configStatus(api).GetDigest()
	require.Equal(t, before, w.accepted().Digest)

	t.Run("too many would be removed", func(t *testing.T) {
		w.conf.set(limited(t, "4", 1), nil) // its own limit does not count
		err := w.refresh(api)
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "would remove 3 and replace 0 of 5 members, and shard.max_change permits 2")
		require.ErrorContains(t, err, "nstance-admin config confirm ")
		now := w.configStatus(api)
		require.Equal(t, before, now.GetDigest())
		require.NotEmpty(t, now.GetHeldDigest())
		require.NotNil(t, now.GetHeldAt())
		require.Contains(t, now.GetHeldReason(), "3 and replace 0 of 5 members")
		require.Empty(t, now.GetRejectedError())
		require.EqualValues(t, 4, w.group(api, "web").GetSize())
		shard, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		require.Contains(t, strings.Join(shard.GetProblems(), "\n"), "is held until it is confirmed")
		require.Equal(t, 1, w.shown("config_held").Count)
		require.Equal(t, now.GetHeldDigest(), w.accepted().Held.Digest)
	})
	t.Run("operators see that one is held, not how many members the shard has", func(t *testing.T) {
		now := w.configStatus(w.client(nstance.RoleOperator, "blue").api())
		require.Equal(t, w.configStatus(api).GetHeldDigest(), now.GetHeldDigest())
		require.Equal(t, "an administrator can see why", now.GetHeldReason())
	})
	t.Run("the next leader has the same one in force and held", func(t *testing.T) {
		held := w.configStatus(api).GetHeldDigest()
		w.successor(server.Options{})
		api = w.admin()
		require.EqualValues(t, 4, w.group(api, "web").GetSize())
		require.Equal(t, before, w.configStatus(api).GetDigest())
		require.Equal(t, held, w.configStatus(api).GetHeldDigest())
	})
	t.Run("going back ends it", func(t *testing.T) {
		w.conf.set(limited(t, "2", 4), nil)
		require.NoError(t, w.refresh(api))
		require.Empty(t, w.configStatus(api).GetHeldDigest())
		require.Nil(t, w.accepted().Held)
	})
	t.Run("too many would be replaced", func(t *testing.T) {
		w.conf.set(replace(t, limited(t, "2", 4), `{{.Nonce}}`, `v2 {{.Nonce}}`), nil)
		err := w.refresh(api)
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "would remove 0 and replace 5 of 5 members")
	})
	t.Run("too many would be too old", func(t *testing.T) {
		w.conf.set(replace(t, limited(t, "2", 4), `"max_change": 2,`, `"max_change": 2, "expiry": {"forced_age": "1ms"},`), nil)
		err := w.refresh(api)
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "would remove 0 and replace 5 of 5 members")
		w.conf.set(replace(t, limited(t, "2", 4), `{{.Nonce}}`, `v2 {{.Nonce}}`), nil)
		require.ErrorIs(t, w.refresh(api), nstance.Conflict)
	})
	t.Run("confirmed, it is in force and durable", func(t *testing.T) {
		digest := w.configStatus(api).GetHeldDigest()
		require.NoError(t, w.confirm(api, digest, false))
		now := w.configStatus(api)
		require.Equal(t, digest, now.GetDigest())
		require.Empty(t, now.GetHeldDigest())
		require.Equal(t, digest, w.accepted().Digest)
		require.NoError(t, w.refresh(api), "the same again is no change")
	})
	t.Run("a small change is in force at once", func(t *testing.T) {
		w.conf.set(replace(t, limited(t, "2", 3), `{{.Nonce}}`, `v2 {{.Nonce}}`), nil)
		require.NoError(t, w.refresh(api))
		require.EqualValues(t, 3, w.group(api, "web").GetSize())
	})
}

// TestAcceptedOutlivesItsSource: a new leader continues with the accepted configuration,
// also where the file was damaged since.
func TestAcceptedOutlivesItsSource(t *testing.T) {
	w := newWorld(t, setup{size: 2})
	w.machine("default")
	require.NoError(t, w.stop())

	t.Run("a file that was spoiled meanwhile is refused", func(t *testing.T) {
		// The server was started with a good file; when it leads, it is spoiled.
		var err error
		w.server, err = server.New(t.Context(), w.store, w.cloud, w.conf.read, &server.Options{Kinds: kinds, Journal: w.journal, Reread: time.Millisecond})
		require.NoError(t, err)
		w.conf.set(`{"cluster": `, nil)
		w.run()
		w.leads()
		api := w.admin()
		require.Eventually(t, func() bool { return w.configStatus(api).GetRejectedError() != "" }, eventually, time.Millisecond)
		require.EqualValues(t, 2, w.group(api, "web").GetSize())
	})
	t.Run("a changed file takes effect by itself", func(t *testing.T) {
		w.conf.set(ordinary(3), nil)
		api := w.admin()
		require.Eventually(t, func() bool { return w.group(api, "web").GetSize() == 3 }, eventually, time.Millisecond)
		require.Empty(t, w.configStatus(api).GetRejectedError())
	})
}
