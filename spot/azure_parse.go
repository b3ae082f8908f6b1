package spot

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// azureSelf is what the service says of the machine ("Azure Instance Metadata
// Service").
type azureSelf struct {
	Name     string  `json:"name"`
	VMID     string  `json:"vmId"`
	Priority *string `json:"priority"`
}

// interruptible: Low is the former name of Spot.
func (s azureSelf) interruptible() bool {
	return strings.EqualFold(*s.Priority, "Spot") || strings.EqualFold(*s.Priority, "Low")
}

func parseAzureSelf(body []byte) (azureSelf, error) {
	var self azureSelf
	if err := decode(body, &self); err != nil {
		return self, err
	}
	if self.Name == "" || len(self.Name) > maxIDLen || self.VMID == "" {
		return self, errors.New("no name of a machine")
	}
	return self, nil
}

type azureDocument struct{ Events []json.RawMessage }

type azureEvent struct {
	EventID     string
	EventType   string
	EventStatus string
	Resources   []string
	NotBefore   string
}

// decodeEvents returns the events of a document. What a single event has in another form
// than documented is missing in it, and hides neither the rest of it nor other events.
func decodeEvents(body []byte) ([]azureEvent, error) {
	var doc azureDocument
	if err := decode(body, &doc); err != nil {
		return nil, err
	}
	if doc.Events == nil { // the service shows an empty list while there are none
		return nil, errors.New("no document of events")
	}
	events := make([]azureEvent, 0, len(doc.Events))
	for _, raw := range doc.Events {
		o, _ := decodeObject(raw) // else it is an event of which nothing is known
		e := azureEvent{EventID: o.text("eventid"), EventType: o.text("eventtype"), EventStatus: o.text("eventstatus"), NotBefore: o.text("notbefore")}
		switch resources := o["resources"].(type) {
		case string:
			e.Resources = []string{resources}
		case []any:
			for _, r := range resources {
				if name, ok := r.(string); ok {
					e.Resources = append(e.Resources, name)
				}
			}
		}
		events = append(events, e)
	}
	return events, nil
}

// isFor reports whether the event is one of the named machine.
func (e azureEvent) isFor(name string) bool {
	return slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(r, name) })
}

// parseAzureEvents reads the events of the named machine, which may be a few among those of
// a whole scale set. The document of an event that has started has no time: deadlines
// holds the times of earlier reads. One unreadable event does not hide the others, and an
// eviction of which something cannot be read is certain, too. Skipped is an error about
// events of types that are not known, or that name no machine: later versions may add
// some, which are no reason to distrust the rest of the document.
func parseAzureEvents(body []byte, name string, deadlines map[string]time.Time) (found []nstance.Notice, skipped, err error) {
	events, err := decodeEvents(body)
	if err != nil {
		return nil, nil, err
	}
	var errs, unknown []error
	for _, e := range events {
		switch {
		case len(e.Resources) == 0 && len(unknown) < maxErrors:
			unknown = append(unknown, errors.New("skipped an event that names no machine"))
			continue
		case !e.isFor(name):
			continue
		case e.kind() == "":
			unknown = append(unknown, e.unknownType())
			continue
		case len(found) == maxStanding:
			return found, errors.Join(unknown...), errors.Join(append(errs, fmt.Errorf("more than %d events of this machine", maxStanding))...)
		}
		n, err := e.notice(deadlines)
		if err != nil {
			errs = append(errs, fmt.Errorf("event of type %s: %w", n.Action, err))
		}
		if n.EventID != "" {
			found = append(found, n)
		}
	}
	return found, errors.Join(unknown...), errors.Join(errs...)
}

// kind returns what the event means; empty: its type is not known. The documentation
// of rebalance recommendations ("Spot Rebalance Recommendation signals") does not
// name their type.
func (e azureEvent) kind() nstance.NoticeKind {
	switch e.EventType {
	case "Preempt":
		return nstance.Reclaim
	case "Terminate":
		return nstance.Terminate
	case "Freeze", "Reboot", "Redeploy":
		return nstance.Maintenance
	}
	if word, err := parseWord([]byte(e.EventType)); err == nil && strings.Contains(strings.ToLower(word), "rebalance") {
		return nstance.Rebalance
	}
	return ""
}

func (e azureEvent) unknownType() error {
	word, err := parseWord([]byte(e.EventType))
	if err != nil {
		return errors.New("skipped an event without a usable EventType")
	}
	return fmt.Errorf("skipped an event of the unknown type %s", word)
}

// notice returns what the event says. With an error the notice is announced, but for one
// without an ID that does not doom the machine. A recommendation has no deadline: its times,
// if any, and its status say nothing about the end of the machine.
func (e azureEvent) notice(deadlines map[string]time.Time) (nstance.Notice, error) {
	n := nstance.Notice{Kind: e.kind(), Action: e.EventType, Source: azureSourceName, EventID: azureEventPrefix + e.EventID}
	var errs []error
	if e.EventID == "" || len(e.EventID) > maxIDLen || !tokenLike([]byte(e.EventID)) {
		errs = append(errs, errors.New("no usable EventId"))
		if n.EventID = azureEventPrefix + strings.ToLower(e.EventType); !n.Kind.Dooms() {
			n.EventID = ""
			return n, errs[0]
		}
	}
	if n.Kind == nstance.Rebalance {
		return n, nil // its acknowledgement does nothing
	}
	n.Machines = e.Resources
	at, err := e.start(deadlines[n.EventID])
	if err != nil {
		errs = append(errs, err)
	}
	deadlines[n.EventID] = at
	if n.Kind == nstance.Maintenance {
		n.NotBefore = at
	} else {
		n.Deadline = at
	}
	return n, errors.Join(errs...)
}

// start returns when the event begins, and what cannot be read about that. The field is
// blank once it has begun.
func (e azureEvent) start(known time.Time) (time.Time, error) {
	var errs []error
	if e.EventStatus != "Scheduled" && e.EventStatus != "Started" {
		errs = append(errs, errors.New("unknown EventStatus"))
	}
	if e.NotBefore == "" {
		return known, errors.Join(errs...)
	}
	at, err := http.ParseTime(e.NotBefore)
	if err != nil {
		at, err = time.Parse(time.RFC3339, e.NotBefore)
	}
	if err != nil || at.Unix() <= 0 || at.Year() > 9999 {
		return known, errors.Join(append(errs, errors.New("NotBefore: not a time"))...)
	}
	return at.UTC(), errors.Join(errs...)
}
