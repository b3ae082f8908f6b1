package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
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
	"github.com/nstance-go/nstance/aws/s3"
	"github.com/nstance-go/nstance/integration/realserver"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/test/faultproxy"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// storageFaults affect single answers of the storage. Writes that landed before stay.
var storageFaults = map[string]faultproxy.Fault{
	"409":                            {Mode: faultproxy.Refuse, Status: 409, Body: errorBody("ConditionalRequestConflict"), Match: isWrite},
	"409 after a landed write":       {Mode: faultproxy.Replace, Status: 409, Body: errorBody("ConditionalRequestConflict"), Match: isWrite},
	"412 after a landed write":       {Mode: faultproxy.Replace, Status: 412, Body: errorBody("PreconditionFailed"), Match: isWrite},
	"500 after a landed write":       {Mode: faultproxy.Replace, Status: 500, Body: errorBody("InternalError"), Match: isWrite},
	"time-out after a landed write":  {Mode: faultproxy.Hang, Match: isWrite},
	"connection cut before":          {Mode: faultproxy.Cut},
	"connection cut after it landed": {Mode: faultproxy.LoseAnswer},
	"slow down":                      {Mode: faultproxy.Refuse, Status: 503, Body: errorBody("SlowDown"), Times: 3},
	"unavailable":                    {Mode: faultproxy.Refuse, Status: 503, Body: errorBody("ServiceUnavailable"), Times: 2},
	"stale list":                     {Mode: faultproxy.Stale, Match: listsInstances, Times: 3},
}

func errorBody(code string) string {
	return `<?xml version="1.0"?><Error><Code>` + code + `</Code><Message>injected by the test</Message></Error>`
}

func isWrite(r *http.Request) bool {
	return r.Method == http.MethodPut || r.Method == http.MethodDelete
}

func listsInstances(r *http.Request) bool {
	return r.URL.Query().Get("list-type") == "2" && r.URL.Query().Get("prefix") == layout.InstancePrefix(zone)
}

// A faultyServer is one of two servers of a shard, with its own proxy to the storage.
type faultyServer struct {
	*world
	proxy         *faultproxy.Proxy
	faultsAllowed atomic.Bool
}

// A faultyShard is two servers, a simulated cloud, and a real agent on each machine.
type faultyShard struct {
	*testing.T
	cloud     *simcloud.Cloud
	direct    storage.Store
	servers   [2]*faultyServer
	addresses []server.Addresses // of the servers, the same after restarts
	admin     *client
	rng       *rand.Rand

	mu             sync.Mutex
	createdHandles map[nstance.InstanceID]map[string]bool // of all machines, deleted ones included
}

// recordingProvider records the handles of created machines.
type recordingProvider struct {
	nstance.Provider
	shard *faultyShard
}

func (m recordingProvider) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	got, err := m.Provider.Create(ctx, spec)
	if err == nil {
		m.shard.mu.Lock()
		defer m.shard.mu.Unlock()
		if m.shard.createdHandles[got.ID] == nil {
			m.shard.createdHandles[got.ID] = map[string]bool{}
		}
		m.shard.createdHandles[got.ID][got.ProviderID] = true
	}
	return got, err
}

func (s *faultyShard) openStore(bucket, endpoint string) storage.Store {
	store, err := s3.Open(s.Context(), realserver.URL(bucket, endpoint), &s3.Options{Timeout: time.Second})
	require.NoError(s, err)
	return store
}

func newFaultyShard(t *testing.T, seed uint64, bucket, endpoint string) *faultyShard {
	s := &faultyShard{T: t, cloud: simcloud.New(nil), rng: rand.New(rand.NewPCG(seed, 0)), createdHandles: map[nstance.InstanceID]map[string]bool{}}
	t.Cleanup(s.cloud.Close)
	s.direct = s.openStore(bucket, endpoint)
	keys, err := keyring.Bootstrap(t.Context(), vault.New(s.direct, nil), time.Now())
	require.NoError(t, err)
	for i := range s.servers {
		proxy, err := faultproxy.New(endpoint)
		require.NoError(t, err)
		front := httptest.NewServer(proxy)
		t.Cleanup(func() { proxy.Close(); front.CloseClientConnections(); front.Close() })
		st := &faultyServer{proxy: proxy, world: &world{T: t, cloud: s.cloud, keys: keys, eventAdded: make(chan struct{})}}
		st.store = s.openStore(bucket, front.URL)
		st.conf.set(strings.NewReplacer("127.0.0.1:0", "@").Replace(fmt.Sprintf(configuration,
			`"election": {"ttl": "2s"}, "request_timeout": "2s", "health_interval": "1s", "create_rate": {"per_second": 1000, "burst": 1000},`, 3)), nil)
		for strings.Contains(st.conf.text, "@") { // the same after a restart
			st.conf.text = strings.Replace(st.conf.text, "@", freeAddress(t), 1)
		}
		s.servers[i] = st
		s.start(st)
		s.addresses = append(s.addresses, st.server.Addresses())
	}
	s.admin = s.leader().registerClient(nstance.RoleAdmin, nstance.DefaultTenant)
	return s
}

