//go:build servers

package reconcile_test

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// ec2Site is AWS at its least convenient: new machines are invisible for a while,
// answers lack tags that were not requested, a listing begins with an empty page.
func ec2Site(h testcloud.Hypervisor) *site {
	catalog := ec2test.DefaultCatalog("us-east-1")
	catalog.Subnets = []ec2test.Subnet{
		{ID: "subnet-0123456789abcdef0", Zone: "us-east-1a", Prefix: netip.MustParsePrefix("10.0.0.0/20")},
		{ID: "subnet-0123456789abcdef1", Zone: "us-east-1b", Prefix: netip.MustParsePrefix("10.0.16.0/20")},
	}
	catalog.TargetGroups[0].DeregistrationDelay = 10 * time.Second
	capacity := &testcloud.Capacity{}
	cloud := ec2test.New(&ec2test.Options{
		Catalog: catalog, Capacity: capacity, Hypervisor: h, IDTag: "nstance:instance-id", NoTagsUnasked: true, EmptyFirstPage: true,
		Delays: testcloud.Delays{Visible: 2 * time.Second, Start: 20 * time.Second, Delete: 5 * time.Second, Linger: time.Hour},
	})
	return &site{
		cloud: cloud, capacity: capacity,
		provider: func(url string, client *http.Client) nstance.Provider {
			return openEC2(url, client, ec2test.DefaultCredential)
		},
		shape: func(s *nstance.MachineSpec) {
			s.Image, s.InstanceType, s.Subnet = catalog.Images[0].ID, "m5.large", catalog.Subnets[0].ID
		},
		balancer: nstance.LoadBalancer{Name: "front", ID: "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/web/" + catalog.TargetGroups[0].ID},
		setCapacity: func(n int) {
			capacity.Set(testcloud.Shape{Type: "m5.large", Zone: "us-east-1a", Spot: true}, n-len(cloud.Machines()))
		},
		operation: func(_ *http.Request, body []byte) (string, bool) {
			form, err := url.ParseQuery(string(body))
			if err != nil {
				panic(err)
			}
			action := form.Get("Action")
			return action, !strings.HasPrefix(action, "Describe") && !strings.HasPrefix(action, "Get")
		},
	}
}

func openEC2(url string, client *http.Client, k ec2test.Credential) nstance.Provider {
	p, err := aws.New(sdk.Config{
		Region: "us-east-1", HTTPClient: client, Credentials: credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, ""),
	}, &aws.Options{Endpoint: url, ELBEndpoint: url, STSEndpoint: url})
	if err != nil {
		panic(err)
	}
	return p
}

func TestServersCrashOnEC2(t *testing.T) { crashOverHTTP(t, ec2Site) }
