package agents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

// Bounds on keeping files.
const (
	// fileWorkers is how many machines' files are made at a time: issuing a
	// certificate waits for storage.
	fileWorkers = 32
	// askedKits is how many kits of what other parties say are made at a time. The other
	// workers are left for groups that need none.
	askedKits = fileWorkers / 2
	// DefaultFilePass is how often sessions are checked for what depends on time.
	DefaultFilePass = 5 * time.Second
	// kitIdle is how long a kit that no session uses is kept, after one asked for it.
	kitIdle = time.Minute
	// failedRefresh is how soon sources are read again after one failed.
	failedRefresh = 30 * time.Second
	// maxOwnBytes bounds the contents in memory that are for one machine only.
	// Machines beyond wait.
	maxOwnBytes = 64 << 20
	// providerWait is how long a term waits for the provider's answer on a machine's
	// addresses before it uses those that the machine reported.
	providerWait = time.Minute
	// Certificates signed for one machine: each is a line of a log that is kept. All of
	// its files twice at once, and then one a minute.
	signaturesPerMinute = 1
	signatureBurst      = 2 * filelimit.Certificates
)

// A fileKeeper keeps the files of connected machines as their groups define them.
type fileKeeper struct {
	agents  *Agents
	sources files.Sources
	certs   *certlog
	pruned  time.Time // used by run only

	mu      sync.Mutex
	work    *sync.Cond // there is work, or the term has ended
	ended   bool
	kits    map[kitKey]*kitSlot
	hashes  map[nstance.GroupKey]string // runtime hashes as last published
	compare bool                        // definitions of groups may have changed
	changed []nstance.GroupKey          // groups with another definition
	stale   []*kitSlot                  // kits to make again
	dirty   []*session                  // sessions to check
	parked  []*session                  // sessions that wait for memory
	asking  int                         // kits of what other parties say that are being made
	waiting []*session                  // sessions that wait until one has been made
	own     int64                       // bytes held for one machine each
}

// A kitKey names a kit: that of a group, or that of an on-demand instance with
// variables of its own.
type kitKey struct {
	group      nstance.GroupKey
	definition string // digest of the instance's own; empty: the group's
}

// A kitSlot holds the present kit.
type kitSlot struct {
	key    kitKey
	now    atomic.Pointer[madeKit]
	making bool      // guarded by the keeper's lock, as are
	queued bool      // among the stale kits
	wanted time.Time // when a session last asked for it
	// dropped: the keeper has forgotten it and never makes it again. A session that was about
	// to use it asks for another.
	dropped atomic.Bool
}

// A madeKit is a kit with what is needed to make it again.
type madeKit struct {
	*files.Kit
	definition nstance.Definition
	madeAt     time.Time
}

func newFileKeeper(a *Agents, store storage.Store) *fileKeeper {
	k := &fileKeeper{
		agents: a, kits: map[kitKey]*kitSlot{}, hashes: map[nstance.GroupKey]string{},
		certs:   &certlog{store: store, shard: a.Owner.Shard, check: a.Check, bound: a.Bound, mayPrune: a.MayPrune},
		sources: files.Sources{Secrets: a.Secrets, Objects: objects{store}},
	}
	k.work = sync.NewCond(&k.mu)
	return k
}

// objects are the objects in storage that files may be made from.
type objects struct{ store storage.Store }

// Get implements files.Source.
func (o objects) Get(ctx context.Context, key string) ([]byte, error) {
	if !strings.HasPrefix(key, "files/") {
		return nil, nstance.FieldError("object", "put it below files/", "%q is not below files/", key)
	}
	obj, err := o.store.Get(ctx, key)
	if errors.Is(err, nstance.NotFound) {
		return nil, nstance.Errorf(nstance.NotFound, "there is no object %s in storage", key)
	}
	return obj.Data, err
}

// run works until ctx ends.
func (k *fileKeeper) run(ctx context.Context) {
	defer context.AfterFunc(ctx, k.end)()
	var wg sync.WaitGroup
	defer wg.Wait()
	for range fileWorkers {
		wg.Go(func() {
			for k.step(ctx) {
			}
		})
	}
	tick := time.NewTicker(k.agents.FilePass)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.pass(ctx)
			k.agents.OnFilePassed()
		}
	}
}

func (k *fileKeeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	k.work.Broadcast()
}

