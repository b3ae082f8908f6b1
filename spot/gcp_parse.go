package spot

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// parsePreempted reads TRUE or FALSE. The value has no time and no ID, and its
// entity tag may be a hash of it. A machine is preempted once, so there is one
// event: if the value goes back and returns, it is the same event again.
func parsePreempted(body []byte) ([]nstance.Notice, error) {
	yes, err := parseBool(body)
	if err != nil || !yes {
		return nil, err
	}
	return []nstance.Notice{{
		Kind:    nstance.Reclaim,
		Action:  "preempt",
		Source:  "gcp/preempted",
		EventID: "gcp/preempted",
	}}, nil
}

// parseMaintenanceEvent reads NONE, MIGRATE_ON_HOST_MAINTENANCE or
// TERMINATE_ON_HOST_MAINTENANCE (Compute Engine, "Query metadata server for
// maintenance event notices"). A migrated machine lives on; a terminated one,
// such as one with a GPU, does not. The value has no time and no ID: the next
// maintenance of a machine is the event of the last one again, after its withdrawal.
func parseMaintenanceEvent(body []byte) ([]nstance.Notice, error) {
	event, err := parseWord(body)
	if err != nil || event == "NONE" {
		return nil, err
	}
	var kind nstance.NoticeKind
	switch {
	case strings.HasPrefix(event, "MIGRATE"):
		kind = nstance.Maintenance
	case strings.HasPrefix(event, "TERMINATE"):
		kind = nstance.Stop
	default:
		return nil, errors.New("unknown event")
	}
	return []nstance.Notice{{
		Kind:    kind,
		Action:  event,
		Source:  "gcp/maintenance",
		EventID: "gcp/maintenance/" + event,
	}}, nil
}

// parseUpcoming reads what Compute Engine announces for machines whose maintenance has a
// window, such as those with GPUs and TPUs (Cloud TPU, "View maintenance notifications").
// The key exists only while there is maintenance: the start of its window is its only
// identity, and one whose start cannot be read is certain, too.
func parseUpcoming(body []byte) ([]nstance.Notice, error) {
	doc, err := decodeObject(body)
	if err != nil {
		return nil, err
	}
	n := nstance.Notice{Kind: nstance.Maintenance, Source: "gcp/upcoming-maintenance", EventID: "gcp/upcoming-maintenance"}
	var errs []error
	if n.Action, err = parseWord([]byte(cmp.Or(doc.text("type"), doc.text("maintenance_type")))); err != nil {
		errs = append(errs, fmt.Errorf("type: %w", err))
	}
	start, err := parseTime(cmp.Or(doc.text("window_start_time"), doc.text("windowstarttime")))
	if err != nil {
		return []nstance.Notice{n}, errors.Join(append(errs, fmt.Errorf("window_start_time: %w", err))...)
	}
	n.NotBefore = start
	n.EventID += "@" + start.Format(time.RFC3339)
	return []nstance.Notice{n}, errors.Join(errs...)
}

// sayNothing reports whether the answer is the service's word that there has been no
// notification, which has a status that is not documented.
func sayNothing(body []byte) bool {
	doc, err := decodeObject(body)
	return err == nil && doc.text("error") != "" && len(doc) == 1
}

// parseStopState reads the state of a graceful shutdown, PENDING_STOP and then
// STOPPING; the key is missing as long as there is none. A machine is stopped once:
// there is one event, as in parsePreempted.
func parseStopState(body []byte) ([]nstance.Notice, error) {
	state, err := parseWord(body)
	if err != nil || state == "NONE" {
		return nil, err
	}
	if state != "PENDING_STOP" && state != "STOPPING" {
		return nil, errors.New("unknown state")
	}
	return []nstance.Notice{{
		Kind:    nstance.Stop,
		Action:  state,
		Source:  "gcp/shutdown",
		EventID: "gcp/shutdown",
	}}, nil
}

func parseBool(body []byte) (bool, error) {
	switch strings.TrimSpace(string(body)) {
	case "TRUE":
		return true, nil
	case "FALSE":
		return false, nil
	}
	return false, errors.New("neither TRUE nor FALSE")
}
