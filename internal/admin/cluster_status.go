package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/secret"
)

// A ClusterStatus is what cluster status prints: the state of storage alone.
type ClusterStatus struct {
	Cluster   nstance.ClusterID `json:"cluster,omitempty"` // as the shards' configurations say, if they agree
	Shards    []ShardLease      `json:"shards"`
	Keys      storedKeys        `json:"keys"`
	Rotations []KeyRotation     `json:"rotations"` // those under way
	Sealing   []Sealed          `json:"sealing"`   // by encryption key
	Operators OperatorCount     `json:"operators"`
	Problems  []string          `json:"problems"` // that need attention
}

// A KeyRotation is one that has begun and is not over.
type KeyRotation struct {
	Name       string    `json:"name"`                  // identity, workload or nonce
	NextStep   string    `json:"next_step"`             // activate or finish
	Since      time.Time `json:"since,omitzero"`        // the last step
	NextStepAt time.Time `json:"next_step_at,omitzero"` // when the next one is possible at the earliest
}

// Sealed counts how many objects in storage are encrypted with a key.
type Sealed struct {
	Key     string `json:"key,omitempty"` // its ID; absent: they are readable as they are
	Objects int    `json:"objects"`
}

// An OperatorCount counts registered operators and administrators.
type OperatorCount struct {
	Good       int `json:"good"`    // their certificate is valid
	Expired    int `json:"expired"` // they need a new nonce
	Revoked    int `json:"revoked"`
	Unreadable int `json:"unreadable"`
}

func clusterStatusCommand(open openStore) *cobra.Command {
	var d storageAccess
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "status --storage URL", Short: "Show the state of the cluster in storage",
		Long: "Show the state of the cluster in storage: the leader of each shard, the keys and their rotation, and the number of\n" +
			"operators. It calls no server, needs no key and writes nothing. To find out whether a lease is renewed, it\n" +
			"watches the lease for its ttl, some seconds. For what only servers know, see status and cluster keys.",
		Args: arguments(),
	}
	d.flags(cmd, open)
	cmd.Flags().Var(duration.NewFlag(&wait, records.MaxLeaseTTL), "wait", "how long to watch at most whether leases are renewed; 0: not at all")
	out := newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if wait < 0 {
			return nstance.FieldError("--wait", "use 0 or more", "is %s", wait)
		}
		store, err := d.read(cmd.Context())
		if err != nil {
			return err
		}
		s := &statusReader{store: store, now: time.Now}
		if err := stderrOf(cmd).slow("reading storage", func() error { return s.run(cmd.Context()) }); err != nil {
			return err
		}
		if err := stderrOf(cmd).slow("watching the leases", func() error { return s.watch(cmd.Context(), wait) }); err != nil {
			return err
		}
		return out.print(s.ClusterStatus, func(t *table) { writeCluster(t, s.ClusterStatus) })
	}
	return cmd
}

// A statusReader reads a cluster's status from its storage.
type statusReader struct {
	ClusterStatus
	store storage.Store
	now   func() time.Time
}

// run reads everything but the leases. An empty storage is NotFound: it is probably
// the wrong one.
func (s *statusReader) run(ctx context.Context) error {
	s.Rotations, s.Problems, s.Shards = []KeyRotation{}, []string{}, []ShardLease{}
	shards, err := shardsIn(ctx, s.store)
	if err != nil {
		return err
	}
	for _, shard := range shards {
		if err := s.shard(ctx, shard); err != nil {
			return err
		}
	}
	for _, part := range []func(context.Context) error{s.keys, s.sealing, s.operators} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	if len(s.Shards)+len(s.Keys)+len(s.Sealing) == 0 && s.Operators == (OperatorCount{}) {
		return fault(nstance.NotFound, nil, "name the cluster's storage, or make its keys with nstance-admin cluster init", "there is no cluster in this storage")
	}
	return nil
}

// shard reads the state of one shard, except its lease.
func (s *statusReader) shard(ctx context.Context, id nstance.ShardID) error {
	l := ShardLease{Shard: id, State: leaseNew}
	fresh, err := records.Untouched(ctx, s.store, id)
	if err != nil {
		return err
	}
	if !fresh {
		l.State = leaseMissing
	}
	conf, err := configOf(ctx, s.store, id)
	switch {
	case err == nil:
		l.Cluster = conf.Cluster.ID
	case errors.Is(err, nstance.NotFound): // it is a file elsewhere, and no server has led with it yet
	case errors.Is(err, nstance.Invalid):
		s.problem("shard %s: its configuration in storage cannot be read: %v", id, err)
	default:
		return err
	}
	s.belongs(l)
	s.Shards = append(s.Shards, l)
	return nil
}

func (s *statusReader) belongs(l ShardLease) {
	if s.Cluster != "" && l.Cluster != "" && l.Cluster != s.Cluster {
		s.problem("shard %s belongs to cluster %s, another shard to cluster %s: clusters must not share storage", l.Shard, l.Cluster, s.Cluster)
	}
	s.Cluster = cmp.Or(s.Cluster, l.Cluster)
}

