package server_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
)

// configWithChangeLimit returns a configuration with a limit on changes and the
// size of default/web.
func configWithChangeLimit(t *testing.T, limit string, size int) string {
	return replaceOnce(t, defaultConfig(size), `"shutdown_timeout": "30s",`, `"shutdown_timeout": "30s", "max_change": `+limit+`,`)
}

func (w *world) refreshConfig(api apiv1.OperatorServiceClient) error {
	_, err := api.RefreshConfig(w.Context(), &apiv1.RefreshConfigRequest{})
	return wire.ErrorOf(err)
}

func (w *world) configStatus(api apiv1.OperatorServiceClient) *apiv1.GetConfigStatusResponse {
	w.Helper()
	resp, err := api.GetConfigStatus(w.Context(), &apiv1.GetConfigStatusRequest{})
	require.NoError(w, err)
	return resp
}

func (w *world) confirmConfig(api apiv1.OperatorServiceClient, digest string, dryRun bool) error {
	_, err := api.ConfirmConfig(w.Context(), &apiv1.ConfirmConfigRequest{Digest: digest, DryRun: dryRun})
	return wire.ErrorOf(err)
}

// acceptedConfig reads the stored document of the accepted configuration.
func (w *world) acceptedConfig() (doc struct {
	Digest string `json:"digest"`
	Data   []byte `json:"data"`
	Held   *struct {
		Digest string `json:"digest"`
	} `json:"held"`
}) {
	w.Helper()
	obj, err := w.store.Get(w.Context(), layout.AcceptedKey(zone))
	require.NoError(w, err)
	require.NoError(w, json.Unmarshal(obj.Data, &doc))
	return doc
}

// startSuccessor starts another server on the same store and cloud, after the first
// one has stopped.
func (w *world) startSuccessor(opts server.Options) {
	w.Helper()
	require.NoError(w, w.stopServer())
	opts.Journal, opts.Kinds = w.journal, kinds
	hasten(&opts, func() { w.filePasses.Add(1) })
	var err error
	w.server, err = server.New(w.Context(), w.store, w.cloud, w.conf.read, &opts)
	require.NoError(w, err)
	w.run()
	w.awaitLeading()
}

func TestLargeChangeIsHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 4})
	w.conf.set(configWithChangeLimit(t, "2", 4), nil)
	api := w.admin()
	require.NoError(t, w.refreshConfig(api))
	require.Eventually(t, func() bool { return w.countMachines("default") == 4 }, eventually, time.Millisecond)
	before := w.configStatus(api).GetDigest()
	require.Equal(t, before, w.acceptedConfig().Digest)

	t.Run("too many would be removed", func(t *testing.T) {
		w.conf.set(configWithChangeLimit(t, "4", 1), nil) // the proposed limit does not apply to its own change
		err := w.refreshConfig(api)
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "would remove 3 and replace 0 of 5 members, and shard.max_change permits 2")
		require.ErrorContains(t, err, "nstance-admin config confirm ")
		now := w.configStatus(api)
		require.Equal(t, before, now.GetDigest())
		require.NotEmpty(t, now.GetHeldDigest())
		require.NotNil(t, now.GetHeldAt())
		require.Contains(t, now.GetHeldReason(), "3 and replace 0 of 5 members")
		require.Empty(t, now.GetRejectedError())
		require.EqualValues(t, 4, w.getGroup(api, "web").GetSize())
		shard, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		require.Contains(t, strings.Join(shard.GetProblems(), "\n"), "is held until it is confirmed")
		require.Equal(t, 1, w.attentionOfKind("config_held").Count)
		require.Equal(t, now.GetHeldDigest(), w.acceptedConfig().Held.Digest)
	})
	t.Run("operators see the hold without the shard's member count", func(t *testing.T) {
		now := w.configStatus(w.registerClient(nstance.RoleOperator, "blue").operatorAPI())
		require.Equal(t, w.configStatus(api).GetHeldDigest(), now.GetHeldDigest())
		require.Equal(t, "an administrator can see why", now.GetHeldReason())
	})
	t.Run("the next leader keeps both configurations", func(t *testing.T) {
		held := w.configStatus(api).GetHeldDigest()
		w.startSuccessor(server.Options{})
		api = w.admin()
		require.EqualValues(t, 4, w.getGroup(api, "web").GetSize())
		require.Equal(t, before, w.configStatus(api).GetDigest())
		require.Equal(t, held, w.configStatus(api).GetHeldDigest())
	})
	t.Run("reverting ends the hold", func(t *testing.T) {
		w.conf.set(configWithChangeLimit(t, "2", 4), nil)
		require.NoError(t, w.refreshConfig(api))
		require.Empty(t, w.configStatus(api).GetHeldDigest())
		require.Nil(t, w.acceptedConfig().Held)
	})
	t.Run("too many would be replaced", func(t *testing.T) {
		w.conf.set(replaceOnce(t, configWithChangeLimit(t, "2", 4), `{{.Nonce}}`, `v2 {{.Nonce}}`), nil)
		err := w.refreshConfig(api)
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "would remove 0 and replace 5 of 5 members")
	})
	t.Run("a confirmed change is in force and durable", func(t *testing.T) {
		digest := w.configStatus(api).GetHeldDigest()
		require.NoError(t, w.confirmConfig(api, digest, false))
		now := w.configStatus(api)
		require.Equal(t, digest, now.GetDigest())
		require.Empty(t, now.GetHeldDigest())
		require.Equal(t, digest, w.acceptedConfig().Digest)
		require.NoError(t, w.refreshConfig(api), "the same again is no change")
	})
	t.Run("a small change is in force at once", func(t *testing.T) {
		w.conf.set(replaceOnce(t, configWithChangeLimit(t, "2", 3), `{{.Nonce}}`, `v2 {{.Nonce}}`), nil)
		require.NoError(t, w.refreshConfig(api))
		require.EqualValues(t, 3, w.getGroup(api, "web").GetSize())
	})
}

