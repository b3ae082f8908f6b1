package agents

import (
	"fmt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/version"
)

const (
	minorsApart  = 2  // that an agent and a server may be, by docs/compatibility.md
	maxVersions  = 16 // that are counted apart; agents say which they have
	otherVersion = "other"
)

// Versions counts connected agents by the version of their program: "unknown" for those that
// have not said it. It may be called concurrently.
func (a *Agents) Versions() map[string]int {
	out := map[string]int{}
	for _, s := range a.sessions.all() {
		v := s.version()
		if v == "" {
			v = "unknown"
		}
		if _, known := out[v]; !known && len(out) >= maxVersions {
			v = otherVersion
		}
		out[v]++
	}
	return out
}

// VersionProblems returns the groups of which agents are too far from this server's version,
// with how many these are and what one of them has. It may be called concurrently.
func (a *Agents) VersionProblems() (problems []GroupProblem) {
	type found struct {
		n       int
		id      nstance.InstanceID // the first by its ID
		version string
	}
	groups := map[nstance.GroupKey]found{}
	for _, s := range a.sessions.all() {
		v := s.version()
		if apart, ok := version.Minors(v, version.Software); v == "" || ok && apart <= minorsApart {
			continue
		}
		f := groups[s.group]
		if f.n++; f.id == "" || s.id < f.id {
			f.id, f.version = s.id, v
		}
		groups[s.group] = f
	}
	for key, f := range groups {
		problems = append(problems, GroupProblem{Group: key, Why: fmt.Sprintf("%d agents are of versions that are not known to work with this server's %s. %s: %s", f.n, version.Software, f.id, f.version)})
	}
	sortProblems(problems)
	return problems
}

func (s *session) version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.software
}
