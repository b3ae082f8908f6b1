package aws_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/provider/providertest"
)

var policyFile = doctest.Docs("providers/aws-policy.json")

func TestDocument(t *testing.T) {
	doctest.Kind(t, aws.Kind(), "args of templates and groups on AWS")
	doctest.Section(t, doctest.Docs("providers/aws.md"), "permissions", permissionTable(t))
}

// TestWalkthrough parses the configuration of the document as a server does.
func TestWalkthrough(t *testing.T) {
	text := string(doctest.Example(t, aws.Kind()))
	c, err := config.Parse("server.jsonc", []byte(text), aws.Kind())
	require.NoError(t, err)
	require.InDelta(t, 2, c.Shard.CreateRate.PerSecond, 0)
	require.Equal(t, 5, c.Shard.CreateRate.Burst)
	named := strings.NewReplacer(
		"subnet-0a1b2c3d4e5f60718", "zone=eu-central-1a,tag:karpenter.sh/discovery=demo", "subnet-0b1c2d3e4f5061728", "zone=eu-central-1b,tag:karpenter.sh/discovery=demo",
		`"owner": "self", "name": "nstance-worker-*"`, `"name": "`+parameterName+`"`,
		`"security_group_ids": ["sg-0c1d2e3f405162738"]`, `"security_group_tags": {"karpenter.sh/discovery": "demo"}`,
	).Replace(text)
	require.NotContains(t, named, "sg-")
	_, err = config.Parse("server.jsonc", []byte(named), aws.Kind())
	require.NoError(t, err)
	_, err = config.Parse("server.jsonc", []byte(strings.Replace(named, "zone=eu-central-1b,", "", 1)), aws.Kind())
	require.ErrorContains(t, err, "needs a zone and a tag")
	_, err = config.Parse("server.jsonc", []byte(strings.Replace(text, "security_group_ids", "security_groups", 1)), aws.Kind())
	require.ErrorContains(t, err, "security_group_ids")
}

// TestDocumentedRules: the rules of the document select the events that are understood.
func TestDocumentedRules(t *testing.T) {
	b, err := os.ReadFile(doctest.Docs("providers/aws.md"))
	require.NoError(t, err)
	patterns := regexp.MustCompile(`(?s)--event-pattern '(.*?)'`).FindAllStringSubmatch(string(b), -1)
	types := map[string][]string{}
	for _, p := range patterns {
		var pattern struct {
			Source []string
			Types  []string `json:"detail-type"`
		}
		require.NoError(t, json.Unmarshal([]byte(p[1]), &pattern))
		types[pattern.Source[0]] = pattern.Types
	}
	w := newWorld(t, &ec2test.Options{EventQueue: queueName})
	m := w.spot().ProviderID
	require.NoError(t, w.cloud.Reclaim(m, time.Hour))
	require.NoError(t, w.cloud.RecommendRebalance(m))
	require.NoError(t, w.cloud.ReclaimReservation(m, time.Now()))
	w.cloud.ScheduleChange(ec2test.ScheduledChange{ID: "X_1", Code: "X", Machines: []string{m}})
	published := map[string][]string{}
	for _, body := range w.cloud.Messages(queueName) {
		var e struct {
			Source string
			Type   string `json:"detail-type"`
		}
		require.NoError(t, json.Unmarshal([]byte(body), &e))
		published[e.Source] = append(published[e.Source], e.Type)
	}
	require.Equal(t, published, types)
}

