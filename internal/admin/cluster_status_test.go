package admin_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/secret"
	"github.com/nstance-go/nstance/storage/storagetest"
)

const operatorAddress = "10.0.0.1:8993"

// leadTTL is so long that no machine is too busy to renew a lease in time.
const leadTTL = time.Minute

// leads has the lease of a shard renewed as long as the test lasts. A real holder
// would give up on a slow machine.
func (d *depot) leads(shard nstance.ShardID) {
	store := d.store()
	d.leave(shard, &lease.Options{Address: operatorAddress, TTL: leadTTL}, false)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case at := <-tick.C:
				if err := renew(store, shard, at); err != nil {
					done <- err
					return
				}
			case <-ctx.Done():
				done <- nil
				return
			}
		}
	}()
	d.t.Cleanup(func() { stop(); require.NoError(d.t, <-done) })
}

// renew writes a lease again, as what it is.
func renew(store storage.Store, shard nstance.ShardID, at time.Time) error {
	obj, err := store.Get(context.Background(), layout.LeaseKey(shard))
	if err != nil {
		return err
	}
	var fields map[string]any
	if err := json.Unmarshal(obj.Data, &fields); err != nil {
		return err
	}
	fields["write_id"] = at.Format(time.RFC3339Nano)
	data, err := json.Marshal(fields)
	if err == nil {
		_, err = store.PutIfMatch(context.Background(), obj.Key, data, obj.Version)
	}
	return err
}

// led writes the lease of a shard, as a server without a successor leaves it.
func (d *depot) led(shard nstance.ShardID, released bool) {
	d.leave(shard, &lease.Options{TTL: time.Second}, released)
}

// leave writes a lease as its holder does, which renews it no more.
func (d *depot) leave(shard nstance.ShardID, o *lease.Options, released bool) {
	_, err := lease.Prepare(d.t.Context(), d.store(), shard)
	require.NoError(d.t, err)
	obj, err := d.store().Get(d.t.Context(), layout.LeaseKey(shard))
	require.NoError(d.t, err)
	h := records.NewHeader(1)
	data, err := json.Marshal(map[string]any{
		"format": h.Format, "epoch": h.Epoch, "write_id": h.WriteID, "holder": "H", "address": o.Address, "ttl_ms": o.TTL.Milliseconds(), "released": released,
	})
	require.NoError(d.t, err)
	_, err = d.store().PutIfMatch(d.t.Context(), obj.Key, data, obj.Version)
	require.NoError(d.t, err)
}

// operator stores the record of one.
func (d *depot) operator(name string, notAfter time.Time, revoked bool) {
	d.registered(name, func(r *registration.OperatorRegistration) {
		r.Revoked, r.Current = revoked, &registration.KeyRecord{NotAfter: notAfter}
	})
}

// registered stores the record of an operator.
func (d *depot) registered(name string, change func(*registration.OperatorRegistration)) {
	type record struct {
		records.Header
		Operator *registration.OperatorRegistration `json:"operator"`
	}
	_, err := records.NewDoc[record](d.store(), layout.OperatorKey("default", name), nil).Update(d.t.Context(), func(r *record) error {
		r.Operator = &registration.OperatorRegistration{Name: name, Role: nstance.RoleOperator, Tenant: "default", RegisteredAt: time.Now()}
		change(r.Operator)
		return nil
	})
	require.NoError(d.t, err)
}

// rotate takes one step of a rotation at some time.
func (d *depot) rotate(set string, step keyring.Step, now time.Time) {
	ring, err := keyring.OpenKeyring(d.t.Context(), vault.New(d.store(), d.box()), func() time.Time { return now })
	require.NoError(d.t, err)
	_, err = ring.Rotate(d.t.Context(), keyring.Rotation{Set: set, Step: step})
	require.NoError(d.t, err)
}

func shardOf(t testing.TB, s admin.ClusterStatus, id nstance.ShardID) admin.ShardLease {
	for _, l := range s.Shards {
		if l.Shard == id {
			return l
		}
	}
	require.Fail(t, "no such shard", id)
	return admin.ShardLease{}
}

