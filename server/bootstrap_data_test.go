package server_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// joinConfig is a configuration whose only template has nonce and bootstrap data in its
// user data, a space between them.
func joinConfig(size int) string {
	return configWithTemplate(size, `"userdata": {"content": "{{.Nonce}} {{.BootstrapData}}"}, `, "")
}

// bootstrapDataOf returns what a machine has beside its nonce.
func (w *world) bootstrapDataOf(id nstance.InstanceID) string {
	w.Helper()
	spec, ok := w.cloud.Spec(id)
	require.True(w, ok)
	_, data, ok := strings.Cut(string(spec.UserData), " ")
	require.True(w, ok, "user data without bootstrap data")
	return data
}

// awaitBootstrapData waits until group web has as many machines as want has entries, with
// these bootstrap data.
func (w *world) awaitBootstrapData(want ...string) {
	w.Helper()
	w.awaitMachinesMatching(len(want), func(nstance.MachineSpec) bool { return true })
	var found []string
	for _, spec := range w.webSpecs() {
		found = append(found, w.bootstrapDataOf(spec.ID))
	}
	require.ElementsMatch(w, want, found)
}

func (w *world) updateWeb(api apiv1.OperatorServiceClient, size int32, data string) error {
	_, err := api.UpdateGroup(w.Context(), &apiv1.UpdateGroupRequest{Group: "web", Size: &size, BootstrapData: []byte(data)})
	return err
}

// countBootstrapData returns how many bootstrap data are stored.
func (w *world) countBootstrapData() (n int) {
	w.Helper()
	for _, err := range w.store.List(w.Context(), layout.BootstrapPrefix, "") {
		require.NoError(w, err)
		n++
	}
	return n
}

// TestBootstrapData: machines get the data that their group has when they are made. Other
// data replaces none, is used after a leader change, and is shown nowhere.
func TestBootstrapData(t *testing.T) {
	t.Parallel()
	box, err := secret.NewBox(secret.NewKey())
	require.NoError(t, err)
	w := newWorld(t, setup{config: joinConfig(0), opts: server.Options{Secrets: box}})
	api := w.admin()
	require.NoError(t, w.updateWeb(api, 2, "token-1"))
	w.awaitBootstrapData("token-1", "token-1")
	before := w.getGroup(api, "web")

	require.NoError(t, w.updateWeb(api, 2, "token-2"))
	require.NoError(t, w.updateWeb(api, 3, ""))
	w.awaitBootstrapData("token-1", "token-1", "token-2")
	after := w.getGroup(api, "web")
	require.Equal(t, before.GetInfraHash(), after.GetInfraHash())
	require.Equal(t, before.GetRuntimeHash(), after.GetRuntimeHash())
	require.Zero(t, after.GetStale())
	require.Zero(t, w.countEvents(nstance.EventDeleteRequested))
	require.Equal(t, 2, w.countBootstrapData())

	opts := server.Options{Secrets: box}
	w.startSuccessor(opts)
	api = w.admin()
	require.NoError(t, w.updateWeb(api, 4, ""))
	w.awaitBootstrapData("token-1", "token-1", "token-2", "token-2")

	t.Run("it is shown nowhere, and sealed in storage", func(t *testing.T) {
		requireSecret := func(text, what string) {
			t.Helper()
			require.NotContains(t, text, "token-", what)
		}
		for entry, err := range w.store.List(t.Context(), "", "") {
			require.NoError(t, err)
			obj, err := w.store.Get(t.Context(), entry.Key)
			require.NoError(t, err)
			requireSecret(string(obj.Data), entry.Key)
		}
		plans, err := api.Plan(t.Context(), &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{Group: "web", BootstrapData: []byte("token-3")}})
		require.NoError(t, err)
		require.Equal(t, 2, w.countBootstrapData(), "a plan stores nothing")
		groups, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		events, err := api.ListEvents(t.Context(), &apiv1.ListEventsRequest{})
		require.NoError(t, err)
		conf, err := api.GetConfig(t.Context(), &apiv1.GetConfigRequest{})
		require.NoError(t, err)
		for _, m := range []proto.Message{plans, groups, events, conf} {
			requireSecret(protojson.Format(m), string(m.ProtoReflect().Descriptor().Name()))
		}
		w.mu.Lock()
		journal, err := json.Marshal(w.events)
		w.mu.Unlock()
		require.NoError(t, err)
		require.Contains(t, string(journal), "bootstrap_data", "that it was changed is journalled")
		requireSecret(string(journal), "journal")
		_, err = api.GetRecord(t.Context(), &apiv1.GetRecordRequest{Key: layout.BootstrapKey(zone, strings.Repeat("0", 64))})
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
	})
}

