// Package aws makes machines of EC2 instances. docs/providers/aws.md says what
// it supports, which permissions it needs, and what each option and argument
// means.
//
// Each call of the provider is as few calls of EC2 as can be, and none is
// repeated by the SDK: EC2 answers "no capacity" with status 500, which the
// SDK's own retryer would repeat, and so empty the account's bucket of two
// launches a second. [provider.Client] repeats reads, the reconciler creates.
//
// A [Provider] is safe for concurrent use.
package aws

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	arc "github.com/aws/aws-sdk-go-v2/service/arczonalshift"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/internal/awsconf"
)

// A Provider makes machines in one region of one AWS account. It is safe for
// concurrent use, owns no goroutine and needs no closing.
type Provider struct {
	region     string
	queueURL   string // of events; empty: none
	queue      *sqs.Client
	ec2        *ec2.Client
	balancer   *elb.Client
	identity   *sts.Client
	parameters *ssm.Client
	shifts     *arc.Client // nil: zonal shifts are not followed
	metadata   *imds.Client
	lookups    lookups // by tags

	mu           sync.Mutex
	ownInterface string            // of this server, once it is known
	zones        map[string]string // names by ID, once they are known; replaced, never changed
}

var (
	_ nstance.Provider      = (*Provider)(nil)
	_ nstance.AccountNamer  = (*Provider)(nil)
	_ nstance.NodeNamer     = (*Provider)(nil)
	_ nstance.ImageResolver = (*Provider)(nil)
	_ nstance.SubnetCounter = (*Provider)(nil)
	_ nstance.SubnetLocator = (*Provider)(nil)
	_ nstance.ZoneShifter   = (*Provider)(nil)
	_ nstance.TypeLister    = (*Provider)(nil)
	_ nstance.PriceLister   = (*Provider)(nil)
	_ nstance.Balancer      = (*Provider)(nil)
	_ nstance.AddressMover  = (*Provider)(nil)
	_ nstance.Parker        = (*Provider)(nil)
	_ nstance.ConsoleReader = (*Provider)(nil)
	_ nstance.NoticeWatcher = (*Provider)(nil)
)

// Options are what shard.provider.options says. The zero value uses AWS's public
// endpoints and finds credentials as AWS programs do.
type Options struct {
	Endpoint          string `json:"endpoint" doc:"base URL of the EC2 API, such as that of a VPC endpoint" default:"AWS's own for the region"`
	ELBEndpoint       string `json:"elb_endpoint" doc:"base URL of the Elastic Load Balancing API" default:"AWS's own for the region"`
	STSEndpoint       string `json:"sts_endpoint" doc:"base URL of the Security Token Service, which is asked for the account" default:"AWS's own for the region"`
	SQSEndpoint       string `json:"sqs_endpoint" doc:"base URL of the Simple Queue Service API" default:"AWS's own for the region"`
	SSMEndpoint       string `json:"ssm_endpoint" doc:"base URL of the Systems Manager API, which is asked for images that a parameter names" default:"AWS's own for the region"`
	ARCEndpoint       string `json:"arc_endpoint" doc:"base URL of the ARC zonal shift API" default:"AWS's own for the region"`
	Profile           string `json:"profile" doc:"profile of the shared configuration and credentials files" default:"AWS_PROFILE, or none"`
	ZonalShift        bool   `json:"zonal_shift" doc:"whether no machine is made in a zone that a zonal shift or an autoshift has moved traffic away from" default:"false"`
	NetworkInterface  string `json:"network_interface" doc:"ID of the network interface of this server that takes shard.leader_address" default:"the first one of the EC2 instance that the server runs on, by the metadata service"`
	InterruptionQueue string `json:"interruption_queue" doc:"URL of this shard's own SQS queue, into which EventBridge puts interruptions, recommendations and scheduled changes of the account's instances" default:"none: only agents report them"`
}

