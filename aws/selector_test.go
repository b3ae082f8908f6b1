package aws_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const (
	parameterName = "resolve:ssm:/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/x86_64/standard/recommended/image_id"

	byTag = "zone=" + region + "a,tag:karpenter.sh/discovery=demo"

	nodeGroup, extraGroup, foreignGroup = "sg-0123456789abcdef1", "sg-0123456789abcdef2", "sg-0123456789abcdef3"
)

// tagCatalog returns a catalog whose subnets of zones a and b, and two security groups, have
// the tag of a cluster, and a parameter that names an image. A group of another VPC has the tag too.
func tagCatalog() *ec2test.Catalog {
	c := ec2test.DefaultCatalog(region)
	demo := map[string]string{"karpenter.sh/discovery": "demo"}
	c.SecurityGroups = append(c.SecurityGroups, extraGroup, nodeGroup)
	c.Parameters = map[string][]string{
		strings.TrimPrefix(parameterName, "resolve:ssm:"): {"ami-0abcdef1234567892", image},
		"/aws/service/ecs/optimized-ami/current":          {`{"image_id": "ami-0abcdef1234567890"}`},
		"/team/gone":                                      {"ami-0ffffffffffffffff"},
	}
	c.ForeignGroups = []string{foreignGroup}
	c.Tags = map[string]map[string]string{
		c.Subnets[0].ID: demo, c.Subnets[1].ID: demo, nodeGroup: demo, foreignGroup: demo,
		extraGroup: {"karpenter.sh/discovery": "demo", "tier": "extra"},
	}
	return c
}

// TestTaggedLaunch: subnet and security groups that are named by tags are in the request
// as IDs, and many machines need one look-up of each.
func TestTaggedLaunch(t *testing.T) {
	w := newWorld(t, &ec2test.Options{Catalog: tagCatalog(), PageSize: 5})
	p, calls := w.recorded()
	var launches sync.WaitGroup
	specs := make([]nstance.MachineSpec, 20)
	for n := range specs {
		specs[n] = w.spec()
		specs[n].Subnet = byTag
		specs[n].Args = json.RawMessage(`{"security_group_ids": ["sg-0123456789abcdef0"], "security_group_tags": {"karpenter.sh/discovery": "demo"}}`)
		require.NoError(t, aws.Kind().CheckSpec(provider.Settings{Region: region}, specs[n]))
		launches.Go(func() {
			m, err := p.Create(t.Context(), specs[n])
			if err != nil || m.Zone != region+"a" {
				t.Errorf("%+v %v", m, err)
			}
		})
	}
	launches.Wait()
	sent := 0
	for _, call := range *calls {
		if call.Get("Action") != "RunInstances" {
			continue
		}
		sent++
		require.Equal(t, subnet, call.Get("SubnetId"))
		require.Equal(t, []string{"sg-0123456789abcdef0", nodeGroup, extraGroup, ""},
			[]string{call.Get("SecurityGroupId.1"), call.Get("SecurityGroupId.2"), call.Get("SecurityGroupId.3"), call.Get("SecurityGroupId.4")})
	}
	require.Equal(t, len(specs), sent)
	require.Equal(t, 1, w.faults.Calls()["DescribeSubnets"], "one look-up")
	require.Equal(t, 1, w.faults.Calls()["DescribeSecurityGroups"], "one look-up")
}

// TestTaggedSubnets: entries of a pool have free addresses and zones, by the name that they
// have in the pool.
func TestTaggedSubnets(t *testing.T) {
	w := newWorld(t, &ec2test.Options{Catalog: tagCatalog()})
	b, none := strings.Replace(byTag, region+"a", region+"b", 1), strings.Replace(byTag, region+"a", region+"c", 1)
	zones, err := w.SubnetZones(t.Context(), []string{byTag, b, none, subnet})
	require.NoError(t, err)
	require.Equal(t, map[string]string{byTag: region + "a", b: region + "b", subnet: region + "a"}, zones)
	free, err := w.FreeAddresses(t.Context(), []string{byTag, none})
	require.NoError(t, err)
	require.Equal(t, map[string]int{byTag: 4096 - 5}, free)
}