// step does one piece of work, and reports false when the term has ended. Kits come
// first: sessions wait for them.
func (k *fileKeeper) step(ctx context.Context) bool {
	k.mu.Lock()
	for !k.ended && !k.compare && len(k.changed)+len(k.stale)+len(k.dirty) == 0 {
		k.work.Wait()
	}
	switch {
	case k.ended:
		k.mu.Unlock()
		return false
	case k.compare:
		k.compare = false
		k.mu.Unlock()
		k.compareGroups()
	case len(k.changed) > 0:
		key := k.changed[0]
		k.changed = k.changed[1:]
		k.mu.Unlock()
		k.updateGroup(key)
	case len(k.stale) > 0:
		slot := k.stale[0]
		k.stale = k.stale[1:]
		k.mu.Unlock()
		k.remake(ctx, slot)
	default:
		s := k.dirty[0]
		k.dirty = k.dirty[1:]
		k.mu.Unlock()
		s.checkFiles(ctx, k)
	}
	return true
}

// enqueue has a session checked by a worker. It never blocks. The session knows that
// it is queued, so that it is in the queue once.
func (k *fileKeeper) enqueue(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dirty = append(k.dirty, s)
	k.work.Signal()
}

// groupsChanged has a worker look which definitions of groups have changed: once for many
// calls. It never blocks.
func (k *fileKeeper) groupsChanged() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.compare = true
	k.work.Broadcast()
}

// compareGroups queues the groups whose definition has changed.
func (k *fileKeeper) compareGroups() {
	now := k.agents.shard.RuntimeHashes()
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, hash := range now {
		if k.hashes[key] != hash {
			k.changed = append(k.changed, key)
		}
	}
	k.hashes = now
	k.work.Broadcast()
}

// thawed queues a group that a freeze kept as it was, or all for the zero key. It
// never blocks.
func (k *fileKeeper) thawed(one nstance.GroupKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.hashes {
		if key == one || one == (nstance.GroupKey{}) {
			k.changed = append(k.changed, key)
		}
	}
	k.work.Broadcast()
}

// updateGroup queues a group's sessions.
func (k *fileKeeper) updateGroup(key nstance.GroupKey) {
	for _, s := range k.agents.sessions.of(key) {
		s.wantFiles()
	}
}

// errKitAwaited is the error of a session that is checked again once a kit has been made.
var errKitAwaited = errors.New("the kit is not made yet")

// kit returns the kit for what the machine of s should have, made now if necessary. A freeze
// keeps the kit that there is. It fails with errKitAwaited while another worker makes it, or
// too many others.
func (k *fileKeeper) kit(ctx context.Context, s *session, key kitKey, v loop.Runtime) (*kitSlot, error) {
	slot := k.slot(key)
	current := func() bool {
		made := slot.now.Load()
		return made != nil && (v.Frozen || made.Hash() == v.Hash)
	}
	if current() {
		return slot, nil
	}
	asks := files.Asks(v.Definition)
	if !k.beginKit(slot, asks, s) {
		return nil, errKitAwaited
	}
	defer k.endKit(slot, asks)
	if !current() {
		k.make(ctx, slot, v.Definition, v.Hash)
	}
	return slot, nil
}

// beginKit reports whether the caller is to make a slot's kit, and then calls endKit: a worker
// waits for no other. s, if any, is checked again when that may have changed.
func (k *fileKeeper) beginKit(slot *kitSlot, asks bool, s *session) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slot.making || asks && k.asking == askedKits {
		if s != nil {
			k.waiting = append(k.waiting, s)
		}
		return false
	}
	slot.making = true
	if asks {
		k.asking++
	}
	return true
}

func (k *fileKeeper) endKit(slot *kitSlot, asks bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	slot.making = false
	if asks {
		k.asking--
	}
	k.dirty = append(k.dirty, k.waiting...)
	k.waiting = nil
	k.work.Broadcast()
}

func (k *fileKeeper) slot(key kitKey) *kitSlot {
	k.mu.Lock()
	defer k.mu.Unlock()
	slot := k.kits[key]
	if slot == nil {
		slot = &kitSlot{key: key}
		k.kits[key] = slot
	}
	slot.wanted = time.Now()
	return slot
}

// make makes a slot's kit and reports whether sets made from it differ from before.
// Callers have begun it.
func (k *fileKeeper) make(ctx context.Context, slot *kitSlot, d nstance.Definition, hash string) (differs bool) {
	ctx, cancel := k.agents.Bound(ctx)
	defer cancel()
	old := slot.now.Load()
	var before *files.Kit
	if old != nil {
		before = old.Kit
	}
	made := &madeKit{files.Prepare(ctx, hash, d, k.common(), k.sources, before), d, time.Now()}
	if old != nil && made.Same(before) && !made.Troubled() && !before.Troubled() {
		made.Kit = before // sessions compare the pointer
	}
	slot.now.Store(made)
	for _, problem := range made.Problems() {
		if old == nil || !slices.Contains(old.Problems(), problem) {
			k.agents.Log.Warn("file cannot be rendered", "group", slot.key.group.String(), "err", problem)
		}
	}
	return old == nil || !made.Same(before)
}

