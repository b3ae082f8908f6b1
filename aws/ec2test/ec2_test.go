package ec2test_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/stretchr/testify/require"

	cloud "github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/provider/testcloud/inmemory"
)

const (
	image  = "ami-0abcdef1234567890"
	subnet = "subnet-0123456789abcdef0"
	other  = "subnet-0123456789abcdef1"
)

// record wraps every cloud with the recorder of modelcheck, if the build has it
// (servers_test.go).
var record = func(h http.Handler) http.Handler { return h }

// A rig is a cloud on a socket with a client of AWS's own SDK.
type rig struct {
	*testing.T
	*cloud.Cloud
	url    string
	http   *http.Client
	client *ec2.Client
}

func newRig(t *testing.T, o *cloud.Options) *rig {
	c := cloud.New(o)
	s := httptest.NewServer(record(c))
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, c.Close())
	})
	r := &rig{T: t, Cloud: c, url: s.URL, http: &http.Client{Transport: ownBody{s.Client().Transport}}}
	r.client = r.signedBy(cloud.DefaultCredential)
	return r
}

// newBubbleRig is a rig without a socket, for a synctest bubble.
func newBubbleRig(t *testing.T, o *cloud.Options) *rig {
	c := cloud.New(o)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	r := &rig{T: t, Cloud: c, url: "http://ec2.test", http: &http.Client{Transport: inmemory.Transport{Handler: record(c)}}}
	r.client = r.signedBy(cloud.DefaultCredential)
	return r
}

// ownBody gives requests a body of their own. The SDK closes its body as soon as
// an answer begins, while the transport may still look whether more of it comes,
// and then breaks the connection.
type ownBody struct{ http.RoundTripper }

func (o ownBody) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	return o.RoundTripper.RoundTrip(r)
}

func (r *rig) signedBy(k cloud.Credential) *ec2.Client {
	return ec2.New(ec2.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(r.url), Retryer: aws.NopRetryer{}, HTTPClient: r.http,
		Credentials: credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey, k.SessionToken),
	})
}

// launch asks for one machine that is like the default one but for change.
func (r *rig) launch(change func(*ec2.RunInstancesInput)) (types.Instance, error) {
	in := &ec2.RunInstancesInput{
		ImageId: aws.String(image), InstanceType: "m5.large", SubnetId: aws.String(subnet), MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		UserData:          aws.String(base64.StdEncoding.EncodeToString([]byte("#cloud-config\n"))),
		TagSpecifications: []types.TagSpecification{{ResourceType: "instance", Tags: []types.Tag{{Key: aws.String("name"), Value: aws.String("web")}}}},
	}
	if change != nil {
		change(in)
	}
	out, err := r.client.RunInstances(r.Context(), in)
	if err != nil {
		return types.Instance{}, err
	}
	require.Len(r, out.Instances, 1)
	return out.Instances[0], nil
}

func (r *rig) mustLaunch(change func(*ec2.RunInstancesInput)) types.Instance {
	r.Helper()
	m, err := r.launch(change)
	require.NoError(r, err)
	return m
}

// find returns the machines that fit the filters, as name, value, name, value.
func (r *rig) find(filters ...string) ([]types.Instance, error) {
	in := &ec2.DescribeInstancesInput{}
	for i := 0; i < len(filters); i += 2 {
		in.Filters = append(in.Filters, types.Filter{Name: aws.String(filters[i]), Values: []string{filters[i+1]}})
	}
	out, err := r.client.DescribeInstances(r.Context(), in)
	if err != nil {
		return nil, err
	}
	var found []types.Instance
	for _, v := range out.Reservations {
		found = append(found, v.Instances...)
	}
	return found, nil
}

func (r *rig) state(id string) types.InstanceStateName {
	r.Helper()
	found, err := r.find("instance-id", id)
	require.NoError(r, err)
	if len(found) == 0 {
		return ""
	}
	return found[0].State.Name
}

// refused requires err to be a refusal with that code and HTTP status.
func refused(t *testing.T, code string, status int, err error) {
	t.Helper()
	var api smithy.APIError
	require.ErrorAs(t, err, &api)
	require.Equal(t, code, api.ErrorCode(), api.ErrorMessage())
	var answer *smithyhttp.ResponseError
	require.ErrorAs(t, err, &answer)
	require.Equal(t, status, answer.HTTPStatusCode())
}