// TestBootstrapDataOfInstances: an instance on demand has its own data, or its group's. A
// repeated request with other data is the same request, also if the next leader makes the
// machine.
func TestBootstrapDataOfInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: joinConfig(0)})
	api := w.admin()
	create := func(id, data string) error {
		_, err := api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: id, Group: "web", BootstrapData: []byte(data)})
		return err
	}
	none := newRequestID(t)
	requireFieldError(t, create(none, ""), nstance.Invalid, "bootstrap_data")

	own := newRequestID(t)
	require.NoError(t, create(own, "own-1"))
	w.awaitEvent(nstance.EventCreated, nstance.InstanceID(own))
	require.NoError(t, create(own, "own-2"))
	require.Equal(t, "own-1", w.bootstrapDataOf(nstance.InstanceID(own)))
	require.Equal(t, 1, w.countBootstrapData(), "what is not used is not stored")

	_, err := api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", BootstrapData: []byte("group-1")})
	require.NoError(t, err)
	require.NoError(t, create(none, ""))
	w.awaitEvent(nstance.EventCreated, nstance.InstanceID(none))
	require.Equal(t, "group-1", w.bootstrapDataOf(nstance.InstanceID(none)))

	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1, Code: nstance.Unavailable})
	late := newRequestID(t)
	require.NoError(t, create(late, "late-1"))
	require.NoError(t, w.stopServer())
	w.cloud.ClearFaults()
	w.startSuccessor(server.Options{})
	api = w.admin()
	require.NoError(t, create(late, "late-2"))
	require.Eventually(t, func() bool { _, made := w.cloud.Spec(nstance.InstanceID(late)); return made }, eventually, time.Millisecond)
	require.Equal(t, "late-1", w.bootstrapDataOf(nstance.InstanceID(late)))
}

func TestBootstrapDataRefusals(t *testing.T) {
	t.Parallel()
	t.Run("the user data does not name it", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 0})
		api := w.admin()
		data := []byte("token-1")
		_, err := api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: newRequestID(t), Group: "web", BootstrapData: data})
		requireFieldError(t, err, nstance.Invalid, "bootstrap_data")
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "web", BootstrapData: data})
		requireFieldError(t, err, nstance.Invalid, "bootstrap_data")
		_, err = api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1), BootstrapData: data})
		requireFieldError(t, err, nstance.Invalid, "bootstrap_data")
		require.ErrorContains(t, err, "{{.BootstrapData}}")
		require.Zero(t, w.countBootstrapData())
	})
	t.Run("the user data names it, and there is none", func(t *testing.T) {
		store := storage.NewMemory()
		w := newWorld(t, setup{store: store, config: joinConfig(1)})
		api := w.admin()
		h := w.awaitHold(api, "web", plan.HoldPending)
		require.Contains(t, h.GetReason(), "bootstrap_data")
		require.Empty(t, w.cloud.Machines())
		_, err := api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(1)})
		requireFieldError(t, err, nstance.Invalid, "bootstrap_data")

		_, err = api.CreateGroup(t.Context(), &apiv1.CreateGroupRequest{Group: "batch", Template: "vm", Size: proto.Int32(0)})
		require.NoError(t, err, "its instances may bring their own")
		id := newRequestID(t)
		_, err = api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: id, Group: "batch", BootstrapData: []byte("own")})
		require.NoError(t, err)
		w.awaitEvent(nstance.EventCreated, nstance.InstanceID(id))
		require.Equal(t, "own", w.bootstrapDataOf(nstance.InstanceID(id)))
		_, err = api.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "batch", Size: proto.Int32(1)})
		requireFieldError(t, err, nstance.Invalid, "bootstrap_data")

		require.NoError(t, w.updateWeb(api, 1, "token"))
		w.awaitBootstrapData("token")
	})
	t.Run("it is too long", func(t *testing.T) {
		w := newWorld(t, setup{config: joinConfig(0)})
		api := w.admin()
		err := w.updateWeb(api, 0, strings.Repeat("x", 64<<10+1))
		requireFieldError(t, err, nstance.Invalid, "bootstrap_data")
		require.NoError(t, w.updateWeb(api, 0, strings.Repeat("x", 64<<10)))
	})
}