// remake makes a kit again, since its sources may have changed. Where it cannot begin, the
// next pass queues it again.
func (k *fileKeeper) remake(ctx context.Context, slot *kitSlot) {
	k.mu.Lock()
	slot.queued = false
	k.mu.Unlock()
	asks := files.Asks(slot.now.Load().definition)
	if !k.beginKit(slot, asks, nil) {
		return
	}
	made := slot.now.Load()
	differs := k.make(ctx, slot, made.definition, made.Hash())
	k.endKit(slot, asks)
	if !differs && !made.Varies() {
		return
	}
	for _, s := range k.agents.sessions.of(slot.key.group) {
		s.wantFiles() // facts of the machine may have changed as well
	}
}

func (k *fileKeeper) common() files.Common {
	conf := k.agents.Config()
	return files.Common{
		Cluster:  files.Cluster{ID: conf.Cluster.ID, CACert: string(k.agents.Keys.Identity.CertPEM())},
		Server:   k.agents.Addresses(),
		Provider: files.Provider{Kind: conf.Shard.Provider.Kind, Region: conf.Shard.Provider.Region, Zone: conf.Shard.Provider.Zone},
	}
}

// pass checks what depends on time: missing answers, certificates that are due,
// sources to read again. The kits of frozen groups stay.
func (k *fileKeeper) pass(ctx context.Context) {
	used := map[*kitSlot]bool{}
	for _, s := range k.agents.sessions.all() {
		if slot := s.checkFileDeadlines(); slot != nil {
			used[slot] = true
		}
	}
	refresh, frozen := k.agents.Config().Shard.FileRefresh, k.agents.shard.FrozenGroups()
	k.mu.Lock()
	for key, slot := range k.kits {
		made := slot.now.Load()
		switch {
		case slot.queued || made == nil || frozen[key.group]:
		case !used[slot] && time.Since(slot.wanted) > kitIdle:
			slot.dropped.Store(true)
			delete(k.kits, key)
		case used[slot] && made.due(refresh):
			slot.queued = true
			k.stale = append(k.stale, slot)
		}
	}
	k.work.Broadcast()
	k.mu.Unlock()
	if time.Since(k.pruned) > 24*time.Hour {
		k.pruned = time.Now()
		if err := k.certs.prune(ctx, k.agents.Now()); err != nil {
			k.pruned = k.pruned.Add(-23 * time.Hour) // again in an hour
			k.agents.Log.Warn("certificate log not pruned", "code", nstance.CodeOf(err), "err", err)
		}
	}
}

// due reports whether it is time to make the kit again.
func (m *madeKit) due(refresh time.Duration) bool {
	if m.Troubled() {
		refresh = min(refresh, failedRefresh)
	}
	return (m.External() || m.Varies() || m.Troubled()) && time.Since(m.madeAt) >= refresh
}