func freeAddress(t *testing.T) string {
	address, err := freeport.Address()
	require.NoError(t, err)
	return address
}

// start starts a server, at first without storage faults.
func (s *faultyShard) start(st *faultyServer) {
	st.proxy.ClearFaults()
	_, err := lease.Prepare(s.Context(), st.store, zone)
	require.NoError(s, err)
	elector, err := lease.New(st.store, zone, &lease.Options{TTL: 2 * time.Second})
	require.NoError(s, err)
	for limit := time.Now().Add(eventually); ; { // a service manager would also try again
		st.server, err = server.New(s.Context(), st.store, recordingProvider{s.cloud, s}, st.conf.read, &server.Options{Kinds: kinds, Elector: elector})
		if err == nil || time.Now().After(limit) {
			break
		}
	}
	require.NoError(s, err)
	st.run()
	st.faultsAllowed.Store(true)
}

// restart stops a server and starts it again, as a service manager does.
func (s *faultyShard) restart(st *faultyServer) {
	st.faultsAllowed.Store(false)
	st.proxy.ClearFaults()
	require.NoError(s, st.stopServer())
	s.start(st)
}

// leader waits for a leader.
func (s *faultyShard) leader() *faultyServer {
	for limit := time.Now().Add(eventually); time.Now().Before(limit); <-time.After(5 * time.Millisecond) {
		for _, st := range s.servers {
			if st.getPage("/readyz").StatusCode == http.StatusOK {
				return st
			}
		}
	}
	require.FailNow(s, "no server leads")
	return nil
}

// runAgents runs an agent on each machine while it exists, until ctx ends.
func (s *faultyShard) runAgents(ctx context.Context) {
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
				a := s.newAgent(m.ID)
				wg.Go(func() { _ = a.Run(of) }) // it ends with its machine
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

func (s *faultyShard) newAgent(id nstance.InstanceID) *agent.Agent {
	dir := filepath.Join(s.TempDir(), string(id))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		panic(err)
	}
	spec, _ := s.cloud.Spec(id)
	for name, data := range map[string][]byte{"nonce.jwt": spec.UserData, "ca.crt": s.servers[0].keys.Identity.CertPEM()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			panic(err)
		}
	}
	o := &agent.Options{
		InstanceID: id, Provider: "none", IdentityDir: dir, KeysDir: filepath.Join(dir, "keys"), RecvDir: filepath.Join(dir, "recv"),
		Drain: func(context.Context, nstance.Drain) (nstance.Outcome, string) { return nstance.OutcomeDrained, "" },
	}
	for _, at := range s.addresses {
		o.RegistrationAddrs, o.AgentAddrs = append(o.RegistrationAddrs, at.Registration), append(o.AgentAddrs, at.Agent)
	}
	a, err := agent.New(o)
	if err != nil {
		panic(err)
	}
	return a
}

// injectFaults injects faults until ctx ends.
func (s *faultyShard) injectFaults(ctx context.Context, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var names []string
	for name := range storageFaults {
		names = append(names, name)
	}
	slices.Sort(names)
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(rng.Int64N(int64(60 * time.Millisecond)))):
		}
		st := s.servers[rng.IntN(2)]
		if n%20 == 0 {
			st.proxy.ClearFaults() // removes faults that no request has met
		}
		if st.faultsAllowed.Load() {
			st.proxy.Inject(storageFaults[names[n%len(names)]])
		}
	}
}

