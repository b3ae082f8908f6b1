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
)

// TestWebhooks: a reclaim is told, signed, by whatever webhooks the configuration in force has.
func TestWebhooks(t *testing.T) {
	told := make(chan webhook.Message, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m webhook.Message
		if r.Header.Get(webhook.SignatureHeader) == webhook.Sign([]byte("s3cret"), r.Header.Get(webhook.TimestampHeader), body) && json.Unmarshal(body, &m) == nil {
			told <- m
		}
	}))
	t.Cleanup(hook.Close)
	w := newWorld(t, setup{webSize: 1})
	require.NoError(t, vault.New(w.store, nil).PutIfAbsent(t.Context(), "pager", []byte("s3cret")))
	with := fmt.Sprintf(`"webhooks": {"pager": {"url": %q, "secret": "pager"}}, "templates"`, hook.URL)
	w.conf.set(strings.Replace(fmt.Sprintf(configuration, "", 1), `"templates"`, with, 1), nil)
	_, err := w.server.Refresh(t.Context())
	require.NoError(t, err)

	lost, _ := w.reclaimed("e1")
	var kinds []webhook.Kind
	for range 3 {
		select {
		case m := <-told:
			require.Equal(t, []string{"c1", "s1", "default", "web", string(lost)}, []string{string(m.Cluster), string(m.Shard), string(m.Tenant), string(m.Group), string(m.Instance)})
			require.Regexp(t, `^c1/s1/1/\d+$`, m.ID)
			kinds = append(kinds, m.Kind)
		case <-time.After(eventually):
			require.FailNow(t, "too few messages", "%v", kinds)
		}
	}
	require.Equal(t, []webhook.Kind{webhook.Notice, webhook.DrainStarted, webhook.MissedDeadline}, kinds)
	body, err := io.ReadAll(w.getPage("/metrics").Body)
	require.NoError(t, err)
	require.Contains(t, string(body), `nstance_webhook_messages_total{result="sent",webhook="pager"}`)
	require.Zero(t, w.countEvents(nstance.EventAlarm))
}
