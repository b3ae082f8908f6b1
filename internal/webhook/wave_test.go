package webhook_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/webhook"
)

// of returns the notice numbered seq for another machine.
func of(seq int, group nstance.GroupID, id string, deadline time.Time) nstance.Event {
	e := noticed(seq)
	e.Group, e.Instance, e.Time = group, nstance.InstanceID(id), e.Time.Add(time.Duration(seq)*time.Second)
	n := *e.Notice
	n.Deadline, e.Notice = deadline, &n
	return e
}

func TestWaveIsOneMessage(t *testing.T) {
	r := newReceiver(t, nil)
	end := r.endpoint()
	end.Gather = 200 * time.Millisecond
	g := newRig(t, map[string]webhook.Endpoint{"chat": end}, r)
	deadline := noticed(1).Notice.Deadline
	for i := 1; i <= 12_000; i++ {
		group, id := nstance.GroupID("web"), "web1"
		if i > 11_000 {
			group, id = "batch", fmt.Sprintf("batch%d", i)
		}
		g.sender.Event(of(i, group, id, deadline.Add(-time.Duration(i%7)*time.Second)))
	}
	rehearsed := of(20_000, "web", "web1", deadline)
	rehearsed.Notice.Source = notice.RehearsalSource
	g.sender.Event(rehearsed)
	loss := of(20_001, "web", "web1", deadline)
	loss.Type, loss.Notice = nstance.EventMachineGone, nil
	g.sender.Event(loss)
	g.run()

	var wave, alone, lost webhook.Message
	require.NoError(t, json.Unmarshal([]byte(r.next(t).body), &wave))
	require.Equal(t, "prod/eu1a/7/1", wave.ID, "the message is that of the first event")
	require.Equal(t, 12_000, wave.Wave.Count)
	require.Equal(t, of(12_000, "", "", deadline).Time, wave.Wave.Last)
	require.Equal(t, deadline.Add(-6*time.Second), *wave.Wave.Deadline, "the earliest")
	require.Equal(t, []webhook.GroupCount{{Tenant: "default", Group: "web", Count: 11_000}, {Tenant: "default", Group: "batch", Count: 1_000}}, wave.Wave.Groups)
	require.Equal(t, []webhook.PoolCount{{Pool: webhook.Pool{InstanceType: "large", Zone: "a", Market: nstance.Spot}, Count: 10_000}}, wave.Wave.Pools, "of the first 10,000")
	require.Len(t, wave.Wave.Instances, 100)
	require.Equal(t, "chat sent", g.result())

	require.NoError(t, json.Unmarshal([]byte(r.next(t).body), &alone))
	require.True(t, alone.Rehearsal, "is not counted as one")
	require.Nil(t, alone.Wave, "one event needs no counts")
	require.NoError(t, json.Unmarshal([]byte(r.next(t).body), &lost))
	require.Equal(t, webhook.Loss, lost.Kind)

	g.sender.Event(of(30_000, "web", "web1", deadline))
	var later webhook.Message
	require.NoError(t, json.Unmarshal([]byte(r.next(t).body), &later))
	require.Equal(t, "prod/eu1a/7/30000", later.ID, "what comes after a message is in the next one")
}

// TestGatheringHasAnEnd: events that keep coming put nothing off.
func TestGatheringHasAnEnd(t *testing.T) {
	r := newReceiver(t, nil)
	end := r.endpoint()
	end.Gather = 50 * time.Millisecond
	g := newRig(t, map[string]webhook.Endpoint{"chat": end}, r)
	g.run()
	var ids []string
	for i := 1; len(ids) < 2; i++ {
		g.sender.Event(noticed(i))
		select {
		case got := <-r.requests:
			var m webhook.Message
			require.NoError(t, json.Unmarshal([]byte(got.body), &m))
			ids = append(ids, m.ID)
		case <-time.After(time.Millisecond): // the events' pace
		}
	}
	require.NotEqual(t, ids[0], ids[1])
}

func TestHeaders(t *testing.T) {
	r := newReceiver(t, nil)
	end := r.endpoint()
	end.Headers = map[string]string{"X-Team": "platform", webhook.IDHeader: "mine", webhook.TimestampHeader: "1"}
	end.SecretHeaders = map[string]string{"Authorization": "pager"}
	broken := r.endpoint()
	broken.SecretHeaders = map[string]string{"Authorization": "two\nlines"}
	g := newRig(t, map[string]webhook.Endpoint{"chat": end}, r)
	g.run()
	g.sender.Event(noticed(1))
	got := r.next(t)
	require.Equal(t, "platform", got.header.Get("X-Team"))
	require.Equal(t, "prod/eu1a/7/1", got.header.Get(webhook.IDHeader), "what the sender says of itself")
	require.NotEqual(t, "1", got.header.Get(webhook.TimestampHeader))
	require.Equal(t, "key of pager", got.header.Get("Authorization"))
	require.Equal(t, "chat sent", g.result())
	require.Empty(t, g.log.String())

	g = newRig(t, map[string]webhook.Endpoint{"chat": broken}, r)
	g.run()
	g.sender.Event(noticed(2))
	require.Equal(t, "chat failed", g.result())
	g.stop()
	require.Contains(t, g.log.String(), "cannot be the value of a header")
	require.NotContains(t, g.log.String(), "key of", "the secret")
	require.Empty(t, r.requests)
}
