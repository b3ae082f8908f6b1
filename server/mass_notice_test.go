package server_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// An askedCloud records the questions about single machines. Once it is silent it does
// not answer them.
type askedCloud struct {
	*simcloud.Cloud
	mu     sync.Mutex
	silent bool
	asked  map[nstance.InstanceID]bool
}

func (c *askedCloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	c.mu.Lock()
	silent := c.silent
	if silent {
		c.asked[id] = true
	}
	c.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nstance.Machine{}, ctx.Err()
	}
	return c.Cloud.Get(ctx, id)
}

func (c *askedCloud) hasBeenAsked(ids ...nstance.InstanceID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if !c.asked[id] {
			return false
		}
	}
	return true
}

// TestMassNotice: when most of a group is under notice, the provider is asked about each
// member. Replacements and drains do not wait for its answers.
func TestMassNotice(t *testing.T) {
	t.Parallel()
	inner := simcloud.New(nil)
	t.Cleanup(inner.Close)
	cloud := &askedCloud{Cloud: inner, asked: map[nstance.InstanceID]bool{}}
	w := newWorld(t, setup{webSize: 3, provider: cloud})
	w.cloud = inner
	ids := w.awaitMachines(3)
	var agents []*agentSession
	for _, id := range ids {
		agents = append(agents, w.connectReady(id))
	}
	cloud.mu.Lock()
	cloud.silent = true
	cloud.mu.Unlock()

	agents[0].sendNotice(reclaimNotice("first", 2*time.Minute))
	w.awaitEvent(nstance.EventDrainStarted, ids[0])
	require.False(t, cloud.hasBeenAsked(ids[0]), "one of three is no reason to ask")
	require.Zero(t, w.countEvents(nstance.EventAlarm))

	for i, k := range agents[1:] {
		k.sendNotice(reclaimNotice([]string{"second", "third"}[i], 2*time.Minute))
	}
	require.Contains(t, w.awaitEvent(nstance.EventAlarm, "").Reason, "under notice at once")
	require.Eventually(t, func() bool { return cloud.hasBeenAsked(ids[:2]...) || cloud.hasBeenAsked(ids[0], ids[2]) }, eventually, time.Millisecond,
		"those that were under notice when the alarm was raised")
	for _, id := range ids {
		w.awaitEvent(nstance.EventDrainStarted, id)
	}
	require.Eventually(t, func() bool { return w.countEvents(nstance.EventReplacementRequested) == 3 }, eventually, time.Millisecond,
		"replacements do not wait for the provider's answers")
}
