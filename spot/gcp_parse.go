package spot

import (
	"errors"
	"strings"

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
