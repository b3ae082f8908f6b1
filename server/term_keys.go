package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// keysChanged ends the sessions and streams of certificates whose authority is
// gone, and asks agents and watchers to renew those whose authority is being
// retired.
func (t *term) keysChanged() {
	identity := t.server.keys.Identity
	t.agents.KeysChanged()
	t.streams.end(func(id nstance.Identity) error {
		if identity.Trusts(id.Issuer) {
			return nil
		}
		return ports.ErrUntrusted
	})
	t.events.publishToAll(watched{renew: true}) // by the feeds, since a stream has one sender
	t.groupFeeds.publishToAll(groupChange{renew: true})
}

// mustRenew reports whether the authority of the caller's certificate is being
// retired.
func (c caller) mustRenew() bool { return c.Issuer != c.term.server.keys.Identity.Issuer() }

func (c caller) renewal() *apiv1.RenewalRequest {
	return &apiv1.RenewalRequest{Within: durationpb.New(c.term.agents.RenewalSpread())}
}

func (c caller) askWatcher() *apiv1.WatchInstanceEventsResponse {
	return &apiv1.WatchInstanceEventsResponse{Message: &apiv1.WatchInstanceEventsResponse_Renewal{Renewal: c.renewal()}}
}

func (c caller) askGroupWatcher() *apiv1.WatchGroupsResponse {
	return &apiv1.WatchGroupsResponse{Message: &apiv1.WatchGroupsResponse_Renewal{Renewal: c.renewal()}}
}

// watchMessages returns what an item comes to on the wire. Whoever begins to watch
// is asked once the snapshot is complete: then no later request is missed.
func (c caller) watchMessages(item feed.Item[watched]) []*apiv1.WatchInstanceEventsResponse {
	switch {
	case item.Value.renew:
		return []*apiv1.WatchInstanceEventsResponse{c.askWatcher()}
	case item.Kind == feed.Synced && c.mustRenew():
		return []*apiv1.WatchInstanceEventsResponse{watchMessage(item), c.askWatcher()}
	}
	return []*apiv1.WatchInstanceEventsResponse{watchMessage(item)}
}

// groupWatchMessages is watchMessages for groups.
func (c caller) groupWatchMessages(item feed.Item[groupChange]) []*apiv1.WatchGroupsResponse {
	switch {
	case item.Value.renew:
		return []*apiv1.WatchGroupsResponse{c.askGroupWatcher()}
	case item.Kind == feed.Synced && c.mustRenew():
		return []*apiv1.WatchGroupsResponse{c.term.groupWatchMessage(item), c.askGroupWatcher()}
	}
	if m := c.term.groupWatchMessage(item); m != nil {
		return []*apiv1.WatchGroupsResponse{m}
	}
	return nil
}

// tendKeys does what takes its time while keys are being rotated. What it does
// not get done is done at its next call.
func (t *term) tendKeys(ctx context.Context) {
	ctx, cancel := t.bound(ctx)
	defer cancel()
	t.recheckStreams(ctx)
	if _, rotating := t.server.keys.Retired(registration.Identity); rotating {
		t.records.SettleSuccessors(ctx)
	}
	if k, rotating := t.server.keys.Retired(registration.Workload); rotating {
		t.claimWorkload(ctx, k)
	}
}

// longestValidity is how long a certificate for a file may be valid.
func longestValidity(c *config.Config) (longest time.Duration) {
	for _, cert := range c.Certificates {
		longest = max(longest, cert.Validity)
	}
	return longest
}

// claimWorkload keeps a retired workload key trusted for as long as a
// certificate for a file that this shard may have been given lasts.
func (t *term) claimWorkload(ctx context.Context, k registration.KeyEntry) {
	until := k.Since.Add(registration.Settle + longestValidity(t.server.config()))
	if !k.UsedUntil.Before(until.Truncate(time.Second)) {
		return
	}
	if err := t.server.keys.Ring.UseUntil(ctx, registration.Workload, k.ID, until); err != nil {
		t.log.Warn("not noted how long the workload key is in use", "code", nstance.CodeOf(err), "err", err)
	}
}
