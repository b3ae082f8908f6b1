package main

import (
	"bytes"
	"context"
	"net/http"
	"runtime"
	"slices"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	ec2api "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// Names in the test cloud's catalog that the scenarios use.
const (
	awsRegion        = "us-east-1"
	awsLeaderAddress = "10.0.0.100"
)

// An awsRig is an AWS account with the machines that two servers run on.
type awsRig struct {
	catalog    *ec2test.Catalog
	interfaces []string // of the servers' machines
}

// devAWS is AWS for single-machine mode.
func devAWS() *dev.Cloud {
	rig := &awsRig{catalog: ec2test.DefaultCatalog(awsRegion)}
	return &dev.Cloud{
		Kind: aws.Kind(), Protocol: imds.AWS, Consistency: time.Second,
		Env: map[string]string{
			"AWS_ACCESS_KEY_ID": ec2test.DefaultCredential.AccessKeyID, "AWS_SECRET_ACCESS_KEY": ec2test.DefaultCredential.SecretAccessKey,
		},
		New: func(h testcloud.Hypervisor) (dev.TestServer, error) {
			return ec2test.New(&ec2test.Options{
				Region: awsRegion, Catalog: rig.catalog, IDTag: "nstance:instance-id", Hypervisor: h,
				Delays: testcloud.Delays{Visible: 50 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Delete: 100 * time.Millisecond, Linger: time.Minute},
			}), nil
		},
		Prepare:   rig.prepare,
		Holder:    rig.holder,
		Configure: rig.configure,
		Creates:   func(_ *http.Request, body []byte) bool { return bytes.Contains(body, []byte("Action=RunInstances")) },
	}
}

func (r *awsRig) configure(file, shard, template map[string]any, api dev.API, n int) {
	shard["provider"] = map[string]any{"region": awsRegion, "options": map[string]any{
		"endpoint": api.Endpoint, "elb_endpoint": api.Endpoint, "sts_endpoint": api.Endpoint, "network_interface": r.interfaces[n],
	}}
	shard["leader_address"] = awsLeaderAddress
	shard["subnet_pools"] = map[string]any{"workers": []string{r.catalog.Subnets[1].ID, r.catalog.Subnets[2].ID}}
	file["images"] = map[string]any{"debian": map[string]any{"owner": r.catalog.Images[0].Owner, "name": "debian-12-" + runtime.GOARCH + "-*"}}
	template["image"], template["subnet_pool"], template["instance_type"] = "debian", "workers", r.instanceType()
}

func (r *awsRig) instanceType() string {
	if runtime.GOARCH == "arm64" {
		return "m6g.large"
	}
	return "m5.large"
}

func (r *awsRig) client(endpoint string) *ec2api.Client {
	return ec2api.New(ec2api.Options{
		Region: awsRegion, BaseEndpoint: &endpoint,
		Credentials: credentials.NewStaticCredentialsProvider(ec2test.DefaultCredential.AccessKeyID, ec2test.DefaultCredential.SecretAccessKey, ""),
	})
}

// prepare starts the machines that servers run on: the leader address moves
// between their network interfaces.
func (r *awsRig) prepare(ctx context.Context, api dev.API) error {
	out, err := r.client(api.Endpoint).RunInstances(ctx, &ec2api.RunInstancesInput{
		ImageId: &r.catalog.Images[0].ID, InstanceType: types.InstanceTypeM5Large, SubnetId: &r.catalog.Subnets[0].ID,
		MinCount: awssdk.Int32(2), MaxCount: awssdk.Int32(2),
	})
	if err != nil {
		return nstance.Errorf(nstance.Internal, "machines for servers: %w", err)
	}
	for _, m := range out.Instances {
		r.interfaces = append(r.interfaces, awssdk.ToString(m.NetworkInterfaces[0].NetworkInterfaceId))
	}
	return nil
}

// holder finds the leader address in the answer of the cloud.
func (r *awsRig) holder(ctx context.Context, api dev.API) (dev.Holder, error) {
	out, err := r.client(api.Endpoint).DescribeNetworkInterfaces(ctx, &ec2api.DescribeNetworkInterfacesInput{NetworkInterfaceIds: r.interfaces})
	if err != nil {
		return dev.Holder{}, nstance.Errorf(nstance.Unavailable, "leader address: %w", err)
	}
	for _, i := range out.NetworkInterfaces {
		id := awssdk.ToString(i.NetworkInterfaceId)
		if slices.ContainsFunc(i.PrivateIpAddresses, func(a types.NetworkInterfacePrivateIpAddress) bool {
			return awssdk.ToString(a.PrivateIpAddress) == awsLeaderAddress
		}) {
			return dev.Holder{Address: awsLeaderAddress, Server: slices.Index(r.interfaces, id), At: id}, nil
		}
	}
	return dev.Holder{}, nstance.Errorf(nstance.Unavailable, "no server has leader address %s", awsLeaderAddress)
}
