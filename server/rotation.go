package server

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/keyring"
)

// tendKeys does what takes time while keys are being rotated. What fails is repeated by
// the next call.
func (t *term) tendKeys(ctx context.Context) {
	ctx, cancel := t.bound(ctx)
	defer cancel()
	t.operators.RecheckStreams(ctx)
	if _, rotating := t.server.keys.Retired(keyring.Identity); rotating {
		t.records.SettleSuccessors(ctx)
	}
	if k, rotating := t.server.keys.Retired(keyring.Workload); rotating {
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

// claimWorkload keeps a retired workload key trusted until certificates for files of
// this shard have expired.
func (t *term) claimWorkload(ctx context.Context, k keyring.KeyEntry) {
	until := k.Since.Add(keyring.Settle + longestValidity(t.server.config.InForce()))
	if !k.UsedUntil.Before(until.Truncate(time.Second)) {
		return
	}
	if err := t.server.keys.Ring.UseUntil(ctx, keyring.Workload, k.ID, until); err != nil {
		t.log.Warn("expiry of the retired workload key not recorded", "code", nstance.CodeOf(err), "err", err)
	}
}
