// Package webhook posts messages about what happens to machines: a notice has come, a
// drain has begun or ended, a deadline was missed. It delays nothing: what cannot be
// sent in time is dropped, and counted.
package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/render"
)

// A Kind says what a message is about.
type Kind string

// The kinds.
const (
	Notice         Kind = "notice"          // the cloud takes a machine
	DrainStarted   Kind = "drain_started"   // a machine is being emptied
	DrainEnded     Kind = "drain_ended"     // it is empty, or its executor gave up, or the drain was cancelled
	MissedDeadline Kind = "missed_deadline" // the deadline came before the end of the drain
)

// kinds are the events that messages are about.
var kinds = map[nstance.EventType]Kind{
	nstance.EventNoticeReceived:    Notice,
	nstance.EventDrainStarted:      DrainStarted,
	nstance.EventDrainAcknowledged: DrainEnded,
	nstance.EventDrainCancelled:    DrainEnded,
	nstance.EventDrainCutShort:     MissedDeadline,
}

// A Message is what a webhook says: the input of templates, and as JSON the body where
// there is none.
type Message struct {
	ID        string             `json:"id"` // equal for repetitions of one message
	Kind      Kind               `json:"kind"`
	Time      time.Time          `json:"time"`
	Cluster   nstance.ClusterID  `json:"cluster"`
	Shard     nstance.ShardID    `json:"shard"`
	Tenant    nstance.TenantID   `json:"tenant"`
	Group     nstance.GroupID    `json:"group"`
	Instance  nstance.InstanceID `json:"instance"`
	Event     nstance.EventType  `json:"event"` // of the journal
	Reason    string             `json:"reason,omitempty"`
	Rehearsal bool               `json:"rehearsal,omitempty"` // the cloud takes nothing
	Notice    *nstance.Notice    `json:"notice,omitempty"`
	Drain     *nstance.Drain     `json:"drain,omitempty"`
}

// A Term is the leadership that messages come from.
type Term struct {
	Cluster nstance.ClusterID
	Shard   nstance.ShardID
	Epoch   uint64
}

// message returns the message about an event, and false if there is none.
func (t Term) message(e nstance.Event) (Message, bool) {
	kind, told := kinds[e.Type]
	return Message{
		ID: t.messageID(strconv.FormatUint(uint64(e.Seq), 10)), Kind: kind, Time: e.Time, Cluster: t.Cluster, Shard: t.Shard,
		Tenant: e.Tenant, Group: e.Group, Instance: e.Instance, Event: e.Type, Reason: e.Reason,
		Rehearsal: rehearsed(e), Notice: e.Notice, Drain: e.Drain,
	}, told
}

func (t Term) messageID(number string) string {
	return fmt.Sprintf("%s/%s/%d/%s", t.Cluster, t.Shard, t.Epoch, number)
}

func rehearsed(e nstance.Event) bool {
	if e.Notice != nil {
		return notice.Rehearsed(*e.Notice)
	}
	if e.Drain == nil {
		return false
	}
	for _, c := range e.Drain.Causes {
		if !strings.HasPrefix(c.Message, notice.RehearsalSource) {
			return false
		}
	}
	return len(e.Drain.Causes) > 0
}

// maxBody bounds what a template makes.
const maxBody = 64 << 10

// body returns the body of a message: what the template makes of it within the budget of
// one rendering, else its JSON. In templates, json is a function that returns any value as
// JSON.
func body(ctx context.Context, text string, m Message) ([]byte, error) {
	if text == "" {
		return json.Marshal(m)
	}
	t, err := render.ParseWithMethods(text)
	if err != nil {
		return nil, err
	}
	out, err := t.Render(ctx, m)
	if err == nil && len(out) > maxBody {
		err = fmt.Errorf("the body is larger than %d bytes", maxBody)
	}
	return out, err
}

// Try makes bodies of messages of each kind with a template. It fails as those would.
func Try(text string) error {
	for event := range kinds {
		e := nstance.Event{Type: event, Notice: &nstance.Notice{Kind: nstance.Reclaim}, Drain: &nstance.Drain{}}
		m, _ := Term{}.message(e)
		if _, err := body(context.Background(), text, m); err != nil { // its budget bounds it
			return err
		}
	}
	return nil
}
