package aws_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	ec2sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// Contents of the test cloud's default catalog.
const (
	region = "us-east-1"
	image  = "ami-0abcdef1234567890"
	subnet = "subnet-0123456789abcdef0"

	targetGroup = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/web/73e2d6bc24d8a067"
)

// world is a test cloud on a socket, with a provider.
type world struct {
	*testing.T
	*aws.Provider
	cloud  *ec2test.Cloud
	faults *testcloud.Faults
	url    string
	client *http.Client // nil: the provider's own
}

func newWorld(t *testing.T, o *ec2test.Options) *world {
	t.Helper()
	var opt ec2test.Options
	if o != nil {
		opt = *o
	}
	if opt.Faults == nil {
		opt.Faults = &testcloud.Faults{}
	}
	w := &world{T: t, cloud: ec2test.New(&opt), faults: opt.Faults}
	server := httptest.NewServer(record(w.cloud))
	w.url = server.URL
	t.Cleanup(func() {
		server.Close()
		require.NoError(t, w.cloud.Close())
	})
	w.Provider = w.open(&aws.Options{})
	return w
}

// account selects the test cloud's account.
func account() sdk.Config {
	k := ec2test.DefaultCredential
	return sdk.Config{Region: region, Credentials: credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, "")}
}

func (w *world) open(o *aws.Options) *aws.Provider {
	w.Helper()
	o.Endpoint, o.ELBEndpoint, o.STSEndpoint, o.SQSEndpoint, o.SSMEndpoint, o.ARCEndpoint = w.url, w.url, w.url, w.url, w.url, w.url
	conf := account()
	if w.client != nil {
		conf.HTTPClient = w.client
	}
	p, err := aws.New(conf, o)
	require.NoError(w, err)
	return p
}

func shape(s *nstance.MachineSpec) {
	s.Image, s.InstanceType, s.Subnet, s.Arch = image, "m5.large", subnet, nstance.AMD64
}

var owner = nstance.Owner{Installation: "i1", Cluster: "c", Shard: "a", Tenant: "default"}

// spec returns a fresh spec.
func (w *world) spec() nstance.MachineSpec {
	w.Helper()
	now := time.Now().UTC()
	id, err := nstance.NewInstanceID("tst", now)
	require.NoError(w, err)
	s := nstance.MachineSpec{
		ID: id, Owner: owner, Group: "web", CreatedAt: now, Epoch: 7, UserData: []byte("#cloud-config\n"), Token: string(id) + "-0123456789",
	}
	shape(&s)
	return s
}

func (w *world) create(s nstance.MachineSpec) nstance.Machine {
	w.Helper()
	m, err := w.Create(w.Context(), s)
	require.NoError(w, err)
	return m
}

// refused requires err to have that code.
func (w *world) refused(code nstance.Code, err error) {
	w.Helper()
	require.Equal(w, code, nstance.CodeOf(err), "%v", err)
}

// Guests record the data that machines are started with.
type guests struct {
	mu    sync.Mutex
	boots map[string]testcloud.Boot
}

func (g *guests) Start(b testcloud.Boot) (testcloud.Guest, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.boots == nil {
		g.boots = map[string]testcloud.Boot{}
	}
	g.boots[b.Handle] = b
	return guest{}, nil
}

func (g *guests) booted(handle string) (testcloud.Boot, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b, ok := g.boots[handle]
	return b, ok
}

type guest struct{}

func (guest) Announce(string, time.Time) {}
func (guest) Withdraw()                  {}
func (guest) Kill()                      {}

// server starts a machine that is not the provider's, and returns its network
// interface.
func (w *world) server() string {
	w.Helper()
	client := ec2sdk.NewFromConfig(account(), func(o *ec2sdk.Options) { o.BaseEndpoint = &w.url })
	out, err := client.RunInstances(w.Context(), &ec2sdk.RunInstancesInput{
		ImageId: sdk.String(image), InstanceType: "m5.large", SubnetId: sdk.String(subnet), MinCount: sdk.Int32(1), MaxCount: sdk.Int32(1),
	})
	require.NoError(w, err)
	return *out.Instances[0].NetworkInterfaces[0].NetworkInterfaceId
}

var badArgs = map[string]json.RawMessage{
	"security_group_ids": json.RawMessage(`{"security_group_ids": "sg-1"}`),
	"subnet_id":          json.RawMessage(`{"subnet_id": "subnet-1"}`),
	"volumes[0].szie":    json.RawMessage(`{"volumes": [{"device": "/dev/xvda", "szie": 8}]}`),
	"tags.nstance:x":     json.RawMessage(`{"tags": {"nstance:x": "y"}}`),
}

func subject(t *testing.T, o ec2test.Options) (*world, providertest.Subject) {
	g := &guests{}
	o.Hypervisor, o.IDTag = g, "nstance:instance-id"
	w := newWorld(t, &o)
	return w, providertest.Subject{
		Break:    w.faults.Outage,
		Again:    func() nstance.Provider { return w.open(&aws.Options{}) },
		Provider: w.Provider, Shape: shape, Spot: true, BadArgs: badArgs, Wait: 30 * time.Second,
		UserData: func(ctx context.Context, m nstance.Machine) ([]byte, error) {
			require.Eventually(t, func() bool {
				_, ok := g.booted(m.ProviderID)
				return ok
			}, time.Minute, time.Millisecond)
			b, _ := g.booted(m.ProviderID)
			return b.UserData, ctx.Err()
		},
	}
}

func TestProvider(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		_, s := subject(t, ec2test.Options{PageSize: 5, Delays: testcloud.Delays{
			Visible: 20 * time.Millisecond, Start: 10 * time.Millisecond, Delete: 10 * time.Millisecond, Linger: time.Hour,
		}})
		return s
	})
}

// TestProviderOfForgetfulCloud runs the suite with abilities against a cloud that omits
// optional tags, starts listings with an empty page, and drops deleted machines at once.
func TestProviderOfForgetfulCloud(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		w, s := subject(t, ec2test.Options{NoTagsUnasked: true, EmptyFirstPage: true, PageSize: 5})
		return w.able(s)
	})
}

// able adds the inputs for the abilities. Its machines run at once: load balancers
// accept no others.
func (w *world) able(s providertest.Subject) providertest.Subject {
	s.Image = nstance.ImageQuery{Owner: "136693071363", Name: "debian-12-*", Arch: nstance.AMD64}
	s.Subnets = []string{subnet, "subnet-0123456789abcdef1"}
	s.Types = []string{"m5.large", "m6g.large", "t2.micro"}
	s.Priced, s.Park = "m5.large", []nstance.ParkMode{nstance.ParkStopped}
	s.Balancer = nstance.LoadBalancer{Name: "front", ID: targetGroup, Args: json.RawMessage(`{"port": 8080}`)}
	s.NoBalancer = targetGroup + "0"
	s.Provider = w.open(&aws.Options{NetworkInterface: w.server()})
	s.Elsewhere = w.open(&aws.Options{NetworkInterface: w.server()})
	s.Address = "10.0.0.200"
	return s
}
