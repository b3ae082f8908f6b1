package nodedrain

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
)

// What tests of the pure parts need.
var (
	IsNodeOf   = isNodeOf
	ClampGrace = clampGrace
	Stays      = stays
	TrimNode   = trimNode
)

// A Plan is a round, for tests.
type Plan struct {
	Evict, Override, Shorten []string
	Grace                    map[string]int64
	Next                     time.Time
	Text                     string
}

// PlanPods plans a round of pods. Refused pods were refused at that time.
func PlanPods(pods []*corev1.Pod, rules map[string]Rule, refused map[string]time.Time, d nstance.Drain, margin time.Duration, now time.Time) Plan {
	f := timeFrame{since: d.StartedAt, deadline: d.Deadline, margin: margin}
	var all []candidate
	tries := map[types.UID]try{}
	for _, pod := range pods {
		all = append(all, candidate{pod: pod, rule: rules[pod.Name]})
		if at, ok := refused[pod.Name]; ok {
			tries[pod.UID] = try{failures: 1, refusedAt: at, next: at.Add(time.Second)}
		}
	}
	r := planRound(all, tries, f, now)
	p := Plan{Next: r.next, Text: r.String(), Grace: map[string]int64{}}
	for _, s := range r.steps {
		switch {
		case s.override:
			p.Override = append(p.Override, s.pod.Name)
		case s.shorten:
			p.Shorten = append(p.Shorten, s.pod.Name)
		default:
			p.Evict = append(p.Evict, s.pod.Name)
		}
		if s.grace != nil {
			p.Grace[s.pod.Name] = *s.grace
		}
	}
	return p
}

// ShortenedGrace and GraceOver are about a terminating pod whose grace period was
// shortened for a deadline before.
func ShortenedGrace(pod *corev1.Pod, before, deadline time.Time, margin time.Duration, now time.Time) *int64 {
	return shortenedGrace(pod, try{shortenedFor: before}, timeFrame{deadline: deadline, margin: margin}, now)
}

func GraceOver(pod *corev1.Pod, before time.Time, margin time.Duration, now time.Time) bool {
	return graceOver(pod, try{shortenedFor: before}, margin, now)
}

// PollInterval returns how often each of some drains looks at its pods.
func PollInterval(nodes, drains int) time.Duration {
	b := newBudget(0)
	b.resize(nodes)
	return b.pollInterval(drains)
}

// NewKubelets makes what remembers when Leases were renewed.
var NewKubelets = newKubelets

func (k *kubelets) Silent(ctx context.Context, node *corev1.Node) (bool, error) {
	return k.silent(ctx, node)
}

// Slots and Gate are what bounds and orders requests.
type (
	Slots = slots
	Gate  = cordonGate
)

// What makes them.
var (
	NewSlots = newSlots
	NewGate  = newCordonGate
)

// Do and Pass send a request.
func (s *slots) Do(ctx context.Context, deadline time.Time, send func(context.Context) error) error {
	return s.do(ctx, deadline, send)
}

func (g *cordonGate) Pass(ctx context.Context, s *Slots, send func(context.Context) error) error {
	return g.pass(ctx, s, time.Time{}, send)
}

func (g *cordonGate) Hold() (release func()) { return g.hold() }

// QPS returns the rate for a number of nodes.
func QPS(nodes int) float32 {
	b := newBudget(0)
	b.resize(nodes)
	return b.QPS()
}