func TestMachineLives(t *testing.T) {
	r := newRig(t, nil)
	m := r.mustLaunch(nil)
	require.Equal(t, types.InstanceStateNamePending, m.State.Name)
	require.Equal(t, "web", aws.ToString(m.Tags[0].Value))
	require.Equal(t, types.InstanceStateNameRunning, r.state(*m.InstanceId))
	found, err := r.find("tag:name", "w?b", "instance-state-name", "running")
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, *m.PrivateIpAddress, *found[0].NetworkInterfaces[0].PrivateIpAddress)
	require.Empty(t, found[0].InstanceLifecycle)

	out, err := r.client.TerminateInstances(r.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{*m.InstanceId}})
	require.NoError(t, err)
	require.Equal(t, types.InstanceStateNameRunning, out.TerminatingInstances[0].PreviousState.Name)
	require.Empty(t, r.state(*m.InstanceId))
	require.Empty(t, r.Machines())
}

func TestClientToken(t *testing.T) {
	with := func(change func(*ec2.RunInstancesInput)) func(*ec2.RunInstancesInput) {
		return func(in *ec2.RunInstancesInput) {
			in.ClientToken = aws.String("token")
			if change != nil {
				change(in)
			}
		}
	}
	capacity := &testcloud.Capacity{}
	r := newRig(t, &cloud.Options{Capacity: capacity, Delays: testcloud.Delays{Linger: time.Hour}})
	first := r.mustLaunch(with(nil))
	require.Equal(t, *first.InstanceId, *r.mustLaunch(with(nil)).InstanceId, "the same token is the same machine")
	_, err := r.launch(with(func(in *ec2.RunInstancesInput) { in.UserData = nil }))
	refused(t, "IdempotentParameterMismatch", 400, err)
	elsewhere := r.mustLaunch(with(func(in *ec2.RunInstancesInput) { in.SubnetId = aws.String(other) }))
	require.NotEqual(t, *first.InstanceId, *elsewhere.InstanceId, "a token counts in one zone")
	_, err = r.client.TerminateInstances(r.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{*first.InstanceId}})
	require.NoError(t, err)
	_, err = r.launch(with(nil))
	refused(t, "IdempotentInstanceTerminated", 400, err)

	bound := func(kind types.InstanceType) func(*ec2.RunInstancesInput) {
		return func(in *ec2.RunInstancesInput) { in.ClientToken, in.InstanceType = aws.String("bound"), kind }
	}
	shape := testcloud.Shape{Type: "c5.large", Zone: "us-east-1a"}
	capacity.Set(shape, 0)
	_, err = r.launch(bound("c5.large"))
	refused(t, "InsufficientInstanceCapacity", 500, err)
	_, err = r.launch(bound("m5.large"))
	refused(t, "IdempotentParameterMismatch", 400, err)
	capacity.Set(shape, 1)
	r.mustLaunch(bound("c5.large"))
}

func TestClientTokenMayReturnTheOldMachine(t *testing.T) {
	r := newRig(t, &cloud.Options{OldMachineOnMismatch: true})
	token := func(in *ec2.RunInstancesInput) { in.ClientToken = aws.String("t") }
	first := r.mustLaunch(token)
	second := r.mustLaunch(func(in *ec2.RunInstancesInput) { token(in); in.InstanceType = "c5.large" })
	require.Equal(t, *first.InstanceId, *second.InstanceId)
	require.Equal(t, types.InstanceType("m5.large"), second.InstanceType)
}

