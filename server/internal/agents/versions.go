package agents

import (
	"fmt"
	"slices"

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

// VersionProblems says which connected agents are too far from this server's version. It may
// be called concurrently.
func (a *Agents) VersionProblems() (problems []string) {
	count, first := map[string]int{}, map[string]nstance.InstanceID{}
	for _, s := range a.sessions.all() {
		v := s.version()
		if apart, ok := version.Minors(v, version.Software); v == "" || ok && apart <= minorsApart {
			continue
		}
		if _, known := count[v]; !known && len(count) >= maxVersions {
			v = otherVersion
		}
		if count[v]++; first[v] == "" || s.id < first[v] {
			first[v] = s.id
		}
	}
	for v, n := range count {
		problems = append(problems, fmt.Sprintf("%d agents are of version %s, which is not known to work with this server's %s, for example %s", n, v, version.Software, first[v]))
	}
	slices.Sort(problems)
	return problems
}

func (s *session) version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.software
}
