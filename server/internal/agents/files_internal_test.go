package agents

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func newFileSession(t *testing.T, k *fileKeeper, id nstance.InstanceID) *session {
	s, _ := newSlowAgent(t)
	s.id, s.agents = id, k.agents
	s.files.known, s.files.slot = true, &kitSlot{}
	s.files.slot.now.Store(&madeKit{})
	return s
}

// A factShard keeps facts.
type factShard struct {
	*fakeShard
	facts []nstance.Fact
}

func (s *factShard) Observe(f nstance.Fact) { s.facts = append(s.facts, f) }

func newTestKeeper() (*fileKeeper, *factShard, *[]nstance.Event) {
	shard, events := &factShard{}, &[]nstance.Event{}
	a := &Agents{shard: shard, Options: Options{Now: time.Now, Log: slog.New(slog.DiscardHandler), Journal: func(e nstance.Event) { *events = append(*events, e) }}}
	k := &fileKeeper{agents: a}
	k.work = sync.NewCond(&k.mu)
	a.files = k
	return k, shard, events
}

// TestSessionsThatWaitForMemory: each is checked again when some is released, whatever
// releases it, and a report meanwhile does not queue it a second time.
func TestSessionsThatWaitForMemory(t *testing.T) {
	for name, release := range map[string]func(s *session){
		"the transfer is over": func(s *session) { s.pieceSent(true) },
		"the session ends":     func(s *session) { s.endFiles() },
		"the agent does not answer": func(s *session) {
			s.files.phase, s.files.since = filesBegun, time.Now().Add(-2*answerTimeout)
			s.checkFileDeadlines()
		},
		"the agent has all of it":               func(s *session) { s.handleFilesApplied(&apiv1.FilesApplied{Hash: "h"}) },
		"another set takes the transfer's turn": func(s *session) { s.dropFiles() },
	} {
		t.Run(name, func(t *testing.T) {
			k, _, _ := newTestKeeper()
			big := newFileSession(t, k, "big")
			require.True(t, k.reserve(big, 2*maxOwnBytes), "alone, a machine may have any amount")
			big.files.own, big.files.phase, big.files.set = 2*maxOwnBytes, filesSending, &files.Set{Hash: "h"}
			var waiting []*session
			for _, id := range []nstance.InstanceID{"a", "b"} {
				s := newFileSession(t, k, id)
				s.files.parked = !k.reserve(s, 1)
				require.True(t, s.files.parked)
				s.queueFiles()
				waiting = append(waiting, s)
			}
			require.Empty(t, k.dirty)
			release(big)
			require.Zero(t, k.own)
			require.Subset(t, k.dirty, waiting, "they are checked again")
			require.Empty(t, k.parked)
			for _, s := range waiting {
				require.True(t, k.reserve(s, maxOwnBytes/2))
			}
		})
	}
}

// TestSessionEndsMeanwhile: what is made for a session that has ended takes no memory from the others.
func TestSessionEndsMeanwhile(t *testing.T) {
	d := nstance.Definition{Files: map[string]nstance.File{"name": {Kind: nstance.FileString, Content: "{{.Instance.ID}}"}}}
	kit := &madeKit{Kit: files.Prepare(t.Context(), "h", d, files.Common{}, files.Sources{}, nil)}
	for _, ends := range []string{"before", "while it is made", "after"} {
		t.Run(ends, func(t *testing.T) {
			k, _, _ := newTestKeeper()
			k.agents.Keys = &keyring.Keys{}
			s := newFileSession(t, k, "web1")
			if ends == "before" {
				s.endFiles()
			}
			k.agents.Now = func() time.Time {
				if ends == "while it is made" {
					s.endFiles()
				}
				return time.Now()
			}
			s.makeFiles(t.Context(), k, machineKit{slot: s.files.slot, made: kit, machine: files.Machine{Instance: files.Instance{ID: "web1"}}})
			require.Equal(t, ends == "after", k.own > 0)
			s.endFiles()
			require.Zero(t, k.own)
		})
	}
}

