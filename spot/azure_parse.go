package spot

import (
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
	switch {
	case self.Name == "" || len(self.Name) > maxIDLen || self.VMID == "":
		return self, errors.New("no name of a machine")
	case self.Priority == nil:
		return self, errors.New("no priority")
	}
	return self, nil
}

type azureDocument struct {
	Incarnation *int `json:"DocumentIncarnation"`
	Events      []azureEvent
}

type azureEvent struct {
	EventID     string `json:"EventId"`
	EventType   string
	EventStatus string
	Resources   []string
	NotBefore   string
}

// parseAzureEvents reads the events of the named machine. The document of an event
// that has started has no time: deadlines holds the times of earlier reads. One
// unreadable event does not hide the others. Skipped is an error about events of types
// that are not known: later versions may add some, which are no reason to distrust the
// rest of the document.
func parseAzureEvents(body []byte, name string, deadlines map[string]time.Time) (found []nstance.Notice, skipped, err error) {
	var doc azureDocument
	if err := decode(body, &doc); err != nil {
		return nil, nil, err
	}
	if doc.Incarnation == nil {
		return nil, nil, errors.New("no document of events")
	}
	var errs, unknown []error
	if len(doc.Events) > maxStanding {
		errs = append(errs, fmt.Errorf("%d events", len(doc.Events)))
		doc.Events = doc.Events[:maxStanding]
	}
	for i, e := range doc.Events {
		if !slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(r, name) }) {
			continue
		}
		if e.kind() == "" {
			unknown = append(unknown, e.unknownType())
			continue
		}
		n, err := e.notice(deadlines)
		if err != nil {
			errs = append(errs, fmt.Errorf("event %d: %w", i, err))
			continue
		}
		found = append(found, n)
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

// notice returns what the event says. A recommendation has no deadline: its times,
// if any, and its status say nothing about the end of the machine.
func (e azureEvent) notice(deadlines map[string]time.Time) (nstance.Notice, error) {
	n := nstance.Notice{Kind: e.kind(), Action: e.EventType, Source: azureSourceName, EventID: azureEventPrefix + e.EventID}
	if e.EventID == "" || len(e.EventID) > maxIDLen || !tokenLike([]byte(e.EventID)) {
		return n, errors.New("no usable EventId")
	}
	if n.Kind == nstance.Rebalance {
		return n, nil // its acknowledgement does nothing
	}
	n.Machines = e.Resources
	at, err := e.start(deadlines[n.EventID])
	if err != nil {
		return n, err
	}
	deadlines[n.EventID] = at
	if n.Kind == nstance.Maintenance {
		n.NotBefore = at
	} else {
		n.Deadline = at
	}
	return n, nil
}

// start returns when the event begins. The field is blank once it has begun.
func (e azureEvent) start(known time.Time) (time.Time, error) {
	switch {
	case e.EventStatus != "Scheduled" && e.EventStatus != "Started":
		return known, errors.New("unknown EventStatus")
	case e.NotBefore == "":
		return known, nil
	}
	at, err := http.ParseTime(e.NotBefore)
	if err != nil || at.Unix() <= 0 || at.Year() > 9999 {
		return known, errors.New("NotBefore: not a time")
	}
	return at.UTC(), nil
}
