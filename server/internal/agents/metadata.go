package agents

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A GroupProblem is what is wrong with connected agents of a group.
type GroupProblem struct {
	Group nstance.GroupKey
	Since time.Time // zero: not known
	Why   string
}

func sortProblems(problems []GroupProblem) {
	slices.SortFunc(problems, func(a, b GroupProblem) int {
		return cmp.Or(cmp.Compare(a.Group.Tenant, b.Group.Tenant), cmp.Compare(a.Group.Group, b.Group.Group))
	})
}

// reported keeps what a report says of the agent itself.
func (s *session) reported(r nstance.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.metadataError == "" {
		s.metadataSince = s.agents.Now().UTC()
	}
	s.metadataError, s.software = r.MetadataError, r.Software
}

// MetadataProblems returns the groups of which agents cannot read their cloud's metadata
// service, so that machines are reclaimed without notice, with how many these are and what one of them says, and how many there are in all. It may
// be called concurrently.
func (a *Agents) MetadataProblems() (problems []GroupProblem, count int) {
	type found struct {
		n     int
		since time.Time
		id    nstance.InstanceID // the first by its ID
		text  string
	}
	groups := map[nstance.GroupKey]*found{}
	for _, s := range a.sessions.all() {
		s.mu.Lock()
		text, since := s.metadataError, s.metadataSince
		s.mu.Unlock()
		if text == "" {
			continue
		}
		count++
		f := groups[s.group]
		if f == nil {
			f = &found{since: since, id: s.id, text: text}
			groups[s.group] = f
		}
		if f.n++; since.Before(f.since) {
			f.since = since
		}
		if s.id < f.id {
			f.id, f.text = s.id, text
		}
	}
	for key, f := range groups {
		problems = append(problems, GroupProblem{key, f.since, fmt.Sprintf("%d agents cannot read their metadata service, so that notices are missed. %s: %s", f.n, f.id, f.text)})
	}
	sortProblems(problems)
	return problems, count
}
