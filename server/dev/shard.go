package dev

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/server/web"
	"github.com/nstance-go/nstance/storage"
)

// Limits of starting up.
const (
	startLimit = 20 * time.Second
	again      = 50 * time.Millisecond // between two looks at what has no event
)

// A shard is everything that runs.
type shard struct {
	o      *Options
	home   *home
	story  *story
	conf   source
	bind   string // where the status page is to listen
	http   string // where it listens
	store  storage.Store
	cloud  *local.Cloud
	server *server.Server
	keys   *registration.Keys

	wg   sync.WaitGroup
	stop context.CancelFunc // ends the server
}

// newShard makes everything and starts nothing.
func newShard(ctx context.Context, o *Options, h *home, s *story) (_ *shard, err error) {
	w := &shard{o: o, home: h, story: s, stop: func() {}}
	if w.bind, err = free(ctx, o.HTTP); err != nil {
		return nil, err
	}
	text, err := configuration(o, w.bind, 1)
	if err != nil {
		return nil, err
	}
	w.conf.set(text)
	if w.store, err = storage.OpenDir(h.storageDir(), nil); err != nil {
		return nil, err
	}
	w.cloud, err = local.New(&local.Options{
		Command: o.Machine, Dir: h.machinesDir(), Protocol: o.Protocol, Stderr: h.machines, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	w.server, err = server.New(ctx, w.store, w.cloud, w.conf.read, &server.Options{Cache: h.cacheFile(), Journal: s.tell, Log: o.Log})
	if err != nil {
		return nil, errors.Join(err, w.cloud.Close())
	}
	return w, nil
}

// start runs the server and returns once it leads and an administrator's
// identity is saved. The context returned ends when the server does.
func (w *shard) start(ctx context.Context) (context.Context, error) {
	work, end := context.WithCancelCause(ctx)
	w.stop = func() { end(nil) }
	w.wg.Go(func() {
		if err := w.server.Run(work); err != nil {
			end(err)
			return
		}
		end(nstance.Errorf(nstance.Internal, "the server has ended"))
	})
	limited, cancel := context.WithTimeoutCause(work, startLimit, nstance.Errorf(nstance.Unavailable, "the server was not ready within %s", startLimit))
	defer cancel()
	if err := w.server.Ready(limited); err != nil {
		return work, context.Cause(limited)
	}
	w.http = w.server.Addresses().HTTP
	keys, err := registration.Bootstrap(limited, vault.New(w.store, nil), time.Now())
	if err != nil {
		return work, err
	}
	w.keys = keys
	return work, w.login(limited)
}

// login registers an administrator, as nstance-admin login would.
func (w *shard) login(ctx context.Context) error {
	now, addrs := time.Now(), w.server.Addresses()
	nonce, err := w.keys.Nonces.Mint("", registration.Claims{
		Kind: nstance.RoleAdmin, Subject: string(clusterID), Cluster: clusterID, Shard: shardID, Tenant: nstance.DefaultTenant,
		JTI: rand.Text(), NotBefore: now.Add(-time.Minute), Expiry: now.Add(time.Hour),
	})
	if err != nil {
		return err
	}
	login := &admin.LoginOptions{
		Nonce: nonce, CA: w.keys.Identity.CertPEM(), Shard: shardID, Replace: true,
		Registration: []string{addrs.Registration}, Servers: []string{addrs.Operator},
	}
	for {
		_, err = admin.Login(ctx, w.home.identityDir(), login)
		if nstance.CodeOf(err) != nstance.Unavailable { // the server may not lead yet
			return err
		}
		if !pause(ctx, again) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// pause waits, and reports whether ctx has not ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// close ends the server, then the machines, and waits for all of them.
func (w *shard) close() error {
	w.stop()
	w.wg.Wait()
	return w.cloud.Close()
}

// status fetches what the status page shows, as anybody would.
func (w *shard) status(ctx context.Context) (web.Status, error) {
	var s web.Status
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.http+"/status.json", nil)
	if err != nil {
		return s, nstance.Errorf(nstance.Invalid, "%w", err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req) // and no proxy
	if err != nil {
		return s, nstance.Errorf(nstance.Unavailable, "%w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, nstance.Errorf(nstance.Unavailable, "the status page answers %s", resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return s, nstance.Errorf(nstance.Internal, "the status page: %w", err)
	}
	return s, nil
}

// machines returns how many machines the cloud has.
func (w *shard) machines(ctx context.Context) (int, error) {
	n := 0
	for _, err := range w.cloud.List(ctx, nstance.Owner{Installation: w.keys.Installation, Cluster: clusterID, Shard: shardID}) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}
