package ec2test

import (
	"slices"
	"strings"

	"github.com/nstance-go/nstance/provider/testcloud"
)

// A target group of an Application Load Balancer has at most that many targets
// ("Quotas for your Application Load Balancers").
const maxTargets = 1000

// A target is one member of a target group: a machine at a port.
type target struct {
	machine string
	port    int
}

// A registration is a target in its target group.
type registration struct {
	machine  *machine
	draining bool
	healthy  bool
	step     int // counts registrations, so that the end of draining knows its own
}

type targetInput struct {
	Id               string `q:",required"`
	Port             *int
	AvailabilityZone string
}

type targetsInput struct {
	TargetGroupArn string        `q:",required"`
	Targets        []targetInput `q:",required"`
}

type healthInput struct {
	TargetGroupArn string `q:",required"`
	Targets        []targetInput
	Include        []string
}

type nothing struct{}

// A balancer has the targets of target groups.
type balancer struct {
	o      *Options
	timers *testcloud.Timers
	fleet  *fleet
	groups map[string]map[target]*registration // by ARN
}

func (b *balancer) arn(g TargetGroup) string {
	return "arn:aws:elasticloadbalancing:" + b.o.Region + ":" + b.o.Account + ":targetgroup/" + g.Name + "/" + g.ID
}

// group returns the group with that ARN and its targets.
func (b *balancer) group(arn string) (TargetGroup, map[target]*registration, error) {
	if !strings.HasPrefix(arn, "arn:") || !strings.Contains(arn, ":targetgroup/") {
		return TargetGroup{}, nil, refuse("ValidationError", "'%s' is not a valid target group ARN", arn)
	}
	i := slices.IndexFunc(b.o.Catalog.TargetGroups, func(g TargetGroup) bool { return b.arn(g) == arn })
	if i < 0 {
		return TargetGroup{}, nil, refuse("TargetGroupNotFound", "Target groups '%s' not found", arn)
	}
	if b.groups[arn] == nil {
		b.groups[arn] = map[target]*registration{}
	}
	return b.o.Catalog.TargetGroups[i], b.groups[arn], nil
}

func (t targetInput) target(g TargetGroup) target {
	if t.Port == nil {
		return target{t.Id, g.Port}
	}
	return target{t.Id, *t.Port}
}

// registerAll registers all of the targets or none. Each has to be running.
func (b *balancer) registerAll(on call, in *targetsInput) (*nothing, error) {
	g, members, err := b.group(in.TargetGroupArn)
	if err != nil {
		return nil, err
	}
	var idle []string
	wanted := map[target]*machine{}
	for _, t := range in.Targets {
		m := b.fleet.machines[t.Id]
		if m == nil || !b.fleet.visible(m, on.now) {
			return nil, refuse("InvalidTarget", "The following targets are not valid instances: '%s'", t.Id)
		}
		if m.state != running {
			idle = append(idle, t.Id)
		}
		wanted[t.target(g)] = m
	}
	if len(idle) > 0 {
		return nil, refuse("InvalidTarget", "The following targets are not in a running state and cannot be registered: '%s'", strings.Join(idle, ", "))
	}
	more := 0
	for t := range wanted {
		if members[t] == nil {
			more++
		}
	}
	if len(members)+more > maxTargets {
		return nil, refuse("TooManyTargets", "The following target groups cannot have more than %d targets: '%s'", maxTargets, g.Name)
	}
	for t, m := range wanted {
		b.register(g, members, t, m)
	}
	return &nothing{}, nil
}

func (b *balancer) register(g TargetGroup, members map[target]*registration, t target, m *machine) {
	r := members[t]
	if r == nil {
		r = &registration{machine: m}
		members[t] = r
	}
	r.draining = false
	r.step++
	step := r.step
	b.timers.After(g.InitialHealthChecks, func() { r.healthy = r.healthy || r.step == step })
}

// deregister starts the draining of targets. One that is not registered
// changes nothing.
func (b *balancer) deregister(_ call, in *targetsInput) (*nothing, error) {
	g, members, err := b.group(in.TargetGroupArn)
	if err != nil {
		return nil, err
	}
	for _, wanted := range in.Targets {
		t := wanted.target(g)
		r := members[t]
		if r == nil || r.draining {
			continue
		}
		r.draining = true
		r.step++
		step := r.step
		b.timers.After(g.DeregistrationDelay, func() {
			if members[t] == r && r.step == step {
				delete(members, t)
			}
		})
	}
	return &nothing{}, nil
}

