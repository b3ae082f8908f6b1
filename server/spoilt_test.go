package server_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/internal/test/realserver"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/s3"
)

// spoilings are what happens to single answers of the storage. What it changed
// before, stays changed.
var spoilings = map[string]faultproxy.Fault{
	"409":                             {Mode: faultproxy.Refuse, Status: 409, Body: refusal("ConditionalRequestConflict"), Match: isWrite},
	"409 after a landed write":        {Mode: faultproxy.Replace, Status: 409, Body: refusal("ConditionalRequestConflict"), Match: isWrite},
	"412 after a landed write":        {Mode: faultproxy.Replace, Status: 412, Body: refusal("PreconditionFailed"), Match: isWrite},
	"500 after a landed write":        {Mode: faultproxy.Replace, Status: 500, Body: refusal("InternalError"), Match: isWrite},
	"time-out after a landed write":   {Mode: faultproxy.Hang, Match: isWrite},
	"connection cut before":           {Mode: faultproxy.Cut},
	"connection cut after it landed":  {Mode: faultproxy.LoseAnswer},
	"slow down":                       {Mode: faultproxy.Refuse, Status: 503, Body: refusal("SlowDown"), Times: 3},
	"unavailable":                     {Mode: faultproxy.Refuse, Status: 503, Body: refusal("ServiceUnavailable"), Times: 2},
	"a list that is older than it is": {Mode: faultproxy.Stale, Match: listsInstances, Times: 3},
}

func refusal(code string) string {
	return `<?xml version="1.0"?><Error><Code>` + code + `</Code><Message>as the test wants it</Message></Error>`
}

func isWrite(r *http.Request) bool {
	return r.Method == http.MethodPut || r.Method == http.MethodDelete
}

func listsInstances(r *http.Request) bool {
	return r.URL.Query().Get("list-type") == "2" && r.URL.Query().Get("prefix") == storage.InstancePrefix(zone)
}

// A site is one of two servers of a shard, with a way to the storage of its own.
type site struct {
	*world
	proxy *faultproxy.Proxy
	up    atomic.Bool // its storage may be spoilt
}

// A shard is two servers, a simulated cloud, and a real agent on each machine.
type spoiltShard struct {
	*testing.T
	cloud  *simcloud.Cloud
	direct storage.Store
	sites  [2]*site
	addrs  []server.Addresses // theirs, always the same
	admin  *holder
	rng    *rand.Rand

	mu   sync.Mutex
	made map[nstance.InstanceID]map[string]bool // handles of all machines ever made
}

// maker notes what is made.
type maker struct {
	nstance.Provider
	s *spoiltShard
}

func (m maker) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	got, err := m.Provider.Create(ctx, spec)
	if err == nil {
		m.s.mu.Lock()
		defer m.s.mu.Unlock()
		if m.s.made[got.ID] == nil {
			m.s.made[got.ID] = map[string]bool{}
		}
		m.s.made[got.ID][got.ProviderID] = true
	}
	return got, err
}

func (s *spoiltShard) open(bucket, endpoint string) storage.Store {
	store, err := s3.Open(s.Context(), realserver.URL(bucket, endpoint), &s3.Options{Timeout: time.Second})
	require.NoError(s, err)
	return store
}

