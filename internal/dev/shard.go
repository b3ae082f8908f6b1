package dev

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage/lease"
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
	depot  *depot
	cloud  cloud
	server *server.Server // nil in scenarios with two servers
	pair   *pair          // instead, in those
	stock  *stock         // in front of the cloud, in scenario demo; else nil
	keys   *keyring.Keys

	wg   sync.WaitGroup
	stop context.CancelFunc // ends the server
}

// newShard makes everything and starts nothing.
func newShard(ctx context.Context, o *Options, h *home, s *story) (_ *shard, err error) {
	w := &shard{o: o, home: h, story: s, stop: func() {}}
	if w.bind, err = free(ctx, o.HTTP); err != nil {
		return nil, err
	}
	if w.depot, err = openDepot(ctx, o, h); err != nil {
		return nil, err
	}
	if w.cloud, err = newCloud(ctx, o, h); err != nil {
		return nil, errors.Join(err, w.depot.close())
	}
	if o.paired() {
		w.pair, err = newPair(ctx, w)
	} else {
		err = w.newServer(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, w.cloud.close(), w.depot.close())
	}
	return w, nil
}

func (w *shard) newServer(ctx context.Context) error {
	text, err := configuration(w.o, w.cloud, alone(w.bind), 1)
	if err != nil {
		return err
	}
	w.conf = source{w.home.configFile()}
	if err := w.conf.set(text); err != nil {
		return err
	}
	machines, err := w.cloud.open(ctx)
	if err != nil {
		return err
	}
	if w.o.Scenario == Demo {
		if w.stock, err = newStock(machines); err != nil {
			return err
		}
		machines = w.stock
	}
	// the directory's lock keeps others away
	elector, err := lease.New(w.depot.store, shardID, &lease.Options{TakeAtOnce: true, Log: w.o.Log})
	if err != nil {
		return err
	}
	w.server, err = server.New(ctx, w.depot.store, machines, w.conf.read, &server.Options{
		Secrets: w.depot.box, Journal: w.story.tell, Log: w.o.Log, InterruptThroughMetadata: true, Announce: w.cloud.announce,
		Kinds:   w.cloud.kinds(),
		Elector: elector,
	})
	return err
}

// start runs the server and returns once it leads and an administrator's
// identity is saved. The context returned ends when the server does.
func (w *shard) start(ctx context.Context) (context.Context, error) {
	work, end := context.WithCancelCause(ctx)
	w.stop = func() { end(nil) }
	limited, cancel := context.WithTimeoutCause(work, startLimit, nstance.Errorf(nstance.Unavailable, "the server was not ready within %s", startLimit))
	defer cancel()
	addrs, err := w.serve(work, limited, end)
	if err != nil {
		if cause := context.Cause(limited); cause != nil {
			err = cause
		}
		return work, err
	}
	keys, err := keyring.Bootstrap(limited, vault.New(w.depot.store, w.depot.box), time.Now())
	if err != nil {
		return work, err
	}
	w.keys = keys
	return work, w.login(limited, addrs)
}

// serve runs one server or two until ctx ends, and calls end if they do so by
// themselves. It returns where they listen, or fails when limited ends first.
func (w *shard) serve(ctx, limited context.Context, end context.CancelCauseFunc) ([]server.Addresses, error) {
	if w.pair != nil {
		return w.pair.serve(ctx, limited, end)
	}
	w.wg.Go(func() {
		if err := w.server.Run(ctx); err != nil {
			end(err)
			return
		}
		end(nstance.Errorf(nstance.Internal, "the server has ended"))
	})
	if err := w.server.Ready(limited); err != nil {
		return nil, err
	}
	w.http = w.server.Addresses().HTTP
	return []server.Addresses{w.server.Addresses()}, nil
}

// login registers an administrator, as nstance-admin login would.
func (w *shard) login(ctx context.Context, servers []server.Addresses) error {
	now := time.Now()
	nonce, err := w.keys.Nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleAdmin, Subject: string(clusterID), Cluster: clusterID, Shard: shardID, Tenant: nstance.DefaultTenant,
		JTI: rand.Text(), NotBefore: now.Add(-time.Minute), Expiry: now.Add(time.Hour),
	})
	if err != nil {
		return err
	}
	login := &admin.LoginOptions{Nonce: nonce, CA: w.keys.Identity.CertPEM(), Shard: shardID, Replace: true}
	for _, s := range servers {
		login.Registration, login.Servers = append(login.Registration, s.Registration), append(login.Servers, s.Operator)
	}
	for {
		_, err = admin.Login(ctx, w.home.identityDir(), login)
		if nstance.CodeOf(err) != nstance.Unavailable { // the server may not lead yet
			return err
		}
		if !sleep.For(ctx, again) {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// close ends the servers, then the machines, and waits for all of them. Then it
// removes what they stored elsewhere.
func (w *shard) close() error {
	w.stop()
	w.wg.Wait()
	if w.pair != nil {
		w.pair.close()
	}
	return errors.Join(w.cloud.close(), w.depot.close())
}

// status fetches the leader's status page over HTTP. Fails with Unavailable while no
// server leads.
func (w *shard) status(ctx context.Context) (web.Status, error) {
	var s web.Status
	body, err := ask(ctx, w.http, "/status.json")
	if err != nil {
		return s, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&s); err != nil {
		return s, nstance.Errorf(nstance.Internal, "the status page: %w", err)
	}
	if !s.Leader {
		return s, nstance.Errorf(nstance.Unavailable, "no server leads")
	}
	return s, nil
}

// ask fetches a page that is there, and returns its body, to be closed.
func ask(ctx context.Context, addr, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "%w", err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req) // and no proxy
	if err != nil {
		return nil, nstance.Errorf(nstance.Unavailable, "%w", err)
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close() // nothing in it is of use
		return nil, nstance.Errorf(nstance.Unavailable, "%s answers %s", path, resp.Status)
	}
	return resp.Body, nil
}

// reaches reports whether a page is there.
func reaches(ctx context.Context, addr, path string) bool {
	body, err := ask(ctx, addr, path)
	if err != nil {
		return false
	}
	return body.Close() == nil
}

// list returns the machines that the cloud has.
func (w *shard) list(ctx context.Context) ([]nstance.Machine, error) {
	return w.cloud.machines(ctx, nstance.Owner{Installation: w.keys.Installation, Cluster: clusterID, Shard: shardID})
}
