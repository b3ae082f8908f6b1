package admin

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// leastTurn is what passes at least before a certificate is renewed because the
// server asks for it.
const leastTurn = time.Second

// turnAfter returns when to renew a certificate that is to be renewed within that
// time: others are asked at the same moment.
func turnAfter(within time.Duration) time.Duration {
	within = min(max(within, 2*leastTurn), time.Hour)
	return leastTurn + rand.N(within-leastTurn)
}

// connectAsked is connect after the server has asked for the successor of a
// certificate chain, whose key is being replaced; nil: it has not. Unless
// another process has done it, the certificate is renewed. Should that fail, the
// one at hand is good until the server asks again.
func (r *remote) connectAsked(ctx context.Context, asked [][]byte) (*client, error) {
	c, err := r.connect(ctx)
	if err != nil || asked == nil || !slices.EqualFunc(asked, c.id.Chain, bytes.Equal) {
		return c, err
	}
	next, err := r.turned(ctx, c)
	if err != nil {
		r.p.stderr.note("warning: certificate not renewed, though its key is being replaced: %v", err)
		return c, nil
	}
	c.close()
	return next, nil
}

// turned returns a connection with the successor of c's certificate.
func (r *remote) turned(ctx context.Context, c *client) (*client, error) {
	dir, err := r.p.identityDir(r.dir)
	if err != nil {
		return nil, err
	}
	id, err := renew(ctx, c, dir, r.p.now)
	if err != nil {
		return nil, err
	}
	return r.open(c.addr, id)
}