// TestBootstrapDataMultipart: with the user data of docs/cluster-api.md a machine gets its
// nonce in a script, and its bootstrap data in a part of their own, unchanged.
func TestBootstrapDataMultipart(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join("..", "docs", "cluster-api.md"))
	require.NoError(t, err)
	found := regexp.MustCompile("(?s)```jsonc\n(.*?)```").FindSubmatch(doc)
	require.NotNil(t, found)
	var documented struct {
		Templates map[string]struct {
			UserData json.RawMessage `json:"userdata"`
		} `json:"templates"`
	}
	require.NoError(t, json.Unmarshal(found[1], &documented))
	const data = "## template: jinja\n#cloud-config\nruncmd:\n- kubeadm join --config '{{ ds.meta_data }}'\n"
	w := newWorld(t, setup{config: configWithTemplate(0, `"userdata": `+string(documented.Templates["node"].UserData)+`, `, "")})
	require.NoError(t, w.updateWeb(w.admin(), 1, data))
	w.awaitMachinesMatching(1, func(nstance.MachineSpec) bool { return true })
	spec := w.webSpecs()[0]

	message, err := mail.ReadMessage(bytes.NewReader(spec.UserData))
	require.NoError(t, err)
	kind, params, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	require.NoError(t, err)
	require.Equal(t, "multipart/mixed", kind)
	var parts []string
	for reader := multipart.NewReader(message.Body, params["boundary"]); ; {
		part, err := reader.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		text, err := io.ReadAll(part)
		require.NoError(t, err)
		parts = append(parts, part.Header.Get("Content-Type")+"\n"+string(text))
	}
	require.Len(t, parts, 2)
	require.Regexp(t, `^text/x-shellscript\n#!/bin/sh\n(.*\n)*printf %s '[\w-]+\.[\w-]+\.[\w-]+' > `, parts[0])
	require.Contains(t, parts[0], "--provider-id=nstance:///"+string(spec.ID)+" ")
	require.Equal(t, "text/plain\n"+data, parts[1])
}

// TestLongBootstrapData: what a bootstrap provider makes for a control plane is longer than
// what a cloud takes. It is compressed for cloud-init, and refused with what to do where it
// may be read by something else.
func TestLongBootstrapData(t *testing.T) {
	t.Parallel()
	const limit = 16 << 10 // of the provider
	long := strings.Repeat("- {path: /etc/kubernetes/pki/ca.crt, content: certificate}\n", 1000)
	t.Run("compressed", func(t *testing.T) {
		w := newWorld(t, setup{config: configWithTemplate(0, `"userdata": {"content": "#cloud-config\n# {{.Nonce}}\n{{.BootstrapData}}"}, `, "")})
		require.NoError(t, w.updateWeb(w.admin(), 1, long))
		w.awaitMachinesMatching(1, func(s nstance.MachineSpec) bool { return len(s.UserData) <= limit })
		unzipped, err := gzip.NewReader(bytes.NewReader(w.webSpecs()[0].UserData))
		require.NoError(t, err)
		text, err := io.ReadAll(unzipped)
		require.NoError(t, err)
		require.Regexp(t, `^#cloud-config\n# [\w-]+\.[\w-]+\.[\w-]+\n- \{path`, string(text))
		require.True(t, strings.HasSuffix(string(text), "\n"+long))
	})
	t.Run("refused", func(t *testing.T) {
		w := newWorld(t, setup{config: joinConfig(0)})
		require.NoError(t, w.updateWeb(w.admin(), 1, long))
		failed := w.awaitEvent(nstance.EventCreateFailed, "")
		require.Equal(t, nstance.Invalid, failed.Code)
		require.Contains(t, failed.Error, "bytes are more than the permitted 16384")
		require.Contains(t, failed.Error, "write it as #cloud-config")
	})
}
