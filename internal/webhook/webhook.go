// Package webhook posts messages about what happens to machines: a notice has come, a
// machine is lost, a drain has begun or ended, a deadline was missed. It delays nothing: what
// cannot be sent in time is dropped, and counted.
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
	Loss           Kind = "loss"            // a machine does not run any more, and no notice said so
	MissedDeadline Kind = "missed_deadline" // the deadline came before the end of the drain
	Rebalance      Kind = "rebalance"       // the cloud recommends to leave a machine
	Maintenance    Kind = "maintenance"     // the cloud plans to work on a machine
	DrainEnded     Kind = "drain_ended"     // it is empty, or its executor gave up, or the drain was cancelled
	DrainStarted   Kind = "drain_started"   // a machine is being emptied
)

// Kinds returns every kind. Where too many messages wait, the oldest of the last kind is
// dropped first.
func Kinds() []Kind {
	return []Kind{Notice, Loss, MissedDeadline, Rebalance, Maintenance, DrainEnded, DrainStarted}
}

// kindOf returns what a message about an event says; empty: there is none.
func kindOf(e nstance.Event) Kind {
	switch e.Type {
	case nstance.EventNoticeReceived:
		return Notice
	case nstance.EventNoticeIgnored:
		if e.Notice != nil && !e.Notice.Cancelled {
			return advice[e.Notice.Kind]
		}
	case nstance.EventMachineGone:
		if e.Notice == nil {
			return Loss
		}
	case nstance.EventDrainStarted:
		return DrainStarted
	case nstance.EventDrainAcknowledged, nstance.EventDrainCancelled:
		return DrainEnded
	case nstance.EventDrainCutShort:
		return MissedDeadline
	}
	return ""
}

// advice are the notices that doom nothing.
var advice = map[nstance.NoticeKind]Kind{nstance.Rebalance: Rebalance, nstance.Maintenance: Maintenance}

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
	Pool      *Pool              `json:"pool,omitempty"` // that the machine is of; nil: not known
	Event     nstance.EventType  `json:"event"`          // of the journal
	Reason    string             `json:"reason,omitempty"`
	Rehearsal bool               `json:"rehearsal,omitempty"` // the cloud takes nothing
	Notice    *nstance.Notice    `json:"notice,omitempty"`
	Drain     *nstance.Drain     `json:"drain,omitempty"`
	Wave      *Wave              `json:"wave,omitempty"` // of the events of which this is the first; nil: there is no other
}

// A Pool is what the cloud takes capacity back from. Empty: not known.
type Pool struct {
	InstanceType string             `json:"instance_type"`
	Zone         string             `json:"zone"`
	Market       nstance.MarketType `json:"market"`
}

// A Term is the leadership that messages come from.
type Term struct {
	Cluster nstance.ClusterID
	Shard   nstance.ShardID
	Epoch   uint64
}

// message returns the message about an event, and false if there is none.
func (t Term) message(e nstance.Event) (Message, bool) {
	kind := kindOf(e)
	return Message{
		ID: t.messageID(strconv.FormatUint(uint64(e.Seq), 10)), Kind: kind, Time: e.Time, Cluster: t.Cluster, Shard: t.Shard,
		Tenant: e.Tenant, Group: e.Group, Instance: e.Instance, Event: e.Type, Reason: e.Reason,
		Rehearsal: rehearsed(e), Notice: e.Notice, Drain: e.Drain,
	}, kind != ""
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
	for _, kind := range Kinds() {
		for _, wave := range []*Wave{nil, {}} {
			m := Message{Kind: kind, Pool: &Pool{}, Notice: &nstance.Notice{Kind: nstance.Reclaim}, Drain: &nstance.Drain{}, Wave: wave}
			if _, err := body(context.Background(), text, m); err != nil { // its budget bounds it
				return err
			}
		}
	}
	return nil
}