func (s *statusReader) problem(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

// keys reads the catalogue of keys, which needs none of them.
func (s *statusReader) keys(ctx context.Context) error {
	c, err := vault.New(s.store, nil).Catalogue(ctx)
	if errors.Is(err, nstance.Invalid) {
		s.problem("the catalogue of keys, %s, cannot be read: %v", layout.ClusterLeaseKey, err)
		return nil
	}
	if err != nil {
		return err
	}
	s.Keys = newStoredKeys(func(name string) keyring.KeySet { return c.Sets[name] })
	if len(s.Keys) == 0 {
		s.problem("there is no catalogue of keys: nstance-admin cluster init, or the first server, makes it")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sets)) {
		if n := len(c.Sets[name].Gone); n > 0 {
			s.problem("%s of removed %s keys: not destroyed yet, repeat cluster rotate", plural(n, "private key"), name)
		}
		s.rotation(name)
	}
	return nil
}

// rotation adds the rotation of a set if one is under way.
func (s *statusReader) rotation(name string) {
	own := slices.DeleteFunc(slices.Clone(s.Keys), func(k *apiv1.Key) bool { return k.GetName() != name })
	step := nextStep(own)
	if step == keyring.StepBegin {
		return
	}
	r := KeyRotation{Name: name, NextStep: string(step)}
	for _, k := range own {
		if keyring.Phase(k.GetPhase()) != keyring.PhaseCurrent {
			r.Since, r.NextStepAt = wire.TimeOf(k.GetSince()), wire.TimeOf(k.GetNextStepAt())
		}
	}
	s.Rotations = append(s.Rotations, r)
}

// sealing counts what is encrypted with which key.
func (s *statusReader) sealing(ctx context.Context) error {
	prefix := layout.SecretKey("")
	var mu sync.Mutex
	counts := map[string]int{}
	err := each(ctx, s.store, prefix, func(key string, data []byte) {
		if strings.TrimPrefix(key, prefix) == keyring.VaultInstallation {
			return // no secret
		}
		id, _ := secret.SealedWith(data)
		mu.Lock()
		defer mu.Unlock()
		counts[id]++
	})
	s.Sealing = []Sealed{}
	for _, id := range slices.Sorted(maps.Keys(counts)) {
		s.Sealing = append(s.Sealing, Sealed{id, counts[id]})
	}
	if len(counts) > 1 {
		s.problem("objects are sealed with different keys: nstance-admin cluster rotate encryption seals all with the first one")
	}
	return err
}

// operators counts the records of operators and administrators.
func (s *statusReader) operators(ctx context.Context) error {
	var mu sync.Mutex
	counts := map[string]int{}
	now := s.now()
	err := each(ctx, s.store, layout.OperatorPrefix, func(key string, data []byte) {
		state := storedOperatorState(key, data, now)
		mu.Lock()
		defer mu.Unlock()
		counts[state]++
	})
	s.Operators = OperatorCount{
		Good: counts[operatorGood], Expired: counts[operatorExpired], Revoked: counts[operatorRevoked], Unreadable: counts[operatorUnreadable],
	}
	if n := s.Operators.Unreadable; n > 0 {
		s.problem("%s of operators cannot be read: nstance-admin operator list names them", plural(n, "record"))
	}
	return err
}

// each reads every object below prefix, some at a time. What others have put
// there, such as the marks that consoles take for folders, is passed over.
func each(ctx context.Context, store storage.Store, prefix string, see func(key string, data []byte)) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for e, err := range store.List(gctx, prefix, "") {
		if err != nil {
			return cmp.Or(g.Wait(), err)
		}
		if storage.ValidateKey(e.Key) != nil {
			continue
		}
		g.Go(func() error {
			obj, err := store.Get(gctx, e.Key)
			if errors.Is(err, nstance.NotFound) {
				return nil // gone meanwhile
			}
			if err == nil {
				see(e.Key, obj.Data)
			}
			return err
		})
	}
	return g.Wait()
}

// watch finds out which server leads each shard.
func (s *statusReader) watch(ctx context.Context, limit time.Duration) error {
	w := &leaseWatch{store: s.store, now: s.now, limit: limit}
	for _, l := range s.Shards {
		w.leases = append(w.leases, &watchedLease{ShardLease: l, undecided: true})
	}
	if err := w.run(ctx); err != nil {
		return err
	}
	for i, l := range w.leases {
		s.Shards[i] = l.ShardLease
		switch l.State {
		case leaseSilent:
			s.problem("shard %s: its lease was not renewed for %s: no server leads",
				l.Shard, time.Duration(l.TTLSeconds*float64(time.Second)))
		case leaseMissing:
			s.problem("shard %s: its lease is missing, as in a restored bucket", l.Shard)
		case leaseUnreadable:
			s.problem("shard %s: no server can lead: %s", l.Shard, l.Error)
		}
	}
	return nil
}

func writeCluster(t *table, s ClusterStatus) {
	t.row("Cluster:", string(s.Cluster))
	t.row("Operators:", fmt.Sprintf("%d good, %d expired, %d revoked", s.Operators.Good, s.Operators.Expired, s.Operators.Revoked))
	for _, e := range s.Sealing {
		t.row("Encryption:", cmp.Or(e.Key, "none")+", "+plural(e.Objects, "object"))
	}
	for _, r := range s.Rotations {
		t.row("Rotation:", fmt.Sprintf("of the %s key, %s after %s", r.Name, r.NextStep, stamp(r.NextStepAt)))
	}
	if len(s.Shards) > 0 {
		t.say("")
		writeShards(t, s.Shards)
	}
	if len(s.Keys) > 0 {
		t.say("")
		writeKeys(t, s.Keys, unknownHolders)
	}
	if len(s.Problems) > 0 {
		t.say("")
		t.say("Problems:")
	}
	for _, problem := range s.Problems {
		t.say("- %s", problem)
	}
}
