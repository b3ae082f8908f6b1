package agents

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/files"
)

func newFileSession(t *testing.T, k *fileKeeper, id nstance.InstanceID) *session {
	s, _ := newSlowAgent(t)
	s.id, s.agents = id, k.agents
	s.files.known, s.files.slot = true, &kitSlot{}
	s.files.slot.now.Store(&madeKit{})
	return s
}

// A factShard keeps facts.
type factShard struct {
	*fakeShard
	facts []nstance.Fact
}

func (s *factShard) Observe(f nstance.Fact) { s.facts = append(s.facts, f) }

func newTestKeeper() (*fileKeeper, *factShard, *[]nstance.Event) {
	shard, events := &factShard{}, &[]nstance.Event{}
	a := &Agents{shard: shard, Options: Options{Now: time.Now, Log: slog.New(slog.DiscardHandler), Journal: func(e nstance.Event) { *events = append(*events, e) }}}
	k := &fileKeeper{agents: a}
	k.work = sync.NewCond(&k.mu)
	a.files = k
	return k, shard, events
}

// TestSessionsThatWaitForMemory: each is checked again when some is released, whatever
// releases it, and a report meanwhile does not queue it a second time.
func TestSessionsThatWaitForMemory(t *testing.T) {
	for name, release := range map[string]func(s *session){
		"the transfer is over": func(s *session) { s.pieceSent(true) },
		"the session ends":     func(s *session) { s.endFiles() },
		"the agent does not answer": func(s *session) {
			s.files.phase, s.files.since = filesBegun, time.Now().Add(-2*answerTimeout)
			s.checkFileDeadlines()
		},
		"the agent has all of it":               func(s *session) { s.handleFilesApplied(&apiv1.FilesApplied{Hash: "h"}) },
		"another set takes the transfer's turn": func(s *session) { s.dropFiles() },
	} {
		t.Run(name, func(t *testing.T) {
			k, _, _ := newTestKeeper()
			big := newFileSession(t, k, "big")
			require.True(t, k.reserve(big, 2*maxOwnBytes), "alone, a machine may have any amount")
			big.files.own, big.files.phase, big.files.set = 2*maxOwnBytes, filesSending, &files.Set{Hash: "h"}
			var waiting []*session
			for _, id := range []nstance.InstanceID{"a", "b"} {
				s := newFileSession(t, k, id)
				s.files.parked = !k.reserve(s, 1)
				require.True(t, s.files.parked)
				s.queueFiles()
				waiting = append(waiting, s)
			}
			require.Empty(t, k.dirty)
			release(big)
			require.Zero(t, k.own)
			require.Subset(t, k.dirty, waiting, "they are checked again")
			require.Empty(t, k.parked)
			for _, s := range waiting {
				require.True(t, k.reserve(s, maxOwnBytes/2))
			}
		})
	}
}

// TestPartialFiles: a machine that has what could be made of a set has not the set: what is
// reported of it, and journalled, says so.
func TestPartialFiles(t *testing.T) {
	for name, c := range map[string]struct {
		errors []string // of the files of the set
		agent  string   // what the agent could not apply
		hash   string
		typ    string
	}{
		"all of it":           {[]string{"", ""}, "", "new", "files_applied"},
		"one was not made":    {[]string{"", "no secret"}, "", "old", "files_applied"},
		"none was made":       {[]string{"no secret", "no secret"}, "", "old", "files_applied"},
		"one was not applied": {[]string{"", ""}, "disk full", "old", "files_failed"},
		"neither nor":         {[]string{"", "no secret"}, "disk full", "old", "files_failed"},
	} {
		t.Run(name, func(t *testing.T) {
			k, shard, events := newTestKeeper()
			s := newFileSession(t, k, "web1")
			set := &files.Set{Hash: "new"}
			applied := &apiv1.FilesApplied{Hash: "new", Error: c.agent}
			for i, failure := range c.errors {
				path := string(rune('a' + i))
				set.Files = append(set.Files, files.File{Path: path, Digest: "d" + path, Error: failure})
				if failure == "" && c.agent == "" {
					applied.Files = append(applied.Files, &apiv1.FileStatus{Path: path, Digest: "d" + path})
				} else {
					applied.Files = append(applied.Files, &apiv1.FileStatus{Path: path, Error: "not there"})
				}
			}
			s.files.set, s.files.phase, s.files.hash = set, filesApplying, "old"
			s.files.retryAt = time.Now().Add(time.Hour)
			s.handleFilesApplied(applied)
			require.Len(t, shard.facts, 1)
			require.Equal(t, c.hash, shard.facts[0].(nstance.FilesReported).ConfigHash)
			require.Equal(t, c.agent, shard.facts[0].(nstance.FilesReported).Error)
			require.Len(t, *events, 1)
			require.Equal(t, c.typ, string((*events)[0].Type))
			require.Equal(t, c.hash == "new", (*events)[0].Error == "", "what is missing is said")
		})
	}
}
