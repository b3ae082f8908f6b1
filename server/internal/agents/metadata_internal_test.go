package agents

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/version"
)

// newCrowd returns agents, and has one of a group connect.
func newCrowd() (a *Agents, join func(id nstance.InstanceID, group nstance.GroupID) *session) {
	a = &Agents{Options: Options{Now: time.Now}, sessions: newSessions(nil)}
	return a, func(id nstance.InstanceID, group nstance.GroupID) *session {
		s := &session{agents: a, id: id, group: nstance.GroupKey{Tenant: "default", Group: group}}
		a.sessions.add(s)
		return s
	}
}

// TestMetadataProblems: a group is shown since the first of its agents could not read its
// metadata service, with what the first by its ID says.
func TestMetadataProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, join := newCrowd()
		began := time.Now().UTC()
		c, b, other, well := join("c", "web"), join("b", "web"), join("a", "db"), join("d", "web")
		report := func(s *session, failure string) { s.reported(nstance.Report{MetadataError: failure}) }
		report(c, "refused")
		report(well, "")
		<-time.After(time.Minute)
		report(c, "timeout")
		report(b, "404")
		report(other, "500")
		problems, count := a.MetadataProblems()
		require.Equal(t, 3, count)
		require.Equal(t, []GroupProblem{
			{nstance.GroupKey{Tenant: "default", Group: "db"}, began.Add(time.Minute), "1 agents cannot read their metadata service, so that notices are missed. a: 500"},
			{nstance.GroupKey{Tenant: "default", Group: "web"}, began, "2 agents cannot read their metadata service, so that notices are missed. b: 404"},
		}, problems)

		report(c, "")
		report(c, "again")
		problems, _ = a.MetadataProblems()
		require.Equal(t, began.Add(time.Minute), problems[1].Since)
	})
}

// TestVersionsOfAgents: versions are what agents say, so they are bounded; those too far from this
// server's are shown.
func TestVersionsOfAgents(t *testing.T) {
	var major, minor int
	_, err := fmt.Sscanf(version.Software, "%d.%d", &major, &minor)
	require.NoError(t, err)
	at := func(apart int) string { return fmt.Sprintf("%d.%d.0", major, minor+apart) }
	a, join := newCrowd()
	join("silent", "web")
	for id, apart := range map[nstance.InstanceID]int{"a": 0, "b": minorsApart} {
		join(id, "web").reported(nstance.Report{Software: at(apart)})
	}
	require.Empty(t, a.VersionProblems())
	for _, id := range []nstance.InstanceID{"d", "c", "e"} {
		join(id, "db").reported(nstance.Report{Software: at(minorsApart + 1)})
	}
	problems := a.VersionProblems()
	require.Len(t, problems, 1)
	require.Equal(t, nstance.GroupID("db"), problems[0].Group.Group)
	require.Contains(t, problems[0].Why, "3 agents are of versions")
	require.Contains(t, problems[0].Why, " c: "+at(minorsApart+1))
	require.Equal(t, map[string]int{"unknown": 1, at(0): 1, at(minorsApart): 1, at(minorsApart + 1): 3}, a.Versions())

	for i := range 2 * maxVersions {
		join(nstance.InstanceID(fmt.Sprint("x", i)), "web").reported(nstance.Report{Software: fmt.Sprint("x", i)})
	}
	counted := a.Versions()
	require.Len(t, counted, maxVersions+1)
	require.Equal(t, 6+2*maxVersions, func() (sum int) {
		for _, n := range counted {
			sum += n
		}
		return sum
	}())
	require.Greater(t, counted[otherVersion], maxVersions)
}
