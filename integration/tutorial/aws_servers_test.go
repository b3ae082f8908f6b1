//go:build servers && linux

package tutorial_test

import (
	"encoding/json"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/internal/imds"
)

// onAWS returns an account with the page's network and image, whose role nstance-server has the
// page's policy. The aws command is AWS's own.
func onAWS(w *world) (*site, error) {
	const region, account, s3 = "eu-central-1", "123456789012", "127.0.0.1:7070"
	text, err := w.read("aws-policy.json")
	if err != nil {
		return nil, err
	}
	actions, err := permitted(text)
	if err != nil {
		return nil, err
	}
	key := ec2test.DefaultCredential // without session token: versitygw accepts none
	c := ec2test.New(&ec2test.Options{
		Region: region, Account: account, Permitted: actions, IDTag: "nstance:instance-id",
		Delays: delays, Hypervisor: w.hypervisor,
		Catalog: &ec2test.Catalog{
			VPC: "vpc-0a1b2c3d4e5f60718",
			Subnets: []ec2test.Subnet{
				{ID: "subnet-0a1b2c3d4e5f60718", Zone: region + "a", Prefix: netip.MustParsePrefix("10.0.16.0/20")},
				{ID: "subnet-0b1c2d3e4f5061728", Zone: region + "b", Prefix: netip.MustParsePrefix("10.0.32.0/20")},
			},
			SecurityGroups: []string{"sg-0c1d2e3f405162738"},
			Profiles:       []string{"nstance-machine"},
			Images: []ec2test.Image{{
				ID: "ami-0abcdef1234567890", Owner: account, Name: "nstance-worker-20261101", Arch: "arm64", Created: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
			}},
			Types: []ec2test.InstanceType{
				{Name: "m7g.large", Archs: []string{"arm64"}, VCPUs: 2, MemoryMiB: 8192, Interfaces: 3, AddressesPerInterface: 10},
				{Name: "m6g.large", Archs: []string{"arm64"}, VCPUs: 2, MemoryMiB: 8192, Interfaces: 3, AddressesPerInterface: 10},
				{Name: "c7g.large", Archs: []string{"arm64"}, VCPUs: 2, MemoryMiB: 4096, Interfaces: 3, AddressesPerInterface: 10},
			},
		},
	})
	domain := "s3." + region + ".amazonaws.com"
	buckets := filepath.Join(w.dir, "buckets")
	if err := run("mkdir", buckets); err != nil {
		return nil, err
	}
	store, err := w.runStore("versitygw", s3, "--port", s3, "--access", key.AccessKeyID, "--secret", key.SecretAccessKey, "--region", region, "--virtual-domain", domain, "--quiet", "posix", buckets)
	if err != nil {
		return nil, err
	}
	metadata := imds.New(&imds.Options{RequireToken: true})
	const role = "latest/meta-data/iam/security-credentials/"
	metadata.SetRaw(role, "nstance-server")
	credentials, err := json.Marshal(map[string]any{
		"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": time.Now().UTC().Format(time.RFC3339), "Expiration": time.Now().Add(6 * time.Hour).UTC().Format(time.RFC3339),
		"AccessKeyId": key.AccessKeyID, "SecretAccessKey": key.SecretAccessKey, "Token": "",
	})
	metadata.SetRaw(role+"nstance-server", string(credentials))
	return &site{
		Cloud: c, port: "443", metadata: metadata,
		hosts: []string{"ec2." + region + ".amazonaws.com", "sts." + region + ".amazonaws.com", domain, "example-nstance." + domain},
		api:   byHost(domain, store, c),
		commands: commands{acts: map[string]func(string) (string, error){
			byHand + " reclaim": func(string) (string, error) {
				m, err := running(c)
				if err != nil {
					return "", err
				}
				return "", c.Reclaim(m.Handle, 2*time.Minute)
			},
		}},
	}, err
}

// permitted returns the actions that a policy permits.
func permitted(policy []byte) (actions []string, err error) {
	var p struct {
		Statement []struct{ Action json.RawMessage }
	}
	if err := json.Unmarshal(policy, &p); err != nil {
		return nil, err
	}
	for _, s := range p.Statement {
		var some []string
		if json.Unmarshal(s.Action, &some) != nil {
			some = make([]string, 1)
			err = json.Unmarshal(s.Action, &some[0])
		}
		actions = append(actions, some...)
	}
	return actions, err
}