// New returns a provider for the region and with the credentials of conf. Its
// HTTP client serves all calls; nil makes one. Its retryer is not used. o may be
// nil. New asks AWS nothing. It fails with Invalid when the region or an option
// is wrong.
func New(conf aws.Config, o *Options) (*Provider, error) {
	if o == nil {
		o = &Options{}
	}
	if err := checkRegion(conf.Region); err != nil {
		return nil, err
	}
	if err := o.check(conf.Region); err != nil {
		return nil, err
	}
	client := sender{next: conf.HTTPClient}
	if client.next == nil {
		client.next = newHTTPClient()
	}
	p := &Provider{
		region: conf.Region,
		ec2: ec2.NewFromConfig(conf, func(c *ec2.Options) {
			c.HTTPClient, c.Retryer = client, aws.NopRetryer{}
			c.BaseEndpoint = orDefault(o.Endpoint, c.BaseEndpoint)
		}),
		balancer: elb.NewFromConfig(conf, func(c *elb.Options) {
			c.HTTPClient, c.Retryer = client, aws.NopRetryer{}
			c.BaseEndpoint = orDefault(o.ELBEndpoint, c.BaseEndpoint)
		}),
		identity: sts.NewFromConfig(conf, func(c *sts.Options) {
			c.HTTPClient, c.Retryer = client, aws.NopRetryer{}
			c.BaseEndpoint = orDefault(o.STSEndpoint, c.BaseEndpoint)
		}),
		queue: sqs.NewFromConfig(conf, func(c *sqs.Options) {
			c.HTTPClient, c.Retryer = client, aws.NopRetryer{}
			c.BaseEndpoint = orDefault(o.SQSEndpoint, c.BaseEndpoint)
		}),
		parameters: ssm.NewFromConfig(conf, func(c *ssm.Options) {
			c.HTTPClient, c.Retryer = client, aws.NopRetryer{}
			c.BaseEndpoint = orDefault(o.SSMEndpoint, c.BaseEndpoint)
		}),
		queueURL:     o.InterruptionQueue,
		metadata:     imds.NewFromConfig(conf, func(c *imds.Options) { c.HTTPClient = newHTTPClient() }),
		ownInterface: o.NetworkInterface,
	}
	if o.ZonalShift {
		p.shifts = arc.NewFromConfig(conf, func(c *arc.Options) {
			c.HTTPClient, c.Retryer = client, aws.NopRetryer{}
			c.BaseEndpoint = orDefault(o.ARCEndpoint, c.BaseEndpoint)
		})
	}
	return p, nil
}

func orDefault(endpoint string, def *string) *string {
	if endpoint == "" {
		return def
	}
	return &endpoint
}

// maxIdleConnections is as many as [provider.Client] has calls in flight. The
// SDK's default of 10 would open a connection for almost every call of a burst.
const maxIdleConnections = 100

func newHTTPClient() *awshttp.BuildableClient {
	return awsconf.HTTPClient().WithTransportOptions(func(t *http.Transport) { t.MaxIdleConnsPerHost = maxIdleConnections })
}

// A sender marks calls that reached a connection: before that, nothing can have
// happened at AWS.
type sender struct{ next aws.HTTPClient }

type sentKey struct{}

// withSent returns a context that records whether a call made with it may have
// reached AWS.
func withSent(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := new(atomic.Bool)
	return context.WithValue(ctx, sentKey{}, sent), sent
}

// Do implements aws.HTTPClient. It gives the request a body of its own: the SDK
// closes its body as soon as an answer begins (smithy-go, transport/http,
// ClientHandler.Handle), while net/http may still look whether more of it comes,
// which then breaks the connection in the middle of the answer.
func (s sender) Do(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	sent, traced := ctx.Value(sentKey{}).(*atomic.Bool)
	if traced {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	}
	r = r.WithContext(ctx)
	var body []byte
	if r.Body != nil && r.Body != http.NoBody {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		r.Body, _ = r.GetBody()
	}
	answer, err := s.next.Do(r)
	if err != nil {
		return nil, err
	}
	if traced {
		sent.Store(true) // whatever connection it came by
	}
	if err := checkAnswer(answer, actionOf(body)); err != nil {
		return nil, err
	}
	return answer, nil
}

// actionOf returns the action of a request in the query protocol; empty: it is in another one.
func actionOf(body []byte) string {
	form, ok := strings.CutPrefix(string(body[:min(len(body), maxAction)]), "Action=")
	action, _, _ := strings.Cut(form, "&")
	if !ok {
		return ""
	}
	return action
}

// The bounds of an action's name, and of where an answer names it.
const (
	maxAction = 128
	maxHead   = 1 << 10
)

// checkAnswer refuses the success of something else than an action of AWS, such as the page of
// a proxy: the SDK takes any XML, and nothing at all, for an answer without content
// (awsEc2query_deserializeOpDescribeInstances, service/ec2), so for one without machines. Of
// actions in JSON, which their answers do not name, it refuses the empty one.
func checkAnswer(r *http.Response, action string) error {
	if r.StatusCode < http.StatusOK || r.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	body := bufio.NewReaderSize(r.Body, maxHead)
	head, err := body.Peek(maxHead)
	if action == "" && len(head) > 0 || action != "" && bytes.Contains(head, []byte("<"+action+"Response")) {
		r.Body = struct {
			io.Reader
			io.Closer
		}{body, r.Body}
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = errors.New("it is none of " + cmp.Or(action, "AWS: it is empty"))
	}
	return errors.Join(fmt.Errorf("the answer cannot be used: %w", err), r.Body.Close())
}
