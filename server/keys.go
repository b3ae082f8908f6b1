package server

import (
	"crypto/tls"
	"sync"
	"time"
)

// certLife is how long the server's own certificate lives. It exists only in
// memory and is made anew by each process.
const certLife = 24 * time.Hour

// serverCert is this process's own certificate, made anew at two thirds of its
// life.
type serverCert struct {
	s     *Server
	mu    sync.Mutex
	cert  *tls.Certificate
	renew time.Time
}

// get returns the certificate for a handshake.
func (c *serverCert) get() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.s.opts.Now()
	if c.cert != nil && now.Before(c.renew) {
		return c.cert, nil
	}
	conf := c.s.config()
	cert, err := c.s.keys.Identity.Server(conf.Shard.ID, conf.Cluster.ID, certLife, now)
	if err != nil {
		return nil, err
	}
	c.cert, c.renew = cert, now.Add(certLife*2/3)
	return cert, nil
}