// TestKitDroppedMeanwhile: the pass forgets a kit that no session uses. One that was just
// about to use it gets another, which is read again when its sources change.
func TestKitDroppedMeanwhile(t *testing.T) {
	k, shard, _ := newTestKeeper()
	k.agents.sessions, k.pruned = newSessions(nil), time.Now()
	k.agents.Config = func() *config.Config { return &config.Config{} }
	shard.fakeShard = &fakeShard{}
	s := newFileSession(t, k, "web1")
	k.kits = map[kitKey]*kitSlot{{}: s.files.slot}
	s.files.set = &files.Set{}
	s.checkFileDeadlines()
	s.files.slot.wanted = time.Now()
	require.Empty(t, k.dirty, "it has its files")
	k.pass(t.Context())
	require.Len(t, k.kits, 1, "the session has only begun to use it")
	s.files.slot.wanted = time.Now().Add(-2 * kitIdle)
	k.pass(t.Context())
	require.Empty(t, k.kits)
	s.checkFileDeadlines()
	require.Equal(t, []*session{s}, k.dirty)
}

// TestPartialFiles: a machine that has what could be made of a set has not the set: what is
// reported of it, and journalled, says so.
func TestPartialFiles(t *testing.T) {
	for name, c := range map[string]struct {
		errors []string // of the files of the set
		agent  string   // what the agent could not apply
		hash   string
		typ    string
	}{
		"all of it":           {[]string{"", ""}, "", "new", "files_applied"},
		"one was not made":    {[]string{"", "no secret"}, "", "old", "files_applied"},
		"none was made":       {[]string{"no secret", "no secret"}, "", "old", "files_applied"},
		"one was not applied": {[]string{"", ""}, "disk full", "old", "files_failed"},
		"neither nor":         {[]string{"", "no secret"}, "disk full", "old", "files_failed"},
	} {
		t.Run(name, func(t *testing.T) {
			k, shard, events := newTestKeeper()
			s := newFileSession(t, k, "web1")
			set := &files.Set{Hash: "new"}
			applied := &apiv1.FilesApplied{Hash: "new", Error: c.agent}
			for i, failure := range c.errors {
				path := string(rune('a' + i))
				set.Files = append(set.Files, files.File{Path: path, Digest: "d" + path, Error: failure})
				if failure == "" && c.agent == "" {
					applied.Files = append(applied.Files, &apiv1.FileStatus{Path: path, Digest: "d" + path})
				} else {
					applied.Files = append(applied.Files, &apiv1.FileStatus{Path: path, Error: "not there"})
				}
			}
			s.files.set, s.files.phase, s.files.hash = set, filesApplying, "old"
			s.files.retryAt = time.Now().Add(time.Hour)
			s.handleFilesApplied(applied)
			require.Len(t, shard.facts, 1)
			require.Equal(t, c.hash, shard.facts[0].(nstance.FilesReported).ConfigHash)
			require.Equal(t, c.agent, shard.facts[0].(nstance.FilesReported).Error)
			require.Len(t, *events, 1)
			require.Equal(t, c.typ, string((*events)[0].Type))
			require.Equal(t, c.hash == "new", (*events)[0].Error == "", "what is missing is said")
		})
	}
}

// TestVariablesOfAnInstance: what a request sets differently from the group is given, and no
// name is certified from it. The group's own definition stays as it is.
func TestVariablesOfAnInstance(t *testing.T) {
	k, _, _ := newTestKeeper()
	recs := records.New(storage.NewMemory(), "s1", nil)
	k.agents.shard = recordShard{&fakeShard{}, recs}
	of := func(own, group map[string]string, given ...string) (nstance.Definition, kitKey, string) {
		digest, err := recs.PutDefinition(t.Context(), nstance.Definition{Kind: "web", Vars: own})
		require.NoError(t, err)
		v := loop.Runtime{Hash: "group's", Definition: nstance.Definition{Kind: "web", Vars: group, GivenVars: given}}
		key, err := k.ownVars(t.Context(), &v, kitKey{}, digest)
		require.NoError(t, err)
		require.Equal(t, key.definition == "", v.Hash == "group's")
		return v.Definition, key, digest
	}
	group := map[string]string{"a": "1", "b": "2"}
	d, key, digest := of(map[string]string{"a": "1", "b": "3", "c": "4"}, group, "b")
	require.Equal(t, map[string]string{"a": "1", "b": "3", "c": "4"}, d.Vars)
	require.ElementsMatch(t, []string{"b", "c"}, d.GivenVars)
	require.Equal(t, digest, key.definition)
	require.Equal(t, map[string]string{"a": "1", "b": "2"}, group)

	d, key, _ = of(map[string]string{"a": "1"}, group)
	require.Equal(t, group, d.Vars)
	require.Empty(t, d.GivenVars)
	require.Zero(t, key, "its kit is the group's")
	d, _, _ = of(map[string]string{"a": "5"}, nil)
	require.Equal(t, []string{"a"}, d.GivenVars)
}

