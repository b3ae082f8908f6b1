package aws

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// The detail types of events that are understood. "EC2 Capacity Reservation Instance
// Interruption Warning" is that of interruptible capacity reservations and of capacity
// blocks ("Monitor interruptible Capacity Reservations with EventBridge and CloudTrail",
// EC2 User Guide).
const (
	spotWarning        = "EC2 Spot Instance Interruption Warning"
	rebalanceAdvice    = "EC2 Instance Rebalance Recommendation"
	reservationWarning = "EC2 Capacity Reservation Instance Interruption Warning"
	healthEvent        = "AWS Health Event"

	// stateChange is ignored: the shard reads states where it needs them, and a rule
	// for other programs may send it.
	stateChange = "EC2 Instance State-change Notification"
)

// instanceEvents are those about one instance.
var instanceEvents = []string{spotWarning, rebalanceAdvice, reservationWarning}

// The sources of notices, as nstance.Notice.SameEvent compares them: the first two
// parts are those of package spot where the metadata service announces the same.
const (
	spotSource        = "aws/spot/eventbridge"
	rebalanceSource   = "aws/rebalance/eventbridge"
	maintenanceSource = "aws/maintenance/eventbridge"
	reservationSource = "aws/capacity-reservation/eventbridge"
)

// warningTime is how long before an interruption EC2 sends the warning ("Spot Instance
// interruption notices", EC2 User Guide). The event does not contain the time of the
// interruption.
const warningTime = 2 * time.Minute

const (
	maxEventBytes = 1 << 20 // of a message of SQS
	maxEntities   = 1000    // machines that one event may name
	maxWordBytes  = 128
)

// An event is what EventBridge puts into the queue (AWS service event, "Events" of the
// EventBridge User Guide), as far as it is used.
type event struct {
	DetailType string          `json:"detail-type"`
	Source     string          `json:"source"`
	Time       time.Time       `json:"time"`
	Detail     json.RawMessage `json:"detail"`
}

// An announcement is a notice about one instance of EC2. Its times are by AWS's clock.
type announcement struct {
	instanceID string
	notice     nstance.Notice
}

// errIgnored is the error of events of a type that is not understood.
type errIgnored struct{ detailType string }

func (e errIgnored) Error() string {
	return fmt.Sprintf("events %q are not understood and are deleted: remove them from the queue's rules", e.detailType)
}

// parseEvent returns when the event was sent and what it announces, which may be
// nothing. It fails with errIgnored for other types of events, and with another error for
// what is no event.
func parseEvent(body string) (sent time.Time, found []announcement, err error) {
	var e event
	switch {
	case len(body) > maxEventBytes:
		return sent, nil, fmt.Errorf("%d bytes are more than a message has", len(body))
	case json.Unmarshal([]byte(body), &e) != nil || e.DetailType == "":
		return sent, nil, errors.New("not an event of EventBridge")
	case !plausible(e.Time):
		return sent, nil, fmt.Errorf("event %q has no time", clip.Text(e.DetailType, maxWordBytes))
	}
	switch {
	case e.Source == "aws.ec2" && slices.Contains(instanceEvents, e.DetailType):
		found, err = e.parseInstance()
	case e.Source == "aws.health" && e.DetailType == healthEvent:
		found, err = e.parseHealth()
	case e.Source == "aws.ec2" && e.DetailType == stateChange:
	default:
		err = errIgnored{clip.Text(e.DetailType, maxWordBytes)}
	}
	return e.Time.UTC(), found, err
}

// plausible keeps out times that overflow when something is added to them.
func plausible(t time.Time) bool { return t.Unix() > 0 && t.Year() < 9999 }

var (
	instanceIDs = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)
	words       = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
)

