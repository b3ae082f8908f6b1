package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/reconcile"
)

// A State is what a server looks like at one moment. While it does not lead
// only the first fields mean anything.
type State struct {
	Cluster, Shard, Version string
	Leading                 bool
	Epoch                   uint64
	LeaseAge                time.Duration // since the lease was last renewed
	LeaseTTL                time.Duration
	Agents                  int           // connected
	QueueAge                time.Duration // of the group that has waited longest to be planned
	Groups                  []reconcile.GroupView
	Pools                   map[loop.MemberPool]int // machines that run
	MetadataUnreadable      int                     // agents that cannot read their metadata service
	Versions                map[string]int          // connected agents by the version of their program
	Orphans                 int                     // machines with our marks and no record
	Attention               map[string]int          // what needs attention and is not acknowledged, by kind
	Acknowledged            map[Acknowledged]int    // what needs attention and is
	JournalLost             uint64
	LogLost                 int64
}

// Acknowledged is what acknowledged entries are counted by. The group may be empty.
type Acknowledged struct {
	Kind  reconcile.AttentionKind
	Group nstance.GroupKey
}

// state is a collector that looks when it is asked.
type state struct{ look func() State }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

var (
	descInfo      = desc("server_info", "1, with the server's names and version.", "cluster", "shard", "version")
	descLeading   = desc("leading", "1 while this server leads its shard.")
	descEpoch     = desc("lease_epoch", "Number of this server's term.")
	descLease     = desc("lease_age_seconds", "Time since this server's lease was last renewed; beyond five sixths of nstance_lease_ttl_seconds its term is over.")
	descTTL       = desc("lease_ttl_seconds", "shard.election.ttl of the leader.")
	descAgents    = desc("agents_connected", "Agents connected to this server.")
	descMetadata  = desc("agents_metadata_unreadable", "Connected agents that could not read their cloud's metadata service for two minutes: notices are missed.")
	descVersions  = desc("agents", "Connected agents by the version of their program: unknown where it is not said, other beyond 16 versions.", "version")
	descQueue     = desc("queue_age_seconds", "Longest time that a group has waited to be planned.")
	descMembers   = desc("group_members", "Members of a group, by state: wanted, ready, booting, leaving, stale, on_demand, preserved, gone.", "tenant", "group", "state")
	descPools     = desc("members", "Machines of a group that run, on demand too, by capacity pool; unknown labels are empty, and pools without machines have no series.", "tenant", "group", "instance_type", "zone", "market")
	descHolds     = desc("group_held", "1 for each kind of hold of a group; nstance-admin group list has the reason.", "tenant", "group", "kind")
	descOrphans   = desc("orphans", "Machines that carry the shard's marks and have no record.")
	descAttention = desc("attention", "What needs attention and is not acknowledged, by kind; nstance-admin status names it, and what to do.", "kind")
	descAcked     = desc("attention_acknowledged", "What needs attention and is acknowledged, by kind and group; nstance-admin attention list says by whom.", "kind", "tenant", "group")
	descLost      = desc("journal_lost_total", "Events that the journal lost because too many were waiting.")
	descLogLost   = desc("log_lines_lost_total", "Lines that the log lost because its reader hung or had gone.")
)

// Describe implements prometheus.Collector.
func (*state) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descInfo, descLeading, descEpoch, descLease, descTTL, descAgents, descMetadata, descVersions, descQueue, descMembers, descPools, descHolds, descOrphans, descAttention, descAcked, descLost, descLogLost,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *state) Collect(ch chan<- prometheus.Metric) {
	s := c.look()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descInfo, 1, s.Cluster, s.Shard, s.Version)
	for kind, n := range s.Attention {
		gauge(descAttention, float64(n), kind)
	}
	for a, n := range s.Acknowledged {
		gauge(descAcked, float64(n), string(a.Kind), string(a.Group.Tenant), string(a.Group.Group))
	}
	ch <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(s.JournalLost))
	ch <- prometheus.MustNewConstMetric(descLogLost, prometheus.CounterValue, float64(s.LogLost))
	if !s.Leading {
		gauge(descLeading, 0)
		return
	}
	gauge(descLeading, 1)
	gauge(descEpoch, float64(s.Epoch))
	gauge(descLease, s.LeaseAge.Seconds())
	gauge(descTTL, s.LeaseTTL.Seconds())
	gauge(descAgents, float64(s.Agents))
	gauge(descMetadata, float64(s.MetadataUnreadable))
	for version, n := range s.Versions {
		gauge(descVersions, float64(n), version)
	}
	gauge(descQueue, s.QueueAge.Seconds())
	gauge(descOrphans, float64(s.Orphans))
	for p, n := range s.Pools {
		gauge(descPools, float64(n), string(p.Group.Tenant), string(p.Group.Group), p.InstanceType, p.Zone, string(p.Market))
	}
	for _, g := range s.Groups {
		tenant, group := string(g.Key.Tenant), string(g.Key.Group)
		for _, n := range []struct {
			state string
			n     int
		}{
			{"wanted", g.Size}, {"ready", g.Ready}, {"booting", g.Booting}, {"leaving", g.Leaving}, {"stale", g.Stale},
			{"on_demand", g.OnDemand}, {"preserved", g.Preserved}, {"gone", g.Gone},
		} {
			gauge(descMembers, float64(n.n), tenant, group, n.state)
		}
		for kind := range kinds(g.Holds) {
			gauge(descHolds, 1, tenant, group, kind)
		}
	}
}

func kinds(holds []reconcile.HoldView) map[string]bool {
	out := map[string]bool{}
	for _, h := range holds {
		out[string(h.Kind)] = true
	}
	return out
}
