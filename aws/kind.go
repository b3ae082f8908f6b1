package aws

import (
	"context"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/internal/sdklog"
	"github.com/nstance-go/nstance/provider"
)

// maxUserData is in bytes before base64: "User data is limited to 16 KB, in raw
// form" ("Run commands when you launch an EC2 instance with user data input",
// EC2 User Guide).
const maxUserData = 16 << 10

// consistency is how long EC2 may not know its own new instance: seconds, as a
// rule; gardener/machine-controller-manager-provider-aws waits up to five minutes
// before it gives up.
const consistency = time.Minute

const sampleImage = "ami-0123456789abcdef0"

// The bucket of RunInstances calls of an account in a region ("Request throttling
// for the Amazon EC2 API", EC2 Developer Guide).
const (
	launchesPerSecond = 2
	launchBurst       = 5
)

// Kind returns what a composition needs to offer AWS.
func Kind() provider.Kind {
	return provider.Kind{
		Name: "aws", Options: &Options{}, Args: &Args{}, BalancerArgs: &BalancerArgs{},
		Check: checkSettings, CheckSpec: checkSpec, Open: open,
		Images: true, Balancers: true, Address: true, Spot: true, Prices: true, Park: parkModes(),
		Consistency: consistency, MaxUserData: maxUserData, SampleImage: sampleImage, Rate: launchesPerSecond, Burst: launchBurst,
	}
}

func parkModes() []nstance.ParkMode {
	return []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}
}

func open(ctx context.Context, s provider.Settings) (nstance.Provider, func() error, error) {
	o, err := decodeOptions(s)
	if err != nil {
		return nil, nil, err
	}
	conf, err := config.LoadDefaultConfig(ctx, config.WithRegion(s.Region), config.WithSharedConfigProfile(o.Profile), config.WithLogger(sdklog.Logger()), config.WithHTTPClient(newHTTPClient()))
	if err != nil {
		return nil, nil, nstance.FieldError("options.profile", "see the AWS configuration of this machine", "%s", err)
	}
	p, err := New(conf, o)
	if err != nil {
		return nil, nil, err
	}
	return p, func() error { return nil }, nil
}

func checkSettings(s provider.Settings) error {
	_, err := decodeOptions(s)
	return err
}

func decodeOptions(s provider.Settings) (*Options, error) {
	if err := checkRegion(s.Region); err != nil {
		return nil, err
	}
	if s.Zone != "" {
		return nil, nstance.FieldError("zone", "leave it out, and choose subnets in shard.subnet_pools", "a subnet of AWS has its zone already")
	}
	var o Options
	if err := provider.DecodeOptions(s.Options, &o); err != nil {
		return nil, err
	}
	return &o, o.check(s.Region)
}

// region matches what all partitions call their regions, such as us-gov-west-1.
var region = regexp.MustCompile(`^[a-z]{2,4}(-[a-z]+){1,3}-[0-9]{1,2}$`)

// zoneName matches the names of zones, local zones such as us-west-2-lax-1a included.
var zoneName = regexp.MustCompile(`^[a-z]{2,4}(-[a-z0-9]+){2,6}[a-z]$`)

func checkRegion(name string) error {
	if !region.MatchString(name) {
		return nstance.FieldError("region", "name a region such as eu-central-1", "%.64q is not a region of AWS", name)
	}
	return nil
}

func (o *Options) check(region string) error {
	for name, endpoint := range map[string]string{
		"endpoint": o.Endpoint, "elb_endpoint": o.ELBEndpoint, "sts_endpoint": o.STSEndpoint, "sqs_endpoint": o.SQSEndpoint,
		"ssm_endpoint": o.SSMEndpoint, "arc_endpoint": o.ARCEndpoint,
	} {
		u, err := url.Parse(endpoint)
		if endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
			return nstance.FieldError("options."+name, "use https://host", "%.64q is not a URL", endpoint)
		}
	}
	if o.NetworkInterface != "" && !strings.HasPrefix(o.NetworkInterface, "eni-") {
		return nstance.FieldError("options.network_interface", "use an ID such as eni-0123456789abcdef0", "%.64q is not the ID of a network interface", o.NetworkInterface)
	}
	return checkQueue(o.InterruptionQueue, region)
}

// queuePath is what follows the host in the URL of a queue: the account and the name.
var queuePath = regexp.MustCompile(`^/[0-9]{12}/[A-Za-z0-9_-]{1,80}$`)

// checkQueue refuses what is not the URL of a standard queue of the region.
func checkQueue(queue, region string) error {
	const field = "options.interruption_queue"
	remedy := "use the URL of a standard queue, https://sqs." + region + ".amazonaws.com/ACCOUNT/NAME"
	u, err := url.Parse(queue)
	switch {
	case queue == "":
		return nil
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.Fragment != "" || !queuePath.MatchString(u.Path):
		return nstance.FieldError(field, remedy, "%.128q is not the URL of a standard queue", queue)
	case strings.HasPrefix(u.Host, "sqs.") && strings.Contains(u.Host, ".amazonaws.") && !strings.HasPrefix(u.Host, "sqs."+region+"."):
		return nstance.FieldError(field, remedy, "%.128q is a queue of another region than %s", queue, region)
	}
	return nil
}
