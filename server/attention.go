package server

import (
	"cmp"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/agents"
	"github.com/nstance-go/nstance/server/internal/configuration"
	"github.com/nstance-go/nstance/server/internal/metrics"
	"github.com/nstance-go/nstance/server/internal/operators"
)

// Kinds of what needs attention, beside those of the reconciler.
const (
	attentionAcks       = "acknowledgements" // what operators have acknowledged cannot be read
	attentionAddress    = "leader_address"   // the shard's movable address is not this server's
	attentionGarbage    = "garbage"          // objects without use are not deleted
	attentionFiles      = "files"            // files of machines cannot be made
	attentionGroups     = "groups_file"      // overlays cannot be read or written
	attentionJournal    = "journal"          // events are lost, or were
	attentionKeys       = "keys"             // the cluster's keys cannot be read
	attentionLookup     = "lookup"           // an image, instance type or user data cannot be looked up
	attentionMetadata   = "metadata"         // agents cannot read their metadata service
	attentionNotices    = "notices"          // the provider's notices cannot be read
	attentionVersions   = "agent_version"    // agents are too old or too new for this server
	attentionNotLeading = "not_leading"      // this server cannot lead
)

// attentionKinds returns every kind, sorted.
func attentionKinds() []reconcile.AttentionKind {
	kinds := slices.Concat(attention.HoldKinds(), reconcile.AttentionKinds(), []reconcile.AttentionKind{
		attention.Alarm, configuration.AttentionNotDurable, configuration.AttentionHeld, configuration.AttentionRefused,
		attentionAcks, attentionAddress, attentionGarbage, attentionFiles, attentionGroups, attentionJournal, attentionKeys, attentionLookup, attentionMetadata, attentionNotices, attentionVersions, attentionNotLeading,
	})
	slices.Sort(kinds)
	return kinds
}

// attention lists what needs attention: of the shard while this server leads it, else
// of this server alone. What is acknowledged comes last. The status page, metrics and
// GetShardStatus show this list.
func (s *Server) attention() []attention.Entry {
	if t := s.term.Load(); t != nil {
		return t.attention()
	}
	return attention.Unacknowledged(s.ownAttention())
}

func (s *Server) ownAttention() []reconcile.Attention {
	out := entries(attentionJournal, "look at the disk of this server", s.events.Problems())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.termError; err != nil {
		out = append(out, reconcile.Attention{Kind: attentionNotLeading, Subject: "server", Why: "this server does not lead: " + err.Error()})
	}
	return out
}

func (t *term) attention() []attention.Entry { return t.acknowledgements.Mark(t.allAttention()) }

// allAttention lists what needs attention, acknowledged or not.
func (t *term) allAttention() []reconcile.Attention {
	s := t.server
	out := slices.Concat(
		t.reconciler.Attention(), t.config.Attention(), s.alarms.attention(s.opts.Now()),
		entries(attentionGroups, "nstance-admin record show", t.groups.Problems()),
		entries(attentionLookup, "configure what exists, or nstance-admin config refresh", t.groups.LookupProblems()),
		entries(attentionAddress, "look at the network and the rights of this server", t.address.Problems()),
		entries(attentionFiles, "configure what the file needs, or put the secret", t.agents.FileProblems()),
		entries(attentionNotices, "look at the options of the provider, and at the rights of this server", t.agents.NoticeProblems()),
		entries(attentionGarbage, "look at the storage", t.collector.Problems()),
		entries(attentionJournal, "look at the disk of this server", s.events.Problems()),
		entries(attentionKeys, "look at the storage", s.keys.Problems()),
		entries(attentionAcks, "nstance-admin record show, then nstance-admin record repair --storage", t.acknowledgements.Problems()),
	)
	unreadable, _ := t.agents.MetadataProblems()
	out = append(out, groupEntries(attentionMetadata, "enable the metadata service in the template, or set NSTANCE_PROVIDER=none where there is none", unreadable)...)
	out = append(out, groupEntries(attentionVersions, "upgrade the machines' agents, or the servers: docs/compatibility.md", t.agents.VersionProblems())...)
	slices.SortStableFunc(out, func(a, b reconcile.Attention) int { return cmp.Compare(a.Kind, b.Kind) })
	return out
}