func newSpoiltShard(t *testing.T, seed uint64, bucket, endpoint string) *spoiltShard {
	s := &spoiltShard{T: t, cloud: simcloud.New(nil), rng: rand.New(rand.NewPCG(seed, 0)), made: map[nstance.InstanceID]map[string]bool{}}
	t.Cleanup(s.cloud.Close)
	s.direct = s.open(bucket, endpoint)
	keys, err := registration.Bootstrap(t.Context(), vault.New(s.direct, nil), time.Now())
	require.NoError(t, err)
	for i := range s.sites {
		proxy, err := faultproxy.New(endpoint)
		require.NoError(t, err)
		front := httptest.NewServer(proxy)
		t.Cleanup(func() { proxy.Close(); front.CloseClientConnections(); front.Close() })
		st := &site{proxy: proxy, world: &world{T: t, cloud: s.cloud, keys: keys, news: make(chan struct{})}}
		st.store = s.open(bucket, front.URL)
		st.conf.set(strings.NewReplacer("127.0.0.1:0", "@").Replace(fmt.Sprintf(configuration,
			`"election": {"ttl": "2s"}, "request_timeout": "2s", "health_interval": "1s", "create_rate": {"per_second": 1000, "burst": 1000},`, 3)), nil)
		for strings.Contains(st.conf.text, "@") { // it must be the same after a restart
			st.conf.text = strings.Replace(st.conf.text, "@", freeAddress(t), 1)
		}
		s.sites[i] = st
		s.start(st)
		s.addrs = append(s.addrs, st.server.Addresses())
	}
	s.admin = s.leader().client(nstance.RoleAdmin, nstance.DefaultTenant)
	return s
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// start starts a server, with sound storage at first.
func (s *spoiltShard) start(st *site) {
	st.proxy.ClearFaults()
	_, err := lease.Prepare(s.Context(), st.store, zone)
	require.NoError(s, err)
	elector, err := lease.New(st.store, zone, &lease.Options{TTL: 2 * time.Second})
	require.NoError(s, err)
	for limit := time.Now().Add(eventually); ; { // a service manager tries again, too
		st.server, err = server.New(s.Context(), st.store, maker{s.cloud, s}, st.conf.read, &server.Options{Kinds: kinds, Elector: elector})
		if err == nil || time.Now().After(limit) {
			break
		}
	}
	require.NoError(s, err)
	st.run()
	st.up.Store(true)
}

// restart stops a server as its service manager would, and starts it again.
func (s *spoiltShard) restart(st *site) {
	st.up.Store(false)
	st.proxy.ClearFaults()
	require.NoError(s, st.stop())
	s.start(st)
}

// leader waits until there is one.
func (s *spoiltShard) leader() *site {
	for limit := time.Now().Add(eventually); time.Now().Before(limit); <-time.After(5 * time.Millisecond) {
		for _, st := range s.sites {
			if st.get("/readyz").StatusCode == http.StatusOK {
				return st
			}
		}
	}
	require.FailNow(s, "no server leads")
	return nil
}

// populate runs an agent on each machine for as long as that is there, until
// ctx ends.
func (s *spoiltShard) populate(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	agents := map[nstance.InstanceID]context.CancelFunc{}
	for {
		there := map[nstance.InstanceID]bool{}
		for _, m := range s.cloud.Machines() {
			there[m.ID] = true
			if agents[m.ID] == nil {
				var of context.Context
				of, agents[m.ID] = context.WithCancel(ctx)
				a := s.agent(m.ID)
				wg.Go(func() { _ = a.Run(of) }) // it ends when its machine does
			}
		}
		for id, end := range agents {
			if !there[id] {
				end()
				delete(agents, id)
			}
		}
		select {
		case <-ctx.Done():
			for _, end := range agents {
				end()
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *spoiltShard) agent(id nstance.InstanceID) *agent.Agent {
	dir := filepath.Join(s.TempDir(), string(id))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		panic(err)
	}
	spec, _ := s.cloud.Spec(id)
	for name, data := range map[string][]byte{"nonce.jwt": spec.UserData, "ca.crt": s.sites[0].keys.Identity.CertPEM()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			panic(err)
		}
	}
	o := &agent.Options{
		InstanceID: id, Provider: "none", IdentityDir: dir, KeysDir: filepath.Join(dir, "keys"), RecvDir: filepath.Join(dir, "recv"),
		Drain: func(context.Context, nstance.Drain) (nstance.Outcome, string) { return nstance.OutcomeDrained, "" },
	}
	for _, at := range s.addrs {
		o.RegistrationAddrs, o.AgentAddrs = append(o.RegistrationAddrs, at.Registration), append(o.AgentAddrs, at.Agent)
	}
	a, err := agent.New(o)
	if err != nil {
		panic(err)
	}
	return a
}

// spoil spoils answers until ctx ends.
func (s *spoiltShard) spoil(ctx context.Context, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var names []string
	for name := range spoilings {
		names = append(names, name)
	}
	slices.Sort(names)
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(rng.Int64N(int64(60 * time.Millisecond)))):
		}
		st := s.sites[rng.IntN(2)]
		if n%20 == 0 {
			st.proxy.ClearFaults() // of what met no request
		}
		if st.up.Load() {
			st.proxy.Inject(spoilings[names[n%len(names)]])
		}
	}
}

// call calls the leader as an administrator. Errors are ignored.
func (s *spoiltShard) call(do func(context.Context, apiv1.OperatorServiceClient) error) error {
	ctx, cancel := context.WithTimeout(s.Context(), 3*time.Second)
	defer cancel()
	conn := s.admin.dial(s.leader().server.Addresses().Operator)
	defer conn.Close()
	return do(ctx, apiv1.NewOperatorServiceClient(conn))
}