// problems returns what operators should see.
func (k *fileKeeper) problems() (out []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, slot := range k.kits {
		if made := slot.now.Load(); made != nil {
			for _, p := range made.Problems() {
				out = append(out, fmt.Sprintf("group %s: file not made: %s", key.group, p))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// reserve reserves memory for contents of one machine. A session without memory is
// parked, and checked again when some is released.
func (k *fileKeeper) reserve(s *session, bytes int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.own > 0 && k.own+bytes > maxOwnBytes {
		k.parked = append(k.parked, s)
		return false
	}
	k.own += bytes
	return true
}

// release returns reserved memory.
func (k *fileKeeper) release(bytes int64) {
	if bytes == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.own -= bytes
	k.dirty = append(k.dirty, k.parked...)
	k.parked = nil
	k.work.Broadcast()
}

// A machineKit is a machine with the kit that its files are made from.
type machineKit struct {
	slot    *kitSlot
	made    *madeKit
	machine files.Machine
	group   nstance.GroupKey
	frozen  bool
}

// find returns the kit that a machine's files are made from.
func (k *fileKeeper) find(ctx context.Context, s *session) (f machineKit, err error) {
	id := s.id
	v, err := k.agents.shard.Runtime(id)
	if err != nil {
		return f, err
	}
	rec, ok := k.agents.shard.Records().Get(id)
	if !ok {
		return f, nstance.Errorf(nstance.NotFound, "no record of instance %s", id)
	}
	key := kitKey{group: rec.Key()}
	if rec.OnDemand && rec.Definition != "" {
		if key, err = k.ownVars(ctx, &v, key, rec.Definition); err != nil {
			return f, err
		}
	}
	slot, err := k.kit(ctx, s, key, v)
	if err != nil {
		return f, err
	}
	made := slot.now.Load()
	if made.Varies() && !v.Seen && k.agents.Now().Sub(k.agents.Began) < providerWait {
		return f, nstance.Errorf(nstance.Unavailable, "the provider has not been asked about the machine yet")
	}
	m := machineOf(rec, v)
	m.Domains = k.agents.Config().CertificateDomains(rec.Tenant)
	return machineKit{slot, made, m, key.group, v.Frozen}, nil
}

// ownVars lays the variables of an on-demand instance over those of its group.
func (k *fileKeeper) ownVars(ctx context.Context, v *loop.Runtime, key kitKey, digest string) (kitKey, error) {
	own, err := k.agents.shard.Records().Definition(ctx, digest)
	if err != nil {
		return key, err
	}
	vars := maps.Clone(v.Definition.Vars)
	if vars == nil {
		vars = map[string]string{}
	}
	maps.Copy(vars, own.Vars)
	if maps.Equal(vars, v.Definition.Vars) {
		return key, nil
	}
	for name, value := range vars {
		if was, ok := v.Definition.Vars[name]; (!ok || was != value) && !slices.Contains(v.Definition.GivenVars, name) {
			v.Definition.GivenVars = append(slices.Clip(v.Definition.GivenVars), name)
		}
	}
	v.Definition.Vars = vars
	hash, err := confighash.Runtime(v.Definition)
	v.Hash, key.definition = string(hash), digest
	return key, err
}

// machineOf returns what templates and certificates say of a machine.
func machineOf(rec records.Instance, v loop.Runtime) files.Machine {
	addresses := v.Machine.Addresses
	if len(addresses) == 0 {
		addresses = rec.Addresses
	}
	m := files.Machine{
		Instance: files.Instance{ID: rec.ID, Kind: rec.ID.Kind(), Arch: v.Definition.Arch, Type: rec.Shape.InstanceType},
		Image:    rec.Image, Tenant: rec.Tenant, Addresses: v.Machine.Addresses, GivenVars: v.Definition.GivenVars,
	}
	m.Instance.Hostname, _, _ = strings.Cut(rec.Hostname, ".")
	if strings.Contains(rec.Hostname, ".") {
		m.Instance.FQDN = rec.Hostname
	}
	m.Instance.IP4 = firstAddress(addresses, netip.Addr.Is4)
	m.Instance.IP6 = firstAddress(addresses, netip.Addr.Is6)
	return m
}

func firstAddress(addresses []netip.Addr, is func(netip.Addr) bool) string {
	for _, a := range addresses {
		if a = a.Unmap(); is(a) {
			return a.String()
		}
	}
	return ""
}

// authority returns what issues certificates to one machine.
func (k *fileKeeper) authority(m machineKit) files.Authority {
	return workload{k.agents.Keys.Workload, k, m}
}

// workload is the workload authority for one machine. A certificate is logged before
// it is returned.
type workload struct {
	*keyring.Authority
	k *fileKeeper
	m machineKit
}

// Issue implements files.Authority.
func (w workload) Issue(ctx context.Context, t keyring.Template) (keyring.KeyRecord, error) {
	id := w.m.machine.Instance.ID
	if !w.k.agents.signatures.Allow(string(id), time.Now()) {
		return keyring.KeyRecord{}, &nstance.Error{
			Code: nstance.Throttled, Msg: fmt.Sprintf("instance %s has more certificates signed than %d at once and %d a minute", id, signatureBurst, signaturesPerMinute),
			Remedy: "keep the keys and certificates on the machine; it is tried again",
		}
	}
	rec, err := w.Authority.Issue(t)
	if err != nil {
		return rec, err
	}
	err = w.k.certs.append(ctx, issuedCertificate{
		Time: t.Now.UTC(), Instance: id, Tenant: w.m.group.Tenant, Group: w.m.group.Group, Serial: rec.Serial, Issuer: rec.Issuer,
		Subject: t.Subject, Key: rec.Fingerprint, NotBefore: rec.NotBefore, NotAfter: rec.NotAfter,
	})
	if err == nil {
		w.k.agents.Log.Info("certificate issued", "instance_id", id, "serial", rec.Serial, "subject", t.Subject, "not_after", rec.NotAfter)
	}
	return rec, err
}
