package server

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/keyring"
)

// tendKeys does what takes time while keys are being rotated. What fails is repeated by
// the next call. What hangs takes no time of the rest: a key whose use is not recorded is
// destroyed.
func (t *term) tendKeys(ctx context.Context) {
	for _, step := range []func(context.Context){t.operators.RecheckStreams, t.settleSuccessors, t.claimWorkload} {
		ctx, cancel := t.bound(ctx)
		step(ctx)
		cancel()
	}
}

func (t *term) settleSuccessors(ctx context.Context) {
	if _, rotating := t.server.keys.Retired(keyring.Identity); rotating {
		t.records.SettleSuccessors(ctx)
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
// this shard have expired: those that it may still sign by the configuration in force, and
// those of the log, which may have been issued for longer.
func (t *term) claimWorkload(ctx context.Context) {
	k, rotating := t.server.keys.Retired(keyring.Workload)
	if !rotating {
		return
	}
	until := k.Since.Add(keyring.Settle + longestValidity(t.server.config.InForce()))
	if until = later(until, k.UsedUntil); t.certsRead != k.ID {
		last, err := t.agents.LastExpiry(ctx, k.ID, until)
		switch {
		case err != nil:
			t.log.Warn("certificates of the retired workload key not read from the log", "code", nstance.CodeOf(err), "err", err)
		case t.server.opts.Now().After(k.Since.Add(keyring.Settle)): // it signs no more
			t.certsRead = k.ID
		}
		until = last
	}
	if !k.UsedUntil.Before(until.Truncate(time.Second)) {
		return
	}
	if err := t.server.keys.Ring.UseUntil(ctx, keyring.Workload, k.ID, until); err != nil {
		t.log.Warn("expiry of the retired workload key not recorded", "code", nstance.CodeOf(err), "err", err)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