func TestClusterStatus(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.server(d.box())
	conf, err := os.ReadFile("testdata/shard.jsonc")
	require.NoError(t, err)
	for _, name := range []string{"eu1a", "new"} {
		d.put("config/"+name+".jsonc", string(conf))
	}
	d.leads("eu1a")
	d.led("released", true)
	d.led("silent", false)
	d.put("lease/broken.json", "{")
	d.put(layout.AcceptedKey("restored"), `{"format":"1.0"}`)
	d.put("instance/records/default/web/"+string(webA)+".json", "{}")
	d.rotate(keyring.Identity, keyring.StepBegin, time.Now().Add(-time.Hour))
	d.rotate(keyring.Nonces, keyring.StepBegin, time.Now().Add(-time.Hour))
	d.rotate(keyring.Nonces, keyring.StepActivate, time.Now())
	d.operator("a", time.Now().Add(time.Hour), false)
	d.operator("b", time.Now().Add(time.Hour), true)
	d.operator("c", time.Now().Add(-time.Hour), false)
	d.operator("d", time.Now().Add(time.Hour), false)
	d.put("operator/default.e.json", "{")

	d.env = nil // no key is needed
	began := time.Now()
	s := statusOf(t, d.cluster("status", "-o", "json"))
	t.Run("a led shard", func(t *testing.T) {
		led := shardOf(t, s, "eu1a")
		require.Equal(t, "led", led.State)
		require.Equal(t, operatorAddress, led.Address)
		require.Equal(t, uint64(1), led.Epoch)
		require.InDelta(t, leadTTL.Seconds(), led.TTLSeconds, 0)
		require.Equal(t, cluster, led.Cluster)
		require.True(t, led.Until.After(began.Add(leadTTL-time.Second)) && led.Until.Before(time.Now().Add(leadTTL)), "%s", led.Until)
	})
	t.Run("a shard without a leader", func(t *testing.T) {
		for id, state := range map[nstance.ShardID]string{
			"released": "released", "silent": "silent", "broken": "unreadable", "restored": "missing", "records": "missing", "new": "new",
		} {
			l := shardOf(t, s, id)
			require.Equal(t, state, l.State, id)
			require.Zero(t, l.Until, "%s: nothing is known", id)
			require.Equal(t, state == "unreadable", l.Error != "", id)
		}
		require.Len(t, s.Shards, 7)
	})
	t.Run("the keys and their rotation", func(t *testing.T) {
		var got []string
		for _, k := range s.Keys {
			got = append(got, k.GetName()+" "+k.GetPhase())
			require.NotNil(t, k.GetCreatedAt())
		}
		require.Equal(t, []string{"identity current", "identity next", "workload current", "nonce retired", "nonce current"}, got)
		require.Equal(t, []string{"identity activate", "nonce finish"}, []string{
			s.Rotations[0].Name + " " + s.Rotations[0].NextStep, s.Rotations[1].Name + " " + s.Rotations[1].NextStep,
		})
		require.Equal(t, s.Keys[1].GetSince().AsTime().Add(keyring.Settle), s.Rotations[0].NextStepAt)
		require.Equal(t, []admin.Sealed{{Key: d.key.ID(), Objects: 5}}, s.Sealing)
	})
	t.Run("operators", func(t *testing.T) {
		require.Equal(t, admin.OperatorCount{Good: 2, Expired: 1, Revoked: 1, Unreadable: 1}, s.Operators)
	})
	t.Run("problems", func(t *testing.T) {
		all := strings.Join(s.Problems, "\n")
		for _, says := range []string{"shard silent: its lease was not renewed for 1s", "shard restored: its lease is missing", "shard broken: no server can lead", "1 record of operators cannot be read"} {
			require.Contains(t, all, says)
		}
		require.Len(t, s.Problems, 5, all)
		require.Equal(t, cluster, s.Cluster)
	})
	t.Run("for people, without a look at renewals", func(t *testing.T) {
		r := d.cluster("status", "--wait", "0")
		require.Zero(t, r.code, r.errors)
		for _, line := range []string{
			`Cluster: +prod\n`, `Operators: +2 good, 1 expired, 1 revoked\n`, `Encryption: +` + d.key.ID() + `, 5 objects\n`,
			`Rotation: +of the identity key, activate after 2`, `eu1a +held +10.0.0.1:8993 +1 +-\n`, `silent +held +a server without an advertised address +1 +-\n`,
			`new +new +- +- +-\n`, `nonce +[0-9a-f]+ +retired +`, `- shard broken: no server can lead: lease/broken.json cannot be read`,
		} {
			require.Regexp(t, line, r.out)
		}
	})
}

