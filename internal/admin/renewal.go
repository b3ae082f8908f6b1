package admin

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// minRenewalDelay is the shortest delay before a certificate is renewed because the
// server asks for it.
const minRenewalDelay = time.Second

// renewalDelay returns the random delay before a certificate is renewed that is to
// be renewed within that time: other clients are asked at the same moment.
func renewalDelay(within time.Duration) time.Duration {
	within = min(max(within, 2*minRenewalDelay), time.Hour)
	return minRenewalDelay + rand.N(within-minRenewalDelay)
}

// connectRenewed is connect after the server has asked to renew the certificate
// chain asked, whose key is being replaced; nil: it has not. The certificate is
// renewed unless another process has done it. After a failure the old one is used
// until the server asks again.
func (r *remote) connectRenewed(ctx context.Context, asked [][]byte) (*client, error) {
	c, err := r.connect(ctx)
	if err != nil || asked == nil || !slices.EqualFunc(asked, c.id.Chain, bytes.Equal) {
		return c, err
	}
	next, err := r.renewConnection(ctx, c)
	if err != nil {
		r.stderr.note("warning: certificate not renewed, though its key is being replaced: %v", err)
		return c, nil
	}
	c.close()
	return next, nil
}

// renewConnection returns a connection with the successor of c's certificate.
func (r *remote) renewConnection(ctx context.Context, c *client) (*client, error) {
	dir, err := r.env.identityDir(r.dir)
	if err != nil {
		return nil, err
	}
	id, err := renew(ctx, c, dir, time.Now)
	if err != nil {
		return nil, err
	}
	return r.open(c.addr, id)
}
