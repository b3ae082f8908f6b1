package providertest

import (
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// againPromises are about what only the cloud can remember: the next leader is another process.
var againPromises = []promise{
	{"another process/the same spec returns the same machine", checkCreateAgain},
	{"another process/sees machines with all their marks", checkSeenAgain},
	{"another process/deletes a machine until not found, and it is gone", checkDeleteAgain},
}

func (r *suiteRun) checkAgain(s Subject) {
	for _, p := range againPromises {
		if s.Again == nil {
			r.skip(p.name, "Subject.Again is nil")
			continue
		}
		r.check(p.name, p.check)
	}
}

// again returns the fixture with a second provider of the same cloud.
func (b *fixture) again() *fixture {
	other := *b
	other.Provider = recorded{b.Again(), b.calls}
	return &other
}

func checkCreateAgain(b *fixture) {
	s := b.spec()
	first := b.create(s)
	b.waitKnown(s.ID) // a leader is not followed faster than that
	second, err := b.again().Provider.Create(b.Context(), s)
	require.NoError(b, err)
	b.Cleanup(func() { b.remove(second) })
	b.requireSameMachine(first, second)
	b.requireMarks(s, second)
	require.Len(b, b.waitListed(b.owner, 1), 1)
}

func checkSeenAgain(b *fixture) {
	s := b.spec()
	m := b.create(s)
	other := b.again()
	got := other.waitKnown(s.ID)
	b.requireSameMachine(m, got)
	b.requireMarks(s, got)
	listed := other.waitListed(b.owner, 1)
	require.Len(b, listed, 1)
	b.requireMarks(s, listed[0])
}

func checkDeleteAgain(b *fixture) {
	s := b.spec()
	m := b.create(s)
	b.waitKnown(s.ID)
	b.again().deleteUntilNotFound(m)
	_, err := b.Provider.Get(b.Context(), s.ID)
	b.requireCode(nstance.NotFound, err)
}