// callLeader calls the leader as an administrator.
func (s *faultyShard) callLeader(do func(context.Context, apiv1.OperatorServiceClient) error) error {
	ctx, cancel := context.WithTimeout(s.Context(), 3*time.Second)
	defer cancel()
	conn := s.admin.dial(s.leader().server.Addresses().Operator)
	defer conn.Close()
	return do(ctx, apiv1.NewOperatorServiceClient(conn))
}

func (s *faultyShard) scaleGroup(size int) error {
	return s.callLeader(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
		_, err := api.UpdateGroup(ctx, &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(int32(size))})
		return err
	})
}

// disturb does one random thing: an operator's request, the death of a machine or a
// restart of the leader.
func (s *faultyShard) disturb() {
	var id nstance.InstanceID
	if machines := s.cloud.Machines(); len(machines) > 0 {
		id = machines[s.rng.IntN(len(machines))].ID
	}
	switch s.rng.IntN(8) {
	case 0, 1, 2:
		_ = s.scaleGroup(1 + s.rng.IntN(6))
	case 3:
		_ = s.callLeader(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
			_, err := api.DrainInstance(ctx, &apiv1.DrainInstanceRequest{Id: string(id)})
			return err
		})
	case 4, 5:
		_ = s.callLeader(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
			_, err := api.DeleteInstance(ctx, &apiv1.DeleteInstanceRequest{Id: string(id)})
			return err
		})
	case 6:
		_ = s.cloud.Kill(id) // it may be gone already
	case 7:
		s.restart(s.leader())
	}
}

// settle restarts the servers without faults and waits until the shard is correct.
func (s *faultyShard) settle(size int) {
	for _, st := range s.servers {
		s.restart(st) // the next leader reads everything again
	}
	require.Eventually(s, func() bool { return s.scaleGroup(size) == nil }, eventually, 50*time.Millisecond)
	var why string
	ok := false
	for limit := time.Now().Add(2 * eventually); !ok && time.Now().Before(limit); <-time.After(50 * time.Millisecond) {
		why = s.unsettledReason(size)
		ok = why == ""
	}
	if !ok {
		s.logLacking()
	}
	require.True(s, ok, why)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, handles := range s.createdHandles {
		require.Len(s, handles, 1, "all machines of %s", id)
	}
}

// logLacking logs the records that have no machine, and what the leader says.
func (s *faultyShard) logLacking() {
	recs, _, err := records.New(s.direct, zone, nil).Load(s.Context())
	require.NoError(s, err)
	for _, rec := range recs {
		if _, err := s.cloud.Get(s.Context(), rec.ID); err != nil {
			text, _ := json.Marshal(rec)
			s.Logf("%v: %s, made as %v", err, text, s.createdHandles[rec.ID])
		}
	}
	s.Logf("%+v", s.leader().status())
}

// unsettledReason tells why the shard is not correct yet: group web must have size
// ready members and group db one, each a machine with a record.
func (s *faultyShard) unsettledReason(size int) string {
	recs, problems, err := records.New(s.direct, zone, nil).Load(s.Context())
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

// testStorageFaults disturbs a shard and its storage for the time d, then waits until
// it has settled.
func testStorageFaults(t *testing.T, seed uint64, bucket, endpoint string, d time.Duration) {
	s := newFaultyShard(t, seed, bucket, endpoint)
	var agents, injector sync.WaitGroup
	populated, stopAgents := context.WithCancel(context.Background())
	faulty, stopFaults := context.WithCancel(context.Background())
	defer agents.Wait()
	defer stopAgents()
	defer injector.Wait()
	defer stopFaults()
	agents.Go(func() { s.runAgents(populated) })
	injector.Go(func() { s.injectFaults(faulty, seed) })
	n := 0
	for end := time.Now().Add(d); time.Now().Before(end); n++ {
		s.disturb()
		<-time.After(time.Duration(s.rng.Int64N(int64(150 * time.Millisecond))))
	}
	stopFaults()
	injector.Wait()
	s.settle(4)
	faults := s.servers[0].proxy.FaultsHit() + s.servers[1].proxy.FaultsHit()
	t.Logf("%d disturbances, %d faulty answers", n, faults)
	require.Greater(t, faults, 10)
}

func TestStorageFaults(t *testing.T) {
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
	testStorageFaults(t, 1, "shard", srv.URL, 4*time.Second)
}
