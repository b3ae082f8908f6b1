package server

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
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/server/files"
	"github.com/nstance-go/nstance/storage"
)

// Bounds on looking after files.
const (
	// fileWorkers is how many machines' files are made at a time: issuing a
	// certificate waits for storage.
	fileWorkers = 32
	// filePass is how often sessions are looked at for what time alone has
	// brought about.
	filePass = 5 * time.Second
	// troubledRefresh is how soon sources are read again after one failed.
	troubledRefresh = 30 * time.Second
	// maxOwnBytes is how much may be held of contents that are for one machine
	// only. Beyond that machines wait for their turn.
	maxOwnBytes = 64 << 20
	// unseenFor is how long a term waits for the provider's word on a machine's
	// addresses before it takes the machine's own.
	unseenFor = time.Minute
)

// A fileKeeper sees to it that connected machines have the files that their
// groups want.
type fileKeeper struct {
	t       *term
	sources files.Sources
	certs   *certlog

	mu     sync.Mutex
	more   *sync.Cond // there is more to do, or the term has ended
	over   bool
	kits   map[kitKey]*kitSlot
	wanted map[nstance.GroupKey]string // runtime hashes as last published
	change []nstance.GroupKey          // groups to look at: they want something else
	reread []*kitSlot                  // kits to make again
	dirty  []*session                  // sessions to look at
	parked []*session                  // those that wait for ownBytes
	own    int64                       // bytes held for one machine each
	pruned time.Time
}

// A kitKey names a kit: that of a group, or that of an instance made by request
// with variables of its own.
type kitKey struct {
	group      nstance.GroupKey
	definition string // digest of the instance's own; empty: the group's
}

// A kitSlot holds the present kit.
type kitSlot struct {
	key    kitKey
	turn   chan struct{} // has room for one: whose turn it is to make it
	now    atomic.Pointer[madeKit]
	queued bool // to be made again; under the keeper's lock
}

// A madeKit is a kit with what is needed to make it again.
type madeKit struct {
	*files.Kit
	definition nstance.Definition
	at         time.Time
}

func newFileKeeper(t *term) *fileKeeper {
	k := &fileKeeper{
		t: t, kits: map[kitKey]*kitSlot{}, wanted: map[nstance.GroupKey]string{},
		certs: &certlog{store: t.server.store, shard: t.conf.Shard.ID, check: t.granted.Err},
		sources: files.Sources{
			Secrets: t.server.secretSource(),
			Objects: objects{t.server.store},
		},
	}
	k.more = sync.NewCond(&k.mu)
	return k
}

// secretSource returns where secrets for files come from.
func (s *Server) secretSource() files.Source {
	if s.own.Shard.Secrets.Source == config.StoreSecrets {
		return secrets{vault.New(s.store, s.opts.Secrets)}
	}
	return s.opts.SecretSource
}

// secrets are those in storage that are nobody's keys.
type secrets struct{ vault *vault.Vault }

// Get implements files.Source.
func (s secrets) Get(ctx context.Context, name string) ([]byte, error) {
	if err := nstance.ValidateSecretName("secret", name); err != nil {
		return nil, err
	}
	data, err := s.vault.Get(ctx, name)
	if errors.Is(err, nstance.NotFound) {
		return nil, nstance.Errorf(nstance.NotFound, "there is no secret %s: store it with nstance-admin secret put", name)
	}
	return data, err
}

// objects are those in storage that may become files.
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
	tick := time.NewTicker(k.t.server.opts.intervals.filePass)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.pass(ctx)
			k.t.server.opts.intervals.filePassed()
		}
	}
}

func (k *fileKeeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	k.more.Broadcast()
}

// step does one thing of what there is to do, and reports false when the term
// has ended. What makes kits comes first: sessions wait for it.
func (k *fileKeeper) step(ctx context.Context) bool {
	k.mu.Lock()
	for !k.over && len(k.change)+len(k.reread)+len(k.dirty) == 0 {
		k.more.Wait()
	}
	switch {
	case k.over:
		k.mu.Unlock()
		return false
	case len(k.change) > 0:
		key := k.change[0]
		k.change = k.change[1:]
		k.mu.Unlock()
		k.changed(ctx, key)
	case len(k.reread) > 0:
		slot := k.reread[0]
		k.reread = k.reread[1:]
		k.mu.Unlock()
		k.again(ctx, slot)
	default:
		s := k.dirty[0]
		k.dirty = k.dirty[1:]
		k.mu.Unlock()
		s.lookAtFiles(ctx, k)
	}
	return true
}

// look asks for a session to be looked at. It never blocks. The session says
// that it is queued, so that it is there once.
func (k *fileKeeper) look(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dirty = append(k.dirty, s)
	k.more.Signal()
}

// published takes note that the groups may want something else. It never blocks.
func (k *fileKeeper) published() {
	now := k.t.reconciler.RuntimeHashes()
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, hash := range now {
		if k.wanted[key] != hash {
			k.change = append(k.change, key)
		}
	}
	k.wanted = now
	k.more.Broadcast()
}