func TestLaunchIsRefused(t *testing.T) {
	r := newRig(t, nil)
	spot := func(o types.SpotMarketOptions) func(*ec2.RunInstancesInput) {
		return func(in *ec2.RunInstancesInput) {
			in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: "spot", SpotOptions: &o}
		}
	}
	tags := func(kind types.ResourceType, n int, key string) func(*ec2.RunInstancesInput) {
		return func(in *ec2.RunInstancesInput) {
			s := types.TagSpecification{ResourceType: kind}
			for i := range n {
				s.Tags = append(s.Tags, types.Tag{Key: aws.String(fmt.Sprintf("%s%d", key, i)), Value: aws.String("v")})
			}
			in.TagSpecifications = []types.TagSpecification{s}
		}
	}
	for name, c := range map[string]struct {
		code   string
		change func(*ec2.RunInstancesInput)
	}{
		"malformed image": {"InvalidAMIID.Malformed", func(in *ec2.RunInstancesInput) { in.ImageId = aws.String("debian") }},
		"unknown image":   {"InvalidAMIID.NotFound", func(in *ec2.RunInstancesInput) { in.ImageId = aws.String("ami-0123456789abcdef9") }},
		"unknown type":    {"InvalidParameterValue", func(in *ec2.RunInstancesInput) { in.InstanceType = "x9.large" }},
		"architecture":    {"InvalidParameterValue", func(in *ec2.RunInstancesInput) { in.InstanceType = "m6g.large" }},
		"unknown subnet":  {"InvalidSubnetID.NotFound", func(in *ec2.RunInstancesInput) { in.SubnetId = aws.String("subnet-0") }},
		"unknown group":   {"InvalidGroup.NotFound", func(in *ec2.RunInstancesInput) { in.SecurityGroupIds = []string{"sg-1"} }},
		"unknown key":     {"InvalidKeyPair.NotFound", func(in *ec2.RunInstancesInput) { in.KeyName = aws.String("x") }},
		"unknown profile": {"InvalidParameterValue", func(in *ec2.RunInstancesInput) {
			in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: aws.String("x")}
		}},
		"long token":    {"InvalidParameterValue", func(in *ec2.RunInstancesInput) { in.ClientToken = aws.String(strings.Repeat("a", 65)) }},
		"raw user data": {"InvalidUserData.Malformed", func(in *ec2.RunInstancesInput) { in.UserData = aws.String("#!/bin/sh\n") }},
		"large user data": {"InvalidParameterValue", func(in *ec2.RunInstancesInput) {
			in.UserData = aws.String(base64.StdEncoding.EncodeToString(make([]byte, 16385)))
		}},
		"subnet twice": {"InvalidParameterCombination", func(in *ec2.RunInstancesInput) {
			in.NetworkInterfaces = []types.InstanceNetworkInterfaceSpecification{{DeviceIndex: aws.Int32(0), SubnetId: aws.String(subnet)}}
		}},
		"hop limit": {"InvalidParameterValue", func(in *ec2.RunInstancesInput) {
			in.MetadataOptions = &types.InstanceMetadataOptionsRequest{HttpPutResponseHopLimit: aws.Int32(65)}
		}},
		"low price":      {"InvalidParameterValue", spot(types.SpotMarketOptions{MaxPrice: aws.String("0.001")})},
		"valid until":    {"InvalidParameterCombination", spot(types.SpotMarketOptions{ValidUntil: aws.Time(time.Now())})},
		"one-time stop":  {"InvalidParameterCombination", spot(types.SpotMarketOptions{SpotInstanceType: "one-time", InstanceInterruptionBehavior: "stop"})},
		"tag of no spot": {"InvalidParameterValue", tags("spot-instances-request", 1, "k")},
		"51 tags":        {"TagLimitExceeded", tags("instance", 51, "k")},
		"aws tag":        {"InvalidParameterValue", tags("instance", 1, "aws:k")},
		"long tag":       {"InvalidParameterValue", tags("instance", 1, strings.Repeat("k", 128))},
		"clear hibernation": {"UnsupportedHibernationConfiguration", func(in *ec2.RunInstancesInput) {
			in.HibernationOptions = &types.HibernationOptionsRequest{Configured: aws.Bool(true)}
		}},
		"half of the CPU options": {"InvalidParameterCombination", func(in *ec2.RunInstancesInput) {
			in.CpuOptions = &types.CpuOptionsRequest{ThreadsPerCore: aws.Int32(1)}
		}},
		"enclave and hibernation": {"InvalidParameterCombination", func(in *ec2.RunInstancesInput) {
			in.BlockDeviceMappings = []types.BlockDeviceMapping{{
				DeviceName: aws.String("/dev/xvda"), Ebs: &types.EbsBlockDevice{Encrypted: aws.Bool(true), VolumeSize: aws.Int32(16)},
			}}
			in.EnclaveOptions, in.HibernationOptions = &types.EnclaveOptionsRequest{Enabled: aws.Bool(true)}, &types.HibernationOptionsRequest{Configured: aws.Bool(true)}
		}},
		"EFA-only first": {"InvalidParameterCombination", first(func(n *types.InstanceNetworkInterfaceSpecification) { n.InterfaceType = aws.String("efa-only") })},
		"EFA":            {"InvalidParameterCombination", first(func(n *types.InstanceNetworkInterfaceSpecification) { n.InterfaceType = aws.String("efa") })},
		"other kind":     {"InvalidParameterValue", first(func(n *types.InstanceNetworkInterfaceSpecification) { n.InterfaceType = aws.String("trunk") })},
		"second card":    {"InvalidParameterValue", first(func(n *types.InstanceNetworkInterfaceSpecification) { n.NetworkCardIndex = aws.Int32(1) })},
		"prefix and address": {"InvalidParameterCombination", first(func(n *types.InstanceNetworkInterfaceSpecification) {
			n.Ipv4PrefixCount, n.SecondaryPrivateIpAddressCount = aws.Int32(1), aws.Int32(1)
		})},
		"block without reservation": {"MissingParameter", func(in *ec2.RunInstancesInput) {
			in.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeCapacityBlock}
		}},
		"counts": {"InvalidParameterCombination", func(in *ec2.RunInstancesInput) { in.MinCount = aws.Int32(2) }},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.launch(c.change)
			refused(t, c.code, 400, err)
		})
	}
	require.Empty(t, r.Machines())
}