func (s *spoiltShard) scale(size int) error {
	return s.call(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
		_, err := api.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(int32(size))})
		return err
	})
}

// trouble does one thing that people, clouds and service managers do.
func (s *spoiltShard) trouble() {
	var id nstance.InstanceID
	if machines := s.cloud.Machines(); len(machines) > 0 {
		id = machines[s.rng.IntN(len(machines))].ID
	}
	switch s.rng.IntN(8) {
	case 0, 1, 2:
		_ = s.scale(1 + s.rng.IntN(6))
	case 3:
		_ = s.call(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
			_, err := api.DrainInstance(ctx, &apiv1.DrainInstanceRequest{Id: string(id)})
			return err
		})
	case 4, 5:
		_ = s.call(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
			_, err := api.DeleteInstance(ctx, &apiv1.DeleteInstanceRequest{Id: string(id)})
			return err
		})
	case 6:
		_ = s.cloud.Kill(id) // it may be gone already
	case 7:
		s.restart(s.leader())
	}
}

// settle ends the trouble and waits until the shard is as it should be.
func (s *spoiltShard) settle(size int) {
	for _, st := range s.sites {
		s.restart(st) // the present leader has read what is
	}
	require.Eventually(s, func() bool { return s.scale(size) == nil }, eventually, 50*time.Millisecond)
	var why string
	ok := false
	for limit := time.Now().Add(2 * eventually); !ok && time.Now().Before(limit); <-time.After(50 * time.Millisecond) {
		why = s.unsettled(size)
		ok = why == ""
	}
	require.True(s, ok, why)
	for id, handles := range s.made {
		require.Len(s, handles, 1, "machines ever made of %s", id)
	}
}

// unsettled says what is not as it should be: so many members ready, and one of
// the other group, each a machine with a record.
func (s *spoiltShard) unsettled(size int) string {
	recs, problems, err := storage.NewRecords(s.direct, zone, nil).Load(s.Context())
	require.NoError(s, err)
	require.Empty(s, problems)
	var recorded, running []nstance.InstanceID
	for _, rec := range recs {
		recorded = append(recorded, rec.ID)
	}
	for _, m := range s.cloud.Machines() {
		running = append(running, m.ID)
	}
	slices.Sort(recorded)
	slices.Sort(running)
	st := s.leader().status()
	for _, g := range st.Groups {
		if want := map[string]int{"web": size, "db": 1}[g.Group]; g.Size != want || g.Ready != want || g.Leaving > 0 {
			return fmt.Sprintf("records %v, machines %v, group %+v", recorded, running, g)
		}
	}
	if len(st.Groups) != 2 || len(recorded) != size+1 || !slices.Equal(recorded, running) {
		return fmt.Sprintf("%d groups, records %v, machines %v", len(st.Groups), recorded, running)
	}
	return ""
}

// liveThrough is the test: work and spoilt answers for some time, and peace
// after that.
func liveThrough(t *testing.T, seed uint64, bucket, endpoint string, d time.Duration) {
	s := newSpoiltShard(t, seed, bucket, endpoint)
	var agents, spoiler sync.WaitGroup
	populated, desert := context.WithCancel(context.Background())
	spoilt, heal := context.WithCancel(context.Background())
	defer agents.Wait()
	defer desert()
	defer spoiler.Wait()
	defer heal()
	agents.Go(func() { s.populate(populated) })
	spoiler.Go(func() { s.spoil(spoilt, seed) })
	n := 0
	for end := time.Now().Add(d); time.Now().Before(end); n++ {
		s.trouble()
		<-time.After(time.Duration(s.rng.Int64N(int64(150 * time.Millisecond))))
	}
	heal()
	spoiler.Wait()
	s.settle(4)
	faults := s.sites[0].proxy.Spoilt() + s.sites[1].proxy.Spoilt()
	t.Logf("%d troubles, %d spoilt answers, %d machines", n, faults, len(s.made))
	require.Greater(t, faults, 10)
}

func TestDamagedStorage(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(name, value)
	}
	back := s3mem.New()
	require.NoError(t, back.CreateBucket("shard"))
	srv := httptest.NewServer(gofakes3.New(back, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	t.Cleanup(srv.Close)
	liveThrough(t, 1, "shard", srv.URL, 4*time.Second)
}