// thawed has groups looked at that a freeze kept as they were: one, or all for
// the zero key. It never blocks.
func (k *fileKeeper) thawed(one nstance.GroupKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.wanted {
		if key == one || one == (nstance.GroupKey{}) {
			k.change = append(k.change, key)
		}
	}
	k.more.Broadcast()
}

// changed makes a group's kit and has its sessions looked at.
func (k *fileKeeper) changed(ctx context.Context, key nstance.GroupKey) {
	all := k.t.sessions.of(key)
	if len(all) == 0 {
		return
	}
	if v, err := k.t.reconciler.Runtime(all[0].id); err == nil {
		_, _ = k.kit(ctx, kitKey{group: key}, v) // its failure is each session's
	}
	for _, s := range all {
		s.wantFiles()
	}
}

// kit returns the kit for what a machine should have, made now if need be. A
// freeze keeps the one that there is.
func (k *fileKeeper) kit(ctx context.Context, key kitKey, v reconcile.RuntimeView) (*kitSlot, error) {
	slot := k.slot(key)
	good := func() bool {
		made := slot.now.Load()
		return made != nil && (v.Frozen || made.Hash() == v.Hash)
	}
	if good() {
		return slot, nil
	}
	select {
	case slot.turn <- struct{}{}:
		defer func() { <-slot.turn }()
	case <-ctx.Done():
		return nil, nstance.Errorf(nstance.Unavailable, "files not made: %w", ctx.Err())
	}
	if !good() {
		k.make(ctx, slot, v.Definition, v.Hash)
	}
	return slot, nil
}

func (k *fileKeeper) slot(key kitKey) *kitSlot {
	k.mu.Lock()
	defer k.mu.Unlock()
	slot := k.kits[key]
	if slot == nil {
		slot = &kitSlot{key: key, turn: make(chan struct{}, 1)}
		k.kits[key] = slot
	}
	return slot
}

// make makes a slot's kit and reports whether it makes other sets than before.
// Callers have the slot's turn.
func (k *fileKeeper) make(ctx context.Context, slot *kitSlot, d nstance.Definition, hash string) (other bool) {
	ctx, cancel := k.t.bound(ctx)
	defer cancel()
	old := slot.now.Load()
	var before *files.Kit
	if old != nil {
		before = old.Kit
	}
	made := &madeKit{files.Prepare(ctx, hash, d, k.common(), k.sources, before), d, time.Now()}
	if old != nil && made.Same(before) && !made.Troubled() {
		made.Kit = before // so that sessions see that nothing has changed
	}
	slot.now.Store(made)
	for _, problem := range made.Problems() {
		if old == nil || !slices.Contains(old.Problems(), problem) {
			k.t.log.Warn("file cannot be made", "group", slot.key.group.String(), "err", problem)
		}
	}
	return old == nil || !made.Same(before)
}