// first launches with one network interface that is changed.
func first(change func(*types.InstanceNetworkInterfaceSpecification)) func(*ec2.RunInstancesInput) {
	return func(in *ec2.RunInstancesInput) {
		n := types.InstanceNetworkInterfaceSpecification{DeviceIndex: aws.Int32(0), SubnetId: in.SubnetId}
		change(&n)
		in.SubnetId, in.NetworkInterfaces = nil, []types.InstanceNetworkInterfaceSpecification{n}
	}
}

func TestDescribeInPages(t *testing.T) {
	r := newRig(t, &cloud.Options{EmptyFirstPage: true})
	for range 12 {
		r.mustLaunch(nil)
	}
	pages := ec2.NewDescribeInstancesPaginator(r.client, &ec2.DescribeInstancesInput{MaxResults: aws.Int32(5)})
	seen, sizes := map[string]bool{}, []int{}
	for pages.HasMorePages() {
		out, err := pages.NextPage(r.Context())
		require.NoError(t, err)
		n := 0
		for _, v := range out.Reservations {
			for _, m := range v.Instances {
				seen[*m.InstanceId] = true
				n++
			}
		}
		sizes = append(sizes, n)
	}
	require.Len(t, seen, 12)
	require.Equal(t, []int{0, 5, 5, 2}, sizes)
}

func TestDescribeIsRefused(t *testing.T) {
	r := newRig(t, nil)
	id := *r.mustLaunch(nil).InstanceId
	for name, c := range map[string]struct {
		code string
		in   ec2.DescribeInstancesInput
	}{
		"one unknown ID":   {"InvalidInstanceID.NotFound", ec2.DescribeInstancesInput{InstanceIds: []string{id, "i-0123456789abcdef0"}}},
		"malformed ID":     {"InvalidInstanceID.Malformed", ec2.DescribeInstancesInput{InstanceIds: []string{"web"}}},
		"pages of IDs":     {"InvalidParameterCombination", ec2.DescribeInstancesInput{InstanceIds: []string{id}, MaxResults: aws.Int32(5)}},
		"small page":       {"InvalidParameterValue", ec2.DescribeInstancesInput{MaxResults: aws.Int32(4)}},
		"large page":       {"InvalidParameterValue", ec2.DescribeInstancesInput{MaxResults: aws.Int32(1001)}},
		"unknown filter":   {"InvalidParameterValue", ec2.DescribeInstancesInput{Filters: []types.Filter{{Name: aws.String("colour"), Values: []string{"red"}}}}},
		"201 values":       {"FilterLimitExceeded", ec2.DescribeInstancesInput{Filters: []types.Filter{{Name: aws.String("instance-id"), Values: make([]string, 201)}}}},
		"malformed cursor": {"InvalidParameterValue", ec2.DescribeInstancesInput{NextToken: aws.String("2")}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.client.DescribeInstances(t.Context(), &c.in)
			refused(t, c.code, 400, err)
		})
	}
}