// TestChangeDuringACheck: a session that is to be checked while a worker checks it is checked
// again.
func TestChangeDuringACheck(t *testing.T) {
	k, _, _ := newTestKeeper()
	k.agents.shard = recordShard{&fakeShard{}, records.New(storage.NewMemory(), "s1", nil)}
	s := newFileSession(t, k, testID(t))
	s.files.working, s.files.queued = true, true
	s.checkFiles(t.Context(), k) // by another worker
	require.True(t, s.files.queued)
}

// A filedShard has one machine with files, of which it also has a record.
type filedShard struct {
	recordShard
	machine loop.Runtime
}

func (s *filedShard) Runtime(nstance.InstanceID) (loop.Runtime, error) { return s.machine, nil }

// sourceOf is a source of files.
type sourceOf func() ([]byte, error)

func (s sourceOf) Get(context.Context, string) ([]byte, error) { return s() }

// newFiledShard returns a keeper of the files of one machine.
func newFiledShard(t *testing.T, secrets sourceOf, fs map[string]nstance.File) (*fileKeeper, *filedShard, nstance.InstanceID) {
	identity, err := keyring.NewAuthority(keyring.Identity, time.Now())
	require.NoError(t, err)
	id, store := testID(t), storage.NewMemory()
	recs := records.New(store, "s1", nil)
	_, err = recs.Create(t.Context(), records.Instance{ID: id, Tenant: "default", Group: "web"})
	require.NoError(t, err)
	shard := &filedShard{recordShard: recordShard{&fakeShard{}, recs}}
	shard.machine.Definition.Files = fs
	a := New(store, shard, drain.New(nil), Options{
		Config: func() *config.Config { return &config.Config{} }, Now: time.Now, Began: time.Now(), Check: func() error { return nil },
		Keys: &keyring.Keys{Identity: identity}, Log: slog.New(slog.DiscardHandler), Secrets: secrets, Addresses: func() (s files.Server) { return s },
		Bound: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Second)
		},
	})
	return a.files, shard, id
}

// TestFilesWaitForTheProvider: what differs by machine is made with what the provider says of
// it, for which the beginning of a term waits a minute at most.
func TestFilesWaitForTheProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, shard, id := newFiledShard(t, nil, map[string]nstance.File{"ip": {Kind: nstance.FileString, Content: "{{.Instance.IP4}}"}})
		find := func() error { _, err := k.find(t.Context(), &session{id: id}); return err }
		require.ErrorIs(t, find(), nstance.Unavailable)
		shard.machine.Seen = true
		require.NoError(t, find())
		shard.machine.Seen = false
		<-time.After(providerWait - 1)
		require.ErrorIs(t, find(), nstance.Unavailable)
		<-time.After(1)
		require.NoError(t, find())
	})
	k, _, id := newFiledShard(t, nil, map[string]nstance.File{"same": {Kind: nstance.FileString, Content: "x"}})
	_, err := k.find(t.Context(), &session{id: id})
	require.NoError(t, err, "all machines have the same")
}