// parseInstance reads an event about one instance.
func (e event) parseInstance() ([]announcement, error) {
	var d struct {
		InstanceID string `json:"instance-id"`
		Action     string `json:"instance-action"`
		EndsAt     string `json:"instance-termination-time"`
	}
	if _ = json.Unmarshal(e.Detail, &d); !instanceIDs.MatchString(d.InstanceID) { // what has another type is left empty
		return nil, fmt.Errorf("event %q names no instance", e.DetailType)
	}
	sent := e.Time.UTC()
	n := nstance.Notice{Kind: nstance.Rebalance, Source: rebalanceSource}
	if e.DetailType == rebalanceAdvice {
		n.EventID = n.Source + "@" + sent.Format(time.RFC3339)
		return []announcement{{d.InstanceID, n}}, nil
	}
	var err error
	if !words.MatchString(d.Action) { // the interruption is certain all the same
		d.Action, err = "", fmt.Errorf("event %q names no action", e.DetailType)
	}
	n.Kind, n.Action, n.Source = nstance.Reclaim, d.Action, spotSource
	if d.Action != "hibernate" { // it begins at once
		n.Deadline = sent.Add(warningTime)
	}
	if e.DetailType == reservationWarning {
		n.Source = reservationSource
		if at, err := time.Parse(time.RFC3339, d.EndsAt); err == nil && plausible(at) {
			n.Deadline = at.UTC()
		}
	}
	n.EventID = n.Source + "/" + cmp.Or(d.Action, "unknown") + "@" + sent.Format(time.RFC3339)
	return []announcement{{d.InstanceID, n}}, err
}

// health is the detail of an event of AWS Health ("AWS Health events Amazon EventBridge
// schema", AWS Health User Guide).
type health struct {
	ARN       string   `json:"eventArn"`
	Service   string   `json:"service"`
	Code      string   `json:"eventTypeCode"`
	Category  string   `json:"eventTypeCategory"`
	Status    string   `json:"statusCode"`
	StartTime string   `json:"startTime"`
	Entities  []entity `json:"affectedEntities"`
}

type entity struct {
	Value  string `json:"entityValue"`
	Status string `json:"status"`
}

// parseHealth reads scheduled changes of EC2. A message is one page of an event, with
// the instances of that page.
func (e event) parseHealth() ([]announcement, error) {
	var d health
	if json.Unmarshal(e.Detail, &d) != nil {
		return nil, errors.New("an event of AWS Health has no detail")
	}
	if d.Service != "EC2" || d.Category != "scheduledChange" {
		return nil, nil
	}
	id := d.ARN[strings.LastIndexByte(d.ARN, '/')+1:]
	if !words.MatchString(id) || !words.MatchString(d.Code) {
		return nil, errors.New("an event of AWS Health has no eventArn or eventTypeCode")
	}
	n := nstance.Notice{
		Kind: nstance.Maintenance, Action: d.Code, Source: maintenanceSource, EventID: maintenanceSource + "/" + id, Cancelled: d.Status == "closed",
	}
	if at, ok := parseHealthTime(d.StartTime); ok {
		n.NotBefore = at
	}
	var found []announcement
	for _, v := range d.Entities[:min(len(d.Entities), maxEntities)] {
		known := slices.ContainsFunc(found, func(a announcement) bool { return a.instanceID == v.Value })
		if !instanceIDs.MatchString(v.Value) || known {
			continue
		}
		one := n
		one.Cancelled = n.Cancelled || v.Status == "RESOLVED"
		found = append(found, announcement{v.Value, one})
	}
	if len(d.Entities) > maxEntities {
		return found, fmt.Errorf("an event of AWS Health names %d entities, of which %d are read", len(d.Entities), maxEntities)
	}
	return found, nil
}

// parseHealthTime accepts the form of AWS Health, "Sat, 05 Jun 2016 15:10:09 GMT", and
// RFC 3339. The weekday is not compared with the date: AWS's own example has a wrong one.
func parseHealthTime(s string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		_, date, _ := strings.Cut(s, ", ")
		t, err = time.Parse("2 Jan 2006 15:04:05 GMT", date)
	}
	return t.UTC(), err == nil && plausible(t)
}