func TestNewMachineIsNotVisible(t *testing.T) {
	r := newRig(t, &cloud.Options{Delays: testcloud.Delays{Visible: time.Hour}})
	id := *r.mustLaunch(nil).InstanceId
	require.Empty(t, r.state(id))
	_, err := r.client.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{InstanceIds: []string{id}})
	refused(t, "InvalidInstanceID.NotFound", 400, err)
	_, err = r.client.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{id}})
	refused(t, "InvalidInstanceID.NotFound", 400, err)
	require.Len(t, r.Machines(), 1)
}

func TestTagsOnRequest(t *testing.T) {
	r := newRig(t, &cloud.Options{NoTagsUnasked: true})
	token := func(in *ec2.RunInstancesInput) { in.ClientToken = aws.String("t") }
	id := *r.mustLaunch(token).InstanceId
	require.Empty(t, r.mustLaunch(token).Tags, "of a repeated call")
	bare, err := r.find("instance-id", id)
	require.NoError(t, err)
	require.Empty(t, bare[0].Tags)
	full, err := r.find("instance-id", id, "tag-key", "name")
	require.NoError(t, err)
	require.NotEmpty(t, full[0].Tags)
}

func TestTerminateIsAllOrNone(t *testing.T) {
	r := newRig(t, &cloud.Options{Delays: testcloud.Delays{Linger: time.Hour}})
	id := *r.mustLaunch(nil).InstanceId
	_, err := r.client.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{id, "i-0123456789abcdef0"}})
	refused(t, "InvalidInstanceID.NotFound", 400, err)
	require.Equal(t, types.InstanceStateNameRunning, r.state(id))
	for range 2 {
		_, err = r.client.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{id}})
		require.NoError(t, err)
		require.Equal(t, types.InstanceStateNameTerminated, r.state(id))
	}
	found, err := r.find("instance-id", id)
	require.NoError(t, err)
	require.Equal(t, "Client.UserInitiatedShutdown", *found[0].StateReason.Code)
	require.Empty(t, found[0].NetworkInterfaces)
}

func TestTerminationProtection(t *testing.T) {
	r := newRig(t, nil)
	guarded := *r.mustLaunch(func(in *ec2.RunInstancesInput) { in.DisableApiTermination = aws.Bool(true) }).InstanceId
	beside := *r.mustLaunch(nil).InstanceId
	elsewhere := *r.mustLaunch(func(in *ec2.RunInstancesInput) { in.SubnetId = aws.String(other) }).InstanceId
	_, err := r.client.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{guarded, beside, elsewhere}})
	refused(t, "OperationNotPermitted", 400, err)
	require.Equal(t, types.InstanceStateNameRunning, r.state(guarded))
	require.Equal(t, types.InstanceStateNameRunning, r.state(beside))
	require.Empty(t, r.state(elsewhere), "machines in other zones end")
}

func TestSignature(t *testing.T) {
	session := cloud.Credential{AccessKeyID: "ASIAIOSFODNN7EXAMPLE", SecretAccessKey: "secret", SessionToken: "session"}
	r := newRig(t, &cloud.Options{Credentials: []cloud.Credential{cloud.DefaultCredential, session}})
	describe := func(k cloud.Credential) error {
		_, err := r.signedBy(k).DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{})
		return err
	}
	require.NoError(t, describe(session))
	for _, change := range []func(*cloud.Credential){
		func(k *cloud.Credential) { k.AccessKeyID = "AKIA" },
		func(k *cloud.Credential) { k.SecretAccessKey = "guess" },
		func(k *cloud.Credential) { k.SessionToken = "" },
	} {
		k := session
		change(&k)
		refused(t, "AuthFailure", http.StatusUnauthorized, describe(k))
	}
	elsewhere := r.signedBy(session).Options()
	elsewhere.Region = "eu-west-1"
	_, err := ec2.New(elsewhere).DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{})
	refused(t, "AuthFailure", http.StatusUnauthorized, err)

	answer, err := http.Post(r.url, "application/x-www-form-urlencoded", strings.NewReader("Action=DescribeInstances&Version=2016-11-15"))
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusUnauthorized, answer.StatusCode, "an unsigned request")
}

func TestUnknownActionsAreRefused(t *testing.T) {
	r := newRig(t, nil)
	_, err := r.client.CreateVpc(t.Context(), &ec2.CreateVpcInput{CidrBlock: aws.String("10.0.0.0/16")})
	refused(t, "InvalidAction", 400, err)
}