// TestSourcesThatHang: kits that wait for other parties leave workers for those that need none. The
// sessions that none is left for are checked again once a kit is made.
func TestSourcesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		k, shard, _ := newFiledShard(t, func() ([]byte, error) { <-answer; return []byte("hush"), nil }, map[string]nstance.File{"s": {Kind: nstance.FileSecret, Secret: "s"}})
		local := loop.Runtime{Definition: nstance.Definition{Files: map[string]nstance.File{"name": {Kind: nstance.FileString, Content: "x"}}}}
		kit := func(group int, v loop.Runtime) error {
			_, err := k.kit(t.Context(), &session{}, kitKey{group: nstance.GroupKey{Group: nstance.GroupID(fmt.Sprint(group))}}, v)
			return err
		}
		var making sync.WaitGroup
		for group := range askedKits {
			making.Go(func() { assert.NoError(t, kit(group, shard.machine)) })
		}
		synctest.Wait()
		require.ErrorIs(t, kit(askedKits, shard.machine), errKitAwaited, "too many are made")
		require.ErrorIs(t, kit(0, shard.machine), errKitAwaited, "another worker makes it")
		require.NoError(t, kit(askedKits+1, local))
		require.Len(t, k.dirty, 2)
		close(answer)
		making.Wait()
		for group := range askedKits + 1 {
			require.NoError(t, kit(group, shard.machine))
		}
	})
}

// TestSessionThatAwaitsAKit: it is checked again once the kit is made, and in the queue once.
func TestSessionThatAwaitsAKit(t *testing.T) {
	k, _, _ := newTestKeeper()
	slot := &kitSlot{}
	require.True(t, k.beginKit(slot, true, nil))
	s := newFileSession(t, k, "web1")
	require.False(t, k.beginKit(slot, true, s))
	s.files.parked = true
	s.wantFiles()
	require.Empty(t, k.dirty)
	k.endKit(slot, true)
	require.Equal(t, []*session{s}, k.dirty)
	require.Empty(t, k.waiting)
	require.Zero(t, k.asking)
}

// TestFailedSourceIsReadSoonAgain: the interval between two reads is for those that succeed.
func TestFailedSourceIsReadSoonAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := error(nstance.Unavailable)
		k, _, id := newFiledShard(t, func() ([]byte, error) { return []byte("hush"), failure }, map[string]nstance.File{"s": {Kind: nstance.FileSecret, Secret: "s"}})
		m, err := k.find(t.Context(), &session{id: id})
		require.NoError(t, err)
		require.Len(t, k.problems(), 1)
		<-time.After(failedRefresh - 1)
		require.False(t, m.made.due(time.Hour))
		<-time.After(1)
		require.True(t, m.made.due(time.Hour))

		failure = nil
		k.remake(t.Context(), m.slot)
		require.Empty(t, k.problems())
		<-time.After(time.Hour - 1)
		require.False(t, m.slot.now.Load().due(time.Hour))
		<-time.After(1)
		require.True(t, m.slot.now.Load().due(time.Hour))
		made := m.slot.now.Load().Kit
		k.remake(t.Context(), m.slot)
		require.Same(t, made, m.slot.now.Load().Kit, "sessions compare the pointer")

		failure = nstance.Unavailable
		k.remake(t.Context(), m.slot)
		require.Len(t, k.problems(), 1, "the content stays, and that it may be old is shown")
		failure = nil
		k.remake(t.Context(), m.slot)
		require.Empty(t, k.problems())
	})
}

// TestCertificatesOfSlowStorage: each write of the log has its own deadline: one that waits for another
// does not fail with it.
func TestCertificatesOfSlowStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, _, id := newFiledShard(t, nil, nil)
		authority, err := keyring.NewAuthority(keyring.Workload, time.Now())
		require.NoError(t, err)
		k.agents.Keys.Workload = authority
		store := storagetest.NewFaulty(storage.NewMemory())
		k.certs.store, k.certs.shard = store, "s1"
		store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Times: -1, Pass: true, Do: func() { <-time.After(6 * time.Second) }})
		key, _, err := ed25519.GenerateKey(nil)
		require.NoError(t, err)
		issued := make(chan error, 3)
		for range 3 {
			go func() {
				m := machineKit{machine: files.Machine{Instance: files.Instance{ID: id}}}
				_, err := k.authority(m).Issue(t.Context(), keyring.Template{Subject: "web", Tenant: "default", Key: key, Lifetime: time.Hour, Now: time.Now(), DNSNames: []string{"web"}})
				issued <- err
			}()
			<-time.After(time.Second)
		}
		for range 3 {
			require.NoError(t, <-issued)
		}
	})
}