// TestTagsOfNothing: a refusal names the tag, and what is tagged afterwards is found.
func TestTagsOfNothing(t *testing.T) {
	catalog := tagCatalog()
	w := newWorld(t, &ec2test.Options{Catalog: catalog})
	launch := func(subnet, args string) error {
		s := w.spec()
		s.Subnet, s.Args = subnet, json.RawMessage(args)
		_, err := w.Create(t.Context(), s)
		return err
	}
	for _, c := range []struct{ subnet, args, field, says string }{
		{"zone=" + region + "a,tag:team=x", `{}`, "subnet: ", "team=x"},
		{"zone=" + region + "c,tag:karpenter.sh/discovery=demo", `{}`, "subnet: ", "karpenter.sh/discovery=demo"},
		{subnet, `{"security_group_tags": {"team": "x", "tier": "extra"}}`, "args.security_group_tags: ", "team=x, tier=extra"},
		{subnet, `{"security_group_tags": {"karpenter.sh/discovery": "d?mo"}}`, "args.security_group_tags: ", "d?mo"},
		{"", `{"security_group_tags": {"team": "x"}}`, "args.security_group_tags: ", "subnet_pool"},
		{"subnet-0000000000000abcd", `{"security_group_tags": {"tier": "extra"}}`, "subnet: ", "subnet-0000000000000abcd"},
	} {
		err := launch(c.subnet, c.args)
		w.refused(nstance.Invalid, err)
		require.ErrorContains(t, err, c.field)
		require.ErrorContains(t, err, c.says)
	}
	require.Zero(t, w.faults.Calls()["RunInstances"])

	catalog.Tags["sg-0123456789abcdef0"] = map[string]string{"team": "x"}
	require.NoError(t, launch(byTag, `{"security_group_tags": {"team": "x"}}`), "a refusal is not remembered")

	catalog.Subnets[1].Zone = region + "a"
	w = newWorld(t, &ec2test.Options{Catalog: catalog})
	err := launch(byTag, `{}`)
	w.refused(nstance.Invalid, err)
	require.ErrorContains(t, err, catalog.Subnets[0].ID+" and "+catalog.Subnets[1].ID)

	for n := range 17 {
		id := fmt.Sprintf("sg-%017d", n)
		catalog.SecurityGroups = append(catalog.SecurityGroups, id)
		catalog.Tags[id] = map[string]string{"many": "y"}
	}
	err = launch(subnet, `{"security_group_tags": {"many": "y"}}`)
	w.refused(nstance.Invalid, err)
	require.ErrorContains(t, err, "17 security groups")
}

// TestLookupsLast: an answer is used for five minutes. While EC2 cannot be read it is used on,
// but one that says that there is nothing counts.
func TestLookupsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		catalog := tagCatalog()
		w := newBubbleWorld(t, &ec2test.Options{Catalog: catalog}, nil)
		launch := func() error {
			s := w.spec()
			s.Subnet = byTag
			_, err := w.Create(t.Context(), s)
			return err
		}
		asked := func() int { return w.faults.Calls()["DescribeSubnets"] }
		outage := func() {
			w.faults.Next("DescribeSubnets", testcloud.Fault{Answer: ec2test.Refusal("RequestLimitExceeded", "slow down")})
		}
		outage()
		w.refused(nstance.Throttled, launch())
		require.Zero(t, w.faults.Calls()["RunInstances"], "an error is no answer")
		require.NoError(t, launch())
		<-time.After(4 * time.Minute)
		require.NoError(t, launch())
		require.Equal(t, 2, asked())

		<-time.After(2 * time.Minute)
		outage()
		require.NoError(t, launch(), "the former answer")
		require.NoError(t, launch())
		require.Equal(t, 3, asked())
		<-time.After(31 * time.Second)
		delete(catalog.Tags, subnet)
		w.refused(nstance.Invalid, launch())
		require.Equal(t, 4, asked())
	})
}