func TestUnknownParametersAreRefused(t *testing.T) {
	r := newRig(t, nil)
	_, err := r.launch(func(in *ec2.RunInstancesInput) { in.Operator = &types.OperatorRequest{Principal: aws.String("x")} })
	refused(t, "UnknownParameter", 400, err)
}

func TestPolicy(t *testing.T) {
	r := newRig(t, &cloud.Options{Permitted: []string{"ec2:RunInstances", "ec2:Describe*"}})
	_, err := r.launch(nil)
	refused(t, "UnauthorizedOperation", http.StatusForbidden, err) // its tags need ec2:CreateTags
	bare := func(in *ec2.RunInstancesInput) { in.TagSpecifications = nil }
	r.mustLaunch(bare)
	_, err = r.launch(func(in *ec2.RunInstancesInput) {
		bare(in)
		in.IamInstanceProfile = &types.IamInstanceProfileSpecification{Name: aws.String("nstance")}
	})
	refused(t, "UnauthorizedOperation", http.StatusForbidden, err)
	_, err = r.launch(func(in *ec2.RunInstancesInput) { bare(in); in.DryRun = aws.Bool(true) })
	refused(t, "DryRunOperation", http.StatusPreconditionFailed, err)
	_, err = r.client.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{"i-0123456789abcdef0"}})
	refused(t, "UnauthorizedOperation", http.StatusForbidden, err)
	require.Len(t, r.Machines(), 1)
}

func TestThrottling(t *testing.T) {
	r := newRig(t, &cloud.Options{Buckets: &cloud.Buckets{
		Requests:  map[string]*testcloud.Bucket{"RunInstances": {Burst: 2}},
		Resources: map[string]*testcloud.Bucket{"TerminateInstances": {Burst: 1}},
	}})
	a, b := r.mustLaunch(nil), r.mustLaunch(nil)
	_, err := r.launch(nil)
	refused(t, "RequestLimitExceeded", http.StatusServiceUnavailable, err)
	_, err = r.client.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{*a.InstanceId, *b.InstanceId}})
	refused(t, "RequestLimitExceeded", http.StatusServiceUnavailable, err)
	var retryable = retry.IsErrorRetryables(retry.DefaultRetryables)
	require.Equal(t, aws.TrueTernary, retryable.IsErrorRetryable(err), "the SDK takes it for throttling")
}

func TestFaults(t *testing.T) {
	faults := &testcloud.Faults{}
	r := newRig(t, &cloud.Options{Faults: faults})
	faults.Next("RunInstances",
		testcloud.Fault{Lost: testcloud.LostRequest}, testcloud.Fault{Lost: testcloud.LostAnswer},
		testcloud.Fault{Answer: cloud.Refusal("PendingVerification", "later")})
	_, err := r.launch(nil)
	require.Error(t, err)
	require.Empty(t, r.Machines())
	_, err = r.launch(nil)
	require.Error(t, err)
	require.Len(t, r.Machines(), 1)
	_, err = r.launch(nil)
	refused(t, "PendingVerification", 400, err)
	require.Equal(t, 3, faults.Calls()["RunInstances"])
}

func TestFailedBoot(t *testing.T) {
	capacity := &testcloud.Capacity{}
	shape := testcloud.Shape{Type: "m5.large", Zone: "us-east-1a"}
	capacity.Set(shape, 1)
	r := newRig(t, &cloud.Options{Capacity: capacity, Delays: testcloud.Delays{Linger: time.Hour}})
	r.FailNextBoots(cloud.StateReason{Code: "Client.VolumeLimitExceeded", Message: "Client.VolumeLimitExceeded: Volume limit exceeded"})
	m := r.mustLaunch(nil)
	require.Equal(t, types.InstanceStateNamePending, m.State.Name)
	found, err := r.find("instance-id", *m.InstanceId)
	require.NoError(t, err)
	require.Equal(t, types.InstanceStateNameTerminated, found[0].State.Name)
	require.Equal(t, "Client.VolumeLimitExceeded", *found[0].StateReason.Code)
	r.mustLaunch(nil) // its capacity is free again
	_, err = r.launch(nil)
	refused(t, "InsufficientInstanceCapacity", 500, err)
}