// entries makes one entry of the shard for each problem.
func entries(kind reconcile.AttentionKind, remedy string, why []string) (out []reconcile.Attention) {
	for _, w := range why {
		out = append(out, reconcile.Attention{Kind: kind, Subject: "shard", Why: w, Remedy: remedy})
	}
	return out
}

// groupEntries makes one entry of its group for each problem.
func groupEntries(kind reconcile.AttentionKind, remedy string, problems []agents.GroupProblem) (out []reconcile.Attention) {
	for _, p := range problems {
		out = append(out, reconcile.Attention{
			Kind: kind, Subject: "group " + p.Group.String(), Tenant: p.Group.Tenant, Group: p.Group.Group, Since: p.Since, Why: p.Why, Remedy: remedy,
		})
	}
	return out
}

// attentionRows returns entries for the status page, which has no login, and how many are left
// out. Entries that operators of every tenant may see have their text; if the page is full,
// those of groups and instances too. The others are counted by kind, those that are
// acknowledged apart: they may quote settings.
func attentionRows(list []attention.Entry, full bool) (rows []web.Attention, omitted int) {
	rows = []web.Attention{}
	type counter struct {
		kind  reconcile.AttentionKind
		known bool // acknowledged
	}
	counted := map[counter]int{}
	for _, a := range list {
		if operators.VisibleToAll(a.Attention) || full && a.Tenant != "" {
			if len(rows) >= shownAttention {
				omitted++
				continue
			}
			rows = append(rows, attentionRow(a))
			continue
		}
		key := counter{a.Kind, a.Acknowledged != nil}
		i, ok := counted[key]
		if !ok {
			i, rows = len(rows), append(rows, web.Attention{Kind: string(a.Kind)})
			counted[key] = i
		}
		r := &rows[i]
		if r.Count++; !a.Since.IsZero() && (r.Since.IsZero() || a.Since.Before(r.Since)) {
			r.Since = a.Since
		}
		if known := a.Acknowledged; known != nil && (r.Acknowledged == nil || known.Until.Before(r.Acknowledged.Until)) {
			r.Acknowledged = &web.Acknowledgement{Until: known.Until}
		}
	}
	return rows, omitted
}

func attentionRow(a attention.Entry) web.Attention {
	row := web.Attention{
		Kind: string(a.Kind), Count: 1, Subject: a.Subject, Tenant: string(a.Tenant), Group: string(a.Group), Instance: string(a.ID),
		Since: a.Since, Until: a.Until, Why: clip.Text(a.Why, maxPageText), Remedy: clip.Text(a.Remedy, maxPageText),
	}
	if known := a.Acknowledged; known != nil {
		row.Acknowledged = &web.Acknowledgement{By: known.By, Reason: clip.Text(known.Reason, maxPageText), Until: known.Until}
	}
	return row
}

// maxPageText is how many bytes of one text the status page shows.
const maxPageText = 1 << 10

// attentionCounts counts entries that are not acknowledged by kind, including kinds without
// entries, and those that are by kind and group.
func attentionCounts(list []attention.Entry) (open map[string]int, acknowledged map[metrics.Acknowledged]int) {
	open, acknowledged = map[string]int{}, map[metrics.Acknowledged]int{}
	for _, kind := range attentionKinds() {
		open[string(kind)] = 0
	}
	for _, a := range list {
		if a.Acknowledged == nil {
			open[string(a.Kind)]++
			continue
		}
		acknowledged[metrics.Acknowledged{Kind: a.Kind, Group: nstance.GroupKey{Tenant: a.Tenant, Group: a.Group}}]++
	}
	return open, acknowledged
}

// countAcknowledged counts entries that are acknowledged.
func countAcknowledged(list []attention.Entry) (n int) {
	for _, a := range list {
		if a.Acknowledged != nil {
			n++
		}
	}
	return n
}