// It may be run with whatever rights, anywhere, at any time.
func TestClusterStatusWritesNothing(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.server(d.box())
	d.leave("silent", &lease.Options{TTL: 3 * time.Second}, false)
	d.operator("a", time.Now().Add(time.Hour), false)
	before := d.files()
	require.Zero(t, d.cluster("status", "--wait", "0").code)
	r := d.cluster("status")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.progress, "watching the leases ...", "after a second")
	require.Zero(t, run(t, strings.NewReader(""), d.env, "cluster", "rotate", "encryption", "--dry-run", "--storage", d.url()).code)
	require.Equal(t, before, d.files())
}

func TestClusterStatusOfIncompleteClusters(t *testing.T) {
	t.Parallel()
	t.Run("a storage that is none", func(t *testing.T) {
		d := newDepot(t)
		d.dir += "/nowhere"
		require.Equal(t, 3, d.cluster("status").code)
		require.NoDirExists(t, d.dir)
	})
	t.Run("an empty one", func(t *testing.T) {
		d := newDepot(t)
		d.store()
		r := d.cluster("status")
		require.Equal(t, 3, r.code)
		require.Contains(t, r.errors, "there is no cluster in this storage (name the cluster's storage, or make its keys with nstance-admin cluster init)")
	})
	t.Run("one with keys only", func(t *testing.T) {
		d := newDepot(t)
		require.Zero(t, d.cluster("init", "--cluster", "prod").code)
		s := statusOf(t, d.cluster("status", "-o", "json"))
		require.Empty(t, s.Shards)
		require.Empty(t, s.Problems)
		require.Len(t, s.Keys, 3)
	})
	t.Run("one without keys", func(t *testing.T) {
		d := newDepot(t)
		d.led("eu1a", true)
		s := statusOf(t, d.cluster("status", "-o", "json"))
		require.Contains(t, fmt.Sprint(s.Problems), "no catalogue of keys")
	})
	t.Run("keys that cannot be read", func(t *testing.T) {
		d := newDepot(t)
		d.put("lease/cluster.json", "{")
		d.led("eu1a", true)
		s := statusOf(t, d.cluster("status", "-o", "json"))
		require.Contains(t, fmt.Sprint(s.Problems), "lease/cluster.json, cannot be read")
	})
	t.Run("what is sealed with several keys, or none", func(t *testing.T) {
		d := newDepot(t)
		d.server(d.box())
		other := secret.NewKey()
		box, err := secret.NewBox(other)
		require.NoError(t, err)
		require.NoError(t, vault.New(d.store(), box).PutIfAbsent(t.Context(), "db", []byte("x")))
		require.NoError(t, vault.New(d.store(), nil).PutIfAbsent(t.Context(), "plain", []byte("x")))
		s := statusOf(t, d.cluster("status", "-o", "json"))
		require.ElementsMatch(t, []admin.Sealed{{Objects: 1}, {Key: d.key.ID(), Objects: 3}, {Key: other.ID(), Objects: 1}}, s.Sealing)
		require.Contains(t, fmt.Sprint(s.Problems), "objects are sealed with different keys")
	})
	t.Run("two clusters", func(t *testing.T) {
		d := newDepot(t)
		conf, err := os.ReadFile("testdata/shard.jsonc")
		require.NoError(t, err)
		d.put("config/eu1a.jsonc", string(conf))
		other := base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(string(conf), `"prod"`, `"test"`)))
		d.put("accepted/eu1b.json", `{"format":"1.0","epoch":1,"write_id":"x","name":"file","digest":"d","data":"`+other+`"}`)
		d.put("config/eu1b.jsonc", string(conf)) // newer, and not in force
		s := statusOf(t, d.cluster("status", "-o", "json"))
		require.Contains(t, fmt.Sprint(s.Problems), "shard eu1b belongs to cluster test, another shard to cluster prod")
		require.Equal(t, 6, d.cluster("init", "--cluster", "prod").code)
	})
	t.Run("a wait that is none", func(t *testing.T) {
		require.Equal(t, 2, newDepot(t).cluster("status", "--wait", "-1s").code)
	})
}