type healthOutput struct {
	Targets []healthItem `xml:"TargetHealthDescriptions>member"`
}

type healthItem struct {
	Target struct {
		ID   string `xml:"Id"`
		Port int    `xml:"Port"`
		Zone string `xml:"AvailabilityZone,omitempty"`
	} `xml:"Target"`
	CheckPort string     `xml:"HealthCheckPort"`
	Health    healthText `xml:"TargetHealth"`
}

type healthText struct {
	State       string `xml:"State"`
	Reason      string `xml:"Reason,omitempty"`
	Description string `xml:"Description,omitempty"`
}

func (b *balancer) describeTargetHealth(_ call, in *healthInput) (*healthOutput, error) {
	g, members, err := b.group(in.TargetGroupArn)
	if err != nil {
		return nil, err
	}
	var asked []target
	for _, t := range in.Targets {
		asked = append(asked, t.target(g))
	}
	if len(in.Targets) == 0 {
		for t := range members {
			asked = append(asked, t)
		}
		slices.SortFunc(asked, func(a, b target) int { return strings.Compare(a.machine+itoa(a.port), b.machine+itoa(b.port)) })
	}
	out := &healthOutput{}
	for _, t := range asked {
		var item healthItem
		item.Target.ID, item.Target.Port, item.CheckPort, item.Health = t.machine, t.port, itoa(g.Port), g.health(members[t])
		if r := members[t]; r != nil {
			item.Target.Zone = r.machine.zone
		}
		out.Targets = append(out.Targets, item)
	}
	return out, nil
}

// health returns the health of a target (type TargetHealth of the API reference).
func (g TargetGroup) health(r *registration) healthText {
	switch {
	case r == nil:
		return healthText{"unused", "Target.NotRegistered", "Target is not registered to the target group"}
	case r.draining:
		return healthText{"draining", "Target.DeregistrationInProgress", "Target deregistration is in progress"}
	case r.machine.state != running:
		return healthText{"unused", "Target.InvalidState", "Target is in the stopped state"}
	case g.Zones != nil && !slices.Contains(g.Zones, r.machine.zone):
		return healthText{"unused", "Target.NotInUse", "Target is in an Availability Zone that is not enabled for the load balancer"}
	case !r.healthy:
		return healthText{"initial", "Elb.RegistrationInProgress", "Target registration is in progress"}
	}
	return healthText{State: "healthy"}
}

type groupsInput struct {
	LoadBalancerArn string
	TargetGroupArns []string
	Names           []string
	Marker          string
	PageSize        int
}

type groupsOutput struct {
	Groups []groupOutput `xml:"TargetGroups>member"`
}

type groupOutput struct {
	ARN      string `xml:"TargetGroupArn"`
	Name     string `xml:"TargetGroupName"`
	Protocol string `xml:"Protocol"`
	Port     int    `xml:"Port"`
	VPC      string `xml:"VpcId"`
	Kind     string `xml:"TargetType"`
}

func (b *balancer) describeTargetGroups(_ call, in *groupsInput) (*groupsOutput, error) {
	for _, arn := range in.TargetGroupArns {
		if _, _, err := b.group(arn); err != nil {
			return nil, err
		}
	}
	for _, name := range in.Names {
		if !slices.ContainsFunc(b.o.Catalog.TargetGroups, func(g TargetGroup) bool { return g.Name == name }) {
			return nil, refuse("TargetGroupNotFound", "One or more target groups not found")
		}
	}
	out := &groupsOutput{}
	for _, g := range b.o.Catalog.TargetGroups {
		arn := b.arn(g)
		if in.TargetGroupArns != nil && !slices.Contains(in.TargetGroupArns, arn) || in.Names != nil && !slices.Contains(in.Names, g.Name) {
			continue
		}
		out.Groups = append(out.Groups, groupOutput{arn, g.Name, "HTTP", g.Port, b.o.Catalog.VPC, "instance"})
	}
	return out, nil
}

// remove ends the registrations of a machine that is terminated.
func (b *balancer) remove(m *machine) {
	for _, members := range b.groups {
		for t, r := range members {
			if r.machine == m {
				delete(members, t)
			}
		}
	}
}