// again makes a kit again, since what it was made of may have changed.
func (k *fileKeeper) again(ctx context.Context, slot *kitSlot) {
	k.mu.Lock()
	slot.queued = false
	k.mu.Unlock()
	select {
	case slot.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	made := slot.now.Load()
	other := k.make(ctx, slot, made.definition, made.Hash())
	<-slot.turn
	if !other && !made.Varies() {
		return
	}
	for _, s := range k.t.sessions.of(slot.key.group) {
		s.wantFiles() // machines' own facts may have changed, too
	}
}

func (k *fileKeeper) common() files.Common {
	conf, addrs := k.t.server.config(), k.t.server.advertised()
	return files.Common{
		Cluster:  files.Cluster{ID: conf.Cluster.ID, CACert: string(k.t.server.keys.Identity.CertPEM())},
		Server:   files.Server{Shard: conf.Shard.ID, RegistrationAddr: addrs.Registration, AgentAddr: addrs.Agent, OperatorAddr: addrs.Operator},
		Provider: files.Provider{Kind: conf.Shard.Provider.Kind, Region: conf.Shard.Provider.Region, Zone: conf.Shard.Provider.Zone},
	}
}

// pass looks at what time alone has brought about: answers that did not come,
// certificates that are due, sources that are to be read again. What frozen
// groups were made from stays.
func (k *fileKeeper) pass(ctx context.Context) {
	used := map[*kitSlot]bool{}
	for _, s := range k.t.sessions.all() {
		if slot := s.checkFiles(); slot != nil {
			used[slot] = true
		}
	}
	refresh, frozen := k.t.server.config().Shard.FileRefresh, k.t.reconciler.FrozenGroups()
	k.mu.Lock()
	for key, slot := range k.kits {
		made := slot.now.Load()
		switch {
		case slot.queued || made == nil || frozen[key.group]:
		case !used[slot]:
			delete(k.kits, key) // nobody is connected: it is made when somebody is
		case made.due(refresh):
			slot.queued = true
			k.reread = append(k.reread, slot)
		}
	}
	k.more.Broadcast()
	k.mu.Unlock()
	if time.Since(k.pruned) > 24*time.Hour {
		k.pruned = time.Now()
		if err := k.certs.prune(ctx, k.t.server.opts.Now()); err != nil {
			k.t.log.Warn("log of certificates not pruned", "code", nstance.CodeOf(err), "err", err)
		}
	}
}

// due reports whether it is time to make the kit again.
func (m *madeKit) due(refresh time.Duration) bool {
	if m.Troubled() {
		refresh = min(refresh, troubledRefresh)
	}
	return (m.External() || m.Varies() || m.Troubled()) && time.Since(m.at) >= refresh
}

// problems returns what a person should see.
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

// take reserves memory for contents of one machine. A session that gets none is
// parked: it is looked at again when there may be some.
func (k *fileKeeper) take(s *session, bytes int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.own > 0 && k.own+bytes > maxOwnBytes {
		k.parked = append(k.parked, s)
		return false
	}
	k.own += bytes
	return true
}

// give returns what take has reserved.
func (k *fileKeeper) give(bytes int64) {
	if bytes == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.own -= bytes
	k.dirty = append(k.dirty, k.parked...)
	k.parked = nil
	k.more.Broadcast()
}

// A machineKit is a machine with the kit that its files are made from.
type machineKit struct {
	slot    *kitSlot
	made    *madeKit
	machine files.Machine
	group   nstance.GroupKey
	frozen  bool
}

// find returns what a machine's files are made from.
func (k *fileKeeper) find(ctx context.Context, id nstance.InstanceID) (f machineKit, err error) {
	v, err := k.t.reconciler.Runtime(id)
	if err != nil {
		return f, err
	}
	key := kitKey{group: v.Record.Key()}
	if v.Record.OnDemand && v.Record.Definition != "" {
		if key, err = k.ownVars(ctx, &v, key); err != nil {
			return f, err
		}
	}
	slot, err := k.kit(ctx, key, v)
	if err != nil {
		return f, err
	}
	made := slot.now.Load()
	if made.Varies() && !v.Seen && k.t.server.opts.Now().Sub(k.t.began) < unseenFor {
		return f, nstance.Errorf(nstance.Unavailable, "the provider has not been asked about the machine yet")
	}
	return machineKit{slot, made, k.machine(v), v.Record.Key(), v.Frozen}, nil
}

// ownVars lays the variables that an instance was asked for with over those of
// its group.
func (k *fileKeeper) ownVars(ctx context.Context, v *reconcile.RuntimeView, key kitKey) (kitKey, error) {
	own, err := k.t.reconciler.Records().Definition(ctx, v.Record.Definition)
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
	v.Definition.Vars = vars
	hash, err := confighash.RuntimeOf(v.Definition).Hash()
	v.Hash, key.definition = string(hash), v.Record.Definition
	return key, err
}

// machine says what templates and certificates state of a machine.
func (k *fileKeeper) machine(v reconcile.RuntimeView) files.Machine {
	rec := v.Record
	addresses := v.Machine.Addresses
	if len(addresses) == 0 {
		addresses = rec.Addresses
	}
	m := files.Machine{
		Instance: files.Instance{ID: rec.ID, Kind: rec.ID.Kind(), Arch: v.Definition.Arch, Type: rec.Shape.InstanceType},
		Image:    rec.Image, Tenant: rec.Tenant, Addresses: v.Machine.Addresses,
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
	return workload{k.t.server.keys.Workload, k, m}
}

// workload is the workload authority for one machine. Nothing leaves it before
// it is logged.
type workload struct {
	*registration.Authority
	k *fileKeeper
	m machineKit
}

// Issue implements files.Authority.
func (w workload) Issue(ctx context.Context, t registration.Template) (registration.KeyRecord, error) {
	rec, err := w.Authority.Issue(t)
	if err != nil {
		return rec, err
	}
	ctx, cancel := w.k.t.bound(ctx)
	defer cancel()
	id := w.m.machine.Instance.ID
	err = w.k.certs.append(ctx, issued{
		Time: t.Now.UTC(), Instance: id, Tenant: w.m.group.Tenant, Group: w.m.group.Group, Serial: rec.Serial, Issuer: rec.Issuer,
		Subject: t.Subject, Key: rec.Fingerprint, NotBefore: rec.NotBefore, NotAfter: rec.NotAfter,
	})
	if err == nil {
		w.k.t.log.Info("certificate issued", "instance_id", id, "serial", rec.Serial, "subject", t.Subject, "not_after", rec.NotAfter)
	}
	return rec, err
}

// fileConditions says what is to be seen of a machine's files.
func fileConditions(v reconcile.InstanceView) (out []string) {
	has, made := v.Report.ConfigHash, v.Record.OnDemand && v.Report.ConfigHash == v.Record.RuntimeHash
	if has != "" && v.Runtime != "" && has != v.Runtime && !made {
		out = append(out, "runtime_drifted")
	}
	broken := slices.ContainsFunc(v.Report.Files, func(f nstance.FileStatus) bool { return f.Error != "" })
	if broken || v.Report.FilesError != "" {
		out = append(out, "file_error")
	}
	return out
}