// TestManyLookups: what is remembered is bounded.
func TestManyLookups(t *testing.T) {
	catalog := tagCatalog()
	own := maps.Clone(catalog.Tags[subnet])
	for n := range 9 {
		own[fmt.Sprintf("n%d", n)] = ""
	}
	catalog.Tags[subnet] = own
	w := newWorld(t, &ec2test.Options{Catalog: catalog})
	launch := func(subnet string) {
		s := w.spec()
		s.Subnet = subnet
		w.create(s)
	}
	launch(byTag)
	for n := range 300 { // each a subset of the nine tags
		name := byTag
		for bit := range 9 {
			if (n+1)&(1<<bit) != 0 {
				name += fmt.Sprintf(",tag:n%d=", bit)
			}
		}
		launch(name)
	}
	before := w.faults.Calls()["DescribeSubnets"]
	launch(byTag)
	require.Equal(t, before+1, w.faults.Calls()["DescribeSubnets"], "the oldest is forgotten")
	launch(byTag)
	require.Equal(t, before+1, w.faults.Calls()["DescribeSubnets"])
}

// TestLookupOfAbandonedCaller: the end of one caller is no answer for another that waits
// for the same look-up.
func TestLookupOfAbandonedCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		w := newBubbleWorld(t, &ec2test.Options{Catalog: tagCatalog()}, func(_ http.ResponseWriter, r *http.Request) {
			if requests++; requests == 1 {
				<-r.Context().Done()
				panic(http.ErrAbortHandler)
			}
		})
		launch := func(ctx context.Context) error {
			s := w.spec()
			s.Subnet = byTag
			_, err := w.Create(ctx, s)
			return err
		}
		first, cancel := context.WithCancel(t.Context())
		results := make(chan error, 2)
		go func() { results <- launch(first) }()
		synctest.Wait()
		go func() { results <- launch(t.Context()) }()
		synctest.Wait()
		require.Equal(t, 1, requests)
		cancel()
		require.ElementsMatch(t, []nstance.Code{nstance.Unavailable, ""}, []nstance.Code{nstance.CodeOf(<-results), nstance.CodeOf(<-results)})
		require.Equal(t, 1, w.faults.Calls()["DescribeSubnets"])
		require.Equal(t, 1, w.faults.Calls()["RunInstances"])
	})
}

// TestParameterImages: an image that a parameter names is looked up once, checked, and
// pinned by a version.
func TestParameterImages(t *testing.T) {
	const name = parameterName
	w := newWorld(t, &ec2test.Options{Catalog: tagCatalog()})
	for query, want := range map[nstance.ImageQuery]string{
		{Name: name, Arch: nstance.AMD64}:                        image,
		{Name: name + ":1", Arch: nstance.AMD64}:                 "ami-0abcdef1234567892",
		{Name: name, Owner: "136693071363", Arch: nstance.AMD64}: image,
	} {
		got, err := w.ResolveImage(t.Context(), query)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for query, code := range map[nstance.ImageQuery]nstance.Code{
		{Name: name, Arch: nstance.ARM64}:                            nstance.NotFound,
		{Name: name, Owner: "self", Arch: nstance.AMD64}:             nstance.NotFound,
		{Name: name + ":3"}:                                          nstance.NotFound,
		{Name: "resolve:ssm:/team/nothing"}:                          nstance.NotFound,
		{Name: "resolve:ssm:/team/gone"}:                             nstance.NotFound,
		{Name: "resolve:ssm:/aws/service/ecs/optimized-ami/current"}: nstance.Invalid,
		{Name: "resolve:ssm:"}:                                       nstance.Invalid,
	} {
		_, err := w.ResolveImage(t.Context(), query)
		w.refused(code, err)
		require.ErrorContains(t, err, strings.TrimPrefix(query.Name, "resolve:ssm:"))
	}
	w = newWorld(t, &ec2test.Options{Catalog: tagCatalog(), Permitted: []string{"ec2:*"}})
	_, err := w.ResolveImage(t.Context(), nstance.ImageQuery{Name: name})
	w.refused(nstance.Denied, err)
	require.ErrorContains(t, err, "ssm:GetParameter")

	s := w.spec()
	s.Image = name
	err = aws.Kind().CheckSpec(provider.Settings{Region: region}, s)
	require.ErrorContains(t, err, "image: ")
	require.ErrorContains(t, err, "images")
}