// TestUnreadableAcceptedConfiguration: a new leader that cannot read what was accepted leaves all groups
// as they are, until what it finds at the source is accepted.
func TestUnreadableAcceptedConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 4})
	w.conf.set(configWithChangeLimit(t, "2", 4), nil)
	require.NoError(t, w.refreshConfig(w.admin()))
	all := w.awaitMachines(4)
	obj, err := w.store.Get(t.Context(), layout.AcceptedKey(zone))
	require.NoError(t, err)
	require.NoError(t, w.stopServer())
	_, err = w.store.PutIfMatch(t.Context(), obj.Key, []byte(strings.Replace(string(obj.Data), `"digest":"`, `"digest":"0`, 1)), obj.Version)
	require.NoError(t, err)
	w.conf.set(configWithChangeLimit(t, "2", 1), nil)
	w.startSuccessor(server.Options{})

	api := w.admin()
	require.Eventually(t, func() bool { return w.configStatus(api).GetHeldDigest() != "" }, eventually, time.Millisecond)
	require.EqualValues(t, 4, w.getGroup(api, "web").GetSize())
	resize := func(size int32) error {
		_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: &size})
		return wire.ErrorOf(err)
	}
	err = resize(3)
	require.ErrorIs(t, err, nstance.Unavailable)
	require.ErrorContains(t, err, "groups stay as they are until a configuration is accepted")
	require.ElementsMatch(t, all, w.awaitMachines(4))
	require.NoError(t, w.confirmConfig(api, w.configStatus(api).GetHeldDigest(), false))
	require.EqualValues(t, 1, w.getGroup(api, "web").GetSize())
	w.awaitMachines(1)
	require.NoError(t, resize(2))
}

// TestAcceptedConfigurationOutlivesItsSource: a new leader continues with the
// accepted configuration, also if the file was damaged since.
func TestAcceptedConfigurationOutlivesItsSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 2})
	w.awaitMachine("default")
	require.NoError(t, w.stopServer())

	t.Run("a damaged file is refused", func(t *testing.T) {
		// The file was valid when the server started and is damaged when it leads.
		var err error
		w.server, err = server.New(t.Context(), w.store, w.cloud, w.conf.read, &server.Options{Kinds: kinds, Journal: w.journal, Reread: time.Millisecond})
		require.NoError(t, err)
		w.conf.set(`{"cluster": `, nil)
		w.run()
		w.awaitLeading()
		api := w.admin()
		require.Eventually(t, func() bool { return w.configStatus(api).GetRejectedError() != "" }, eventually, time.Millisecond)
		require.EqualValues(t, 2, w.getGroup(api, "web").GetSize())
	})
	t.Run("a changed file takes effect by itself", func(t *testing.T) {
		w.conf.set(defaultConfig(3), nil)
		api := w.admin()
		require.Eventually(t, func() bool {
			return w.getGroup(api, "web").GetSize() == 3 && w.configStatus(api).GetRejectedError() == ""
		}, eventually, time.Millisecond)
	})
}
