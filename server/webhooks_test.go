package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/webhook"
	"github.com/nstance-go/nstance/storage"
)

// A hookReceiver receives signed messages.
type hookReceiver struct {
	*testing.T
	url      string
	messages chan webhook.Message
}

func newHookReceiver(t *testing.T) *hookReceiver {
	h := &hookReceiver{T: t, messages: make(chan webhook.Message, 100)}
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m webhook.Message
		if r.Header.Get(webhook.SignatureHeader) == webhook.Sign([]byte("s3cret"), r.Header.Get(webhook.TimestampHeader), body) && json.Unmarshal(body, &m) == nil {
			h.messages <- m
		}
	}))
	t.Cleanup(hook.Close)
	h.url = hook.URL
	return h
}

// config returns the configuration with this webhook, whose secret is in store.
func (h *hookReceiver) config(store storage.Store) string {
	require.NoError(h, vault.New(store, nil).PutIfAbsent(h.Context(), "pager", []byte("s3cret")))
	with := fmt.Sprintf(`"webhooks": {"pager": {"url": %q, "secret": "pager"}}, "templates"`, h.url)
	return strings.Replace(fmt.Sprintf(configuration, "", 1), `"templates"`, with, 1)
}

// TestWebhooks: a reclaim is told, signed, by whatever webhooks the configuration in force has.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	hook := newHookReceiver(t)
	w := newWorld(t, setup{webSize: 1})
	w.conf.set(hook.config(w.store), nil)
	_, err := w.server.Refresh(t.Context())
	require.NoError(t, err)

	lost, _ := w.reclaimed("e1")
	var kinds []webhook.Kind
	for range 3 {
		m := receive(t, hook.messages)
		require.Equal(t, []string{"c1", "s1", "default", "web", string(lost)}, []string{string(m.Cluster), string(m.Shard), string(m.Tenant), string(m.Group), string(m.Instance)})
		require.Regexp(t, `^c1/s1/1/\d+$`, m.ID)
		kinds = append(kinds, m.Kind)
	}
	require.Equal(t, []webhook.Kind{webhook.Notice, webhook.DrainStarted, webhook.MissedDeadline}, kinds)
	body, err := io.ReadAll(w.getPage("/metrics").Body)
	require.NoError(t, err)
	require.Contains(t, string(body), `nstance_webhook_messages_total{result="sent",webhook="pager"}`)
	require.Zero(t, w.countEvents(nstance.EventAlarm))
}

// TestStandingNoticesAfterFailover: a new leader sends each standing notice once, whether or
// not the agent repeats it.
func TestStandingNoticesAfterFailover(t *testing.T) {
	t.Parallel()
	hook := newHookReceiver(t)
	store := storage.NewMemory()
	config := hook.config(store)
	w := newWorld(t, setup{store: store, config: config})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	n := reclaimNotice("e1", time.Hour)
	k.awaitAck(k.sendNotice(n))
	first := receive(t, hook.messages)
	require.Equal(t, webhook.Notice, first.Kind)
	require.Equal(t, &webhook.Pool{InstanceType: "small", Zone: "sim-a", Market: nstance.Spot}, first.Pool)
	require.Equal(t, webhook.DrainStarted, receive(t, hook.messages).Kind)
	require.NoError(t, w.stopServer())

	next := newWorld(t, setup{store: store, provider: w.cloud, config: config})
	m := receive(t, hook.messages)
	require.Equal(t, []string{"notice", "default", "web", string(id), "e1"}, []string{string(m.Kind), string(m.Tenant), string(m.Group), string(m.Instance), m.Notice.EventID})
	require.Equal(t, "c1/s1/2/standing-1", m.ID)
	require.NotEmpty(t, m.Reason, "it says that the notice is not new")
	k = (&client{w: next, key: k.client.key, cert: k.client.cert}).connect()
	k.awaitAck(k.sendReport())
	k.awaitAck(k.sendNotice(n))
	n.Cancelled = true
	k.awaitAck(k.sendNotice(n))
	require.Equal(t, webhook.DrainEnded, receive(t, hook.messages).Kind)
	require.Zero(t, next.countEvents(nstance.EventNoticeReceived), "the journal has it from the leader before")
}