// policy returns the actions that the published policy permits.
func policy(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(policyFile)
	require.NoError(t, err)
	var doc struct{ Statement []struct{ Action any } }
	require.NoError(t, json.Unmarshal(b, &doc))
	actions := map[string]bool{}
	for _, s := range doc.Statement {
		switch a := s.Action.(type) {
		case string:
			actions[a] = true
		case []any:
			for _, one := range a {
				actions[one.(string)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(actions))
}

// need is a call that needs an action of the policy.
type need struct {
	what string // for the document
	try  func(w *world) error
}

// needs lists for each action a call that fails without it.
var needs = map[string]need{
	"ec2:RunInstances": {"creating machines", func(w *world) error {
		_, err := w.Create(w.Context(), w.spec())
		return err
	}},
	"ec2:CreateTags": {"marking machines at launch", func(w *world) error {
		_, err := w.Create(w.Context(), w.spec())
		return err
	}},
	"iam:PassRole": {"args with `iam_instance_profile`", func(w *world) error {
		s := w.spec()
		s.Args = []byte(`{"iam_instance_profile": "nstance"}`)
		_, err := w.Create(w.Context(), s)
		return err
	}},
	"iam:CreateServiceLinkedRole": {"the first spot machine of an account", func(w *world) error {
		s := w.spec()
		s.Market = nstance.Spot
		_, err := w.Create(w.Context(), s)
		return err
	}},
	"ec2:DescribeInstances": {"reading and listing machines, and before each change of one", func(w *world) error {
		for _, err := range w.List(w.Context(), owner) {
			return err
		}
		return nil
	}},
	"sqs:ReceiveMessage":     {"`interruption_queue`", func(w *world) error { return w.watchOnce() }},
	"sqs:DeleteMessage":      {"`interruption_queue`", func(w *world) error { return w.watchOnce() }},
	"ec2:TerminateInstances": {"deleting machines", func(w *world) error { return w.Delete(w.Context(), w.create(w.spec())) }},
	"ec2:StopInstances": {"parking machines of warm pools", func(w *world) error {
		return w.Park(w.Context(), w.create(w.spec()), nstance.ParkStopped)
	}},
	"ec2:StartInstances": {"waking machines of warm pools", func(w *world) error {
		m := w.create(w.spec())
		if err := w.Park(w.Context(), m, nstance.ParkStopped); err != nil {
			return err
		}
		return w.Wake(w.Context(), m)
	}},
	"ec2:GetConsoleOutput": {"showing what machines print while they boot", func(w *world) error {
		_, err := w.ConsoleOutput(w.Context(), w.create(w.spec()))
		return err
	}},
	"ec2:DescribeImages": {"images that are looked for by name", func(w *world) error {
		_, err := w.ResolveImage(w.Context(), nstance.ImageQuery{Owner: "136693071363", Name: "debian-12-*"})
		return err
	}},
	"ec2:DescribeSubnets": {"counting the free addresses of subnets", func(w *world) error {
		_, err := w.FreeAddresses(w.Context(), []string{subnet})
		return err
	}},
	"ec2:DescribeInstanceTypes": {"the architectures of instance types", func(w *world) error {
		_, err := w.TypeArchs(w.Context(), []string{"m5.large"})
		return err
	}},
	"ec2:GetSpotPlacementScores": {"groups with `order` `steadiest`", func(w *world) error {
		_, err := w.ZoneScores(w.Context(), []string{"m5.large", "c5.large", "t3.micro"}, 3)
		return err
	}},
	"ec2:DescribeSpotPriceHistory": {"the prices of spot machines", func(w *world) error {
		_, err := w.Prices(w.Context(), []string{"m5.large"})
		return err
	}},
	"ec2:DescribeSpotInstanceRequests": {"spot machines that never came, as with a `max_price` below the market: finding the requests that EC2 keeps open", (*world).tooCheap},
	"ec2:CancelSpotInstanceRequests":   {"a `max_price` below the market: cancelling them", (*world).tooCheap},
	"ec2:DescribeNetworkInterfaces": {"`shard.leader_address`", func(w *world) error {
		_, err := w.open(&aws.Options{NetworkInterface: w.server()}).HoldsAddress(w.Context(), "10.0.0.200")
		return err
	}},
	"ec2:AssignPrivateIpAddresses": {"`shard.leader_address`", func(w *world) error {
		return w.open(&aws.Options{NetworkInterface: w.server()}).TakeAddress(w.Context(), "10.0.0.200")
	}},
	"ec2:DescribeSecurityGroups": {"args with `security_group_tags`", func(w *world) error {
		s := w.spec()
		s.Args = []byte(`{"security_group_tags": {"karpenter.sh/discovery": "demo"}}`)
		_, err := w.Create(w.Context(), s)
		return err
	}},
	"ssm:GetParameter": {"images that a parameter names", func(w *world) error {
		_, err := w.ResolveImage(w.Context(), nstance.ImageQuery{Name: parameterName})
		return err
	}},
	"ec2:DescribeAvailabilityZones":   {"option `zonal_shift`", (*world).readShifts},
	"arc-zonal-shift:ListZonalShifts": {"option `zonal_shift`", (*world).readShifts},
	"arc-zonal-shift:ListAutoshifts":  {"option `zonal_shift`", (*world).readShifts},
	"elasticloadbalancing:DescribeTargetHealth": {"load balancers", func(w *world) error {
		_, err := w.BalancerMembers(w.Context(), nstance.LoadBalancer{ID: targetGroup})
		return err
	}},
	"elasticloadbalancing:RegisterTargets": {"load balancers", func(w *world) error {
		return w.JoinBalancer(w.Context(), nstance.LoadBalancer{ID: targetGroup}, []nstance.Machine{w.create(w.spec())})
	}},
	"elasticloadbalancing:DeregisterTargets": {"load balancers", func(w *world) error {
		m := []nstance.Machine{w.create(w.spec())}
		if err := w.JoinBalancer(w.Context(), nstance.LoadBalancer{ID: targetGroup}, m); err != nil {
			return err
		}
		return w.LeaveBalancer(w.Context(), nstance.LoadBalancer{ID: targetGroup}, m)
	}},
}

// tooCheap asks for a machine at less than the market price: nil means that only the
// capacity was missing.
func (w *world) tooCheap() error {
	s := w.spec()
	s.Market, s.MaxPrice = nstance.Spot, "0.002"
	switch _, err := w.Create(w.Context(), s); {
	case nstance.CodeOf(err) == nstance.Capacity:
		return nil
	case strings.Contains(err.Error(), "UnauthorizedOperation"): // it is not known whether a machine comes of it
		require.Equal(w, nstance.Ambiguous, nstance.CodeOf(err))
		return nstance.Errorf(nstance.Denied, "%v", err)
	default:
		return err
	}
}

// watchOnce has one message received and deleted.
func (w *world) watchOnce() error {
	w.cloud.Send(queueName, `{"detail-type": "EC2 Instance State-change Notification", "source": "aws.ec2", "time": "2026-01-01T00:00:00Z", "detail": {}}`)
	v := w.watch(owner)
	defer v.stop()
	var err error
	require.Eventually(w, func() bool {
		select {
		case err = <-v.errs:
			return true
		default:
			return len(w.cloud.Messages(queueName)) == 0
		}
	}, limit, time.Millisecond)
	return err
}

func permissionTable(t *testing.T) string {
	table := &strings.Builder{}
	fmt.Fprintln(table, "| action | needed for |\n|---|---|")
	for _, action := range policy(t) {
		fmt.Fprintf(table, "| `%s` | %s |\n", action, needs[action].what)
	}
	return table.String()
}

// TestPolicySuffices runs the suite in an account with the permissions of the policy
// only.
func TestPolicySuffices(t *testing.T) {
	permitted := policy(t)
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		w, s := subject(t, ec2test.Options{Permitted: permitted, NoSpotRole: true})
		return w.able(s)
	})
}

// TestPolicyIsMinimal checks that each action is needed for what the document says.
func TestPolicyIsMinimal(t *testing.T) {
	all := policy(t)
	require.ElementsMatch(t, all, slices.Collect(maps.Keys(needs)))
	for _, action := range all {
		t.Run(action, func(t *testing.T) {
			require.NoError(t, needs[action].try(newWorld(t, &ec2test.Options{Permitted: all, NoSpotRole: true, Catalog: tagCatalog()})))
			others := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return a == action })
			w := newWorld(t, &ec2test.Options{Permitted: others, NoSpotRole: true, Catalog: tagCatalog()})
			w.refused(nstance.Denied, needs[action].try(w))
		})
	}
}
