package spot

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

const (
	maxWordLen = 64  // of actions, codes and states
	maxIDLen   = 128 // of the cloud's event IDs
)

// parseInstanceAction reads {"action": "terminate", "time": "…Z"} (EC2 user
// guide, "Spot Instance interruption notices"). The key exists only while there is an
// interruption: one whose action or time is missing or unreadable is certain, too.
func parseInstanceAction(body []byte) ([]nstance.Notice, error) {
	doc, err := decodeObject(body)
	if err != nil {
		return nil, err
	}
	if doc["action"] == nil && doc["time"] == nil {
		return nil, errors.New("neither action nor time")
	}
	action, actionErr := parseWord([]byte(doc.text("action")))
	n := nstance.Notice{Kind: nstance.Reclaim, Action: action, Source: "aws/spot", EventID: "aws/spot/" + cmp.Or(action, "unknown")}
	if actionErr != nil {
		actionErr = fmt.Errorf("action: %w", actionErr)
	}
	if doc["time"] == nil {
		return []nstance.Notice{n}, actionErr
	}
	at, err := parseTime(doc.text("time"))
	if err != nil {
		return []nstance.Notice{n}, errors.Join(actionErr, fmt.Errorf("time: %w", err))
	}
	n.Deadline = at
	n.EventID += "@" + at.Format(time.RFC3339)
	return []nstance.Notice{n}, actionErr
}

// An object is a JSON object, by its names in lower case. Single values may be of another
// type than expected.
type object map[string]any

// text returns a value that is a text, else the empty one.
func (o object) text(name string) string {
	s, _ := o[name].(string)
	return s
}

// decodeObject accepts exactly one JSON object.
func decodeObject(body []byte) (object, error) {
	var doc map[string]any
	if err := decode(body, &doc); err != nil {
		return nil, err
	}
	if doc == nil {
		return nil, errors.New("not the expected JSON")
	}
	out := object{}
	for name, value := range doc {
		out[strings.ToLower(name)] = value
	}
	return out, nil
}

// parseRebalance reads {"noticeTime": "…Z"} (EC2 user guide, "EC2 instance
// rebalance recommendations"). That is when the recommendation was sent, not when
// anything will happen: another time is another recommendation.
func parseRebalance(body []byte) ([]nstance.Notice, error) {
	sent, err := parseNoticeTime(body)
	if err != nil {
		return nil, err
	}
	return []nstance.Notice{{
		Kind:    nstance.Rebalance,
		Source:  "aws/rebalance",
		EventID: "aws/rebalance@" + sent.Format(time.RFC3339),
	}}, nil
}

func parseNoticeTime(body []byte) (time.Time, error) {
	var doc struct{ NoticeTime string }
	if err := decode(body, &doc); err != nil {
		return time.Time{}, err
	}
	sent, err := parseTime(doc.NoticeTime)
	if err != nil {
		return time.Time{}, fmt.Errorf("noticeTime: %w", err)
	}
	return sent, nil
}

// parseMaintenance reads the list of scheduled events (EC2 user guide,
// "Scheduled events for your instances"). One unreadable entry does not hide
// the others.
func parseMaintenance(body []byte) ([]nstance.Notice, error) {
	var entries []json.RawMessage
	if err := decode(body, &entries); err != nil {
		return nil, err
	}
	if entries == nil {
		return nil, errors.New("no list of events") // null is not the empty list
	}
	var (
		found []nstance.Notice
		errs  []error
	)
	if len(entries) > maxStanding {
		errs = append(errs, fmt.Errorf("%d events", len(entries)))
		entries = entries[:maxStanding]
	}
	for i, raw := range entries {
		n, err := parseMaintenanceEntry(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("event %d: %w", i, err))
			continue
		}
		found = append(found, n)
	}
	return found, errors.Join(errs...)
}

// parseMaintenanceEntry reads one event. It ignores NotAfter, which bounds the start, not
// the machine's life.
func parseMaintenanceEntry(raw json.RawMessage) (nstance.Notice, error) {
	e, err := decodeObject(raw)
	if err != nil {
		return nstance.Notice{}, err
	}
	id := e.text("eventid")
	if id == "" || len(id) > maxIDLen || !tokenLike([]byte(id)) {
		return nstance.Notice{}, errors.New("no usable EventId")
	}
	n := nstance.Notice{Kind: nstance.Maintenance, Source: "aws/maintenance", EventID: "aws/maintenance/" + id}
	if n.Action, err = parseWord([]byte(e.text("code"))); err != nil {
		return n, fmt.Errorf("code: %w", err)
	}
	if n.NotBefore, err = parseTime(e.text("notbefore")); err != nil {
		return n, fmt.Errorf("NotBefore: %w", err)
	}
	switch strings.ToLower(e.text("state")) {
	case "active", "":
	case "canceled", "cancelled", "completed":
		n.Cancelled = true
	default:
		return n, errors.New("unknown state")
	}
	return n, nil
}

// parseTargetState reads the plain text state that Auto Scaling moves the
// machine to ("Retrieve the target lifecycle state through instance
// metadata"). Only termination is a notice: in the standby and warm pool states
// the machine stays. The text has no time and no ID, and the machine is terminated
// once: if the state goes back and returns, it is the same event again.
func parseTargetState(body []byte) ([]nstance.Notice, error) {
	state, err := parseWord(body)
	if err != nil {
		return nil, err
	}
	if state != "Terminated" && state != "Warmed:Terminated" {
		return nil, nil
	}
	return []nstance.Notice{{
		Kind:    nstance.Terminate,
		Action:  "terminate",
		Source:  "aws/autoscaling",
		EventID: "aws/autoscaling/terminated",
	}}, nil
}

// decode accepts exactly one JSON document. Its error quotes no content, so that
// a document with a new time at each read is not a new error each time.
func decode(body []byte, into any) error {
	if len(strings.TrimSpace(string(body))) == 0 {
		return errors.New("empty document")
	}
	if json.Unmarshal(body, into) != nil {
		return errors.New("not the expected JSON")
	}
	return nil
}

// parseTime accepts both spellings of the metadata service: RFC 3339, and, in
// maintenance events, "21 Jan 2019 09:00:43 GMT".
func parseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		// No zone but GMT: Go would make up an offset for any other name.
		t, err = time.Parse("2 Jan 2006 15:04:05 GMT", s)
	}
	if err != nil {
		return time.Time{}, errors.New("not a time")
	}
	if t = t.UTC(); t.Unix() <= 0 || t.Year() > 9999 {
		return time.Time{}, errors.New("not a plausible time")
	}
	return t, nil
}

// parseWord accepts a short name in ASCII, such as hibernate, system-reboot or
// Warmed:Stopped, and so refuses the error page of a proxy.
func parseWord(body []byte) (string, error) {
	s := strings.TrimSpace(string(body))
	if s == "" || len(s) > maxWordLen {
		return "", errors.New("not a single word")
	}
	for _, c := range s {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("-_:", c) {
			return "", errors.New("not a single word")
		}
	}
	return s, nil
}