// TestOperatorThatHasRenewed: it is good with the certificate that it has and does not use yet.
func TestOperatorThatHasRenewed(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	for name, ends := range map[string][2]time.Duration{"renewed": {-time.Hour, time.Hour}, "expired": {-2 * time.Hour, -time.Hour}} {
		d.registered(name, func(r *registration.OperatorRegistration) {
			r.Current, r.Pending = &registration.KeyRecord{NotAfter: time.Now().Add(ends[0])}, &registration.KeyRecord{NotAfter: time.Now().Add(ends[1])}
		})
	}
	d.operator("revoked", time.Now().Add(-time.Hour), true)
	require.Equal(t, admin.OperatorCount{Good: 1, Expired: 1, Revoked: 1}, statusOf(t, d.cluster("status", "-o", "json")).Operators)
}

// TestClusterStatusWithoutAnswers: what cannot be read is not taken for absent, and what is deleted
// meanwhile is.
func TestClusterStatusWithoutAnswers(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.server(d.box())
	d.led("eu1a", true)
	d.put(layout.ConfigKey("eu1a"), `{"cluster": {"id": "prod"}, "shard": {"id": "eu1a", "provider": {"kind": "sim"}}}`)
	d.operator("a", time.Now().Add(time.Hour), false)
	for _, op := range []storagetest.Op{storagetest.Get, storagetest.List} {
		whole := storagetest.NewFaulty(d.store())
		require.Zero(t, runOn(t, whole, "", nil, "cluster", "status", "--wait", "0").code)
		require.Positive(t, whole.Count(op))
		for skip := range whole.Count(op) {
			faulty := storagetest.NewFaulty(d.store())
			faulty.Inject(storagetest.Fault{Op: op, Skip: skip})
			r := runOn(t, faulty, "", nil, "cluster", "status", "--wait", "0")
			require.Equal(t, 5, r.code, "%s %d: %s", op, skip, r.out)
		}
	}
	faulty, key := storagetest.NewFaulty(d.store()), layout.OperatorKey("default", "a")
	faulty.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: key, Pass: true, Do: func() {
		obj, err := d.store().Get(t.Context(), key)
		if err == nil {
			err = d.store().DeleteIfMatch(t.Context(), key, obj.Version)
		}
		if err != nil {
			t.Error(err)
		}
	}})
	r := runOn(t, faulty, "", nil, "cluster", "status", "--wait", "0")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "0 good")
}

// TestKeyThatIsNotDestroyed: a rotation that could not destroy the old key is a problem.
func TestKeyThatIsNotDestroyed(t *testing.T) {
	t.Parallel()
	d := newDepot(t)
	d.server(d.box())
	d.rotate(keyring.Nonces, keyring.StepBegin, time.Now().Add(-2*time.Hour))
	d.rotate(keyring.Nonces, keyring.StepActivate, time.Now().Add(-time.Hour))
	faulty := storagetest.NewFaulty(d.store())
	faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: "secret/", Times: -1})
	ring, err := keyring.OpenKeyring(t.Context(), vault.New(faulty, d.box()), time.Now)
	require.NoError(t, err)
	_, _ = ring.Rotate(t.Context(), keyring.Rotation{Set: keyring.Nonces, Step: keyring.StepFinish})
	s := statusOf(t, d.cluster("status", "-o", "json"))
	require.Contains(t, fmt.Sprint(s.Problems), "1 private key of removed nonce keys: not destroyed yet, repeat cluster rotate")
}
