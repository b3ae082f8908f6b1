package ec2test

import (
	"encoding/json"
	"time"
)

// A busEvent is an event of an AWS service on EventBridge's default bus.
type busEvent struct {
	Version    string   `json:"version"`
	ID         string   `json:"id"`
	DetailType string   `json:"detail-type"`
	Source     string   `json:"source"`
	Account    string   `json:"account"`
	Time       string   `json:"time"`
	Region     string   `json:"region"`
	Resources  []string `json:"resources"`
	Detail     any      `json:"detail"`
}

// An eventBus publishes what happens to machines.
type eventBus struct {
	o      *Options
	queues *messageQueues
}

// publish puts an event into the queue of the account's rules. It needs the lock.
func (b *eventBus) publish(source, detailType string, resources []string, detail any) {
	q := b.queues.byName[b.o.EventQueue]
	if q == nil {
		return
	}
	body, err := json.Marshal(busEvent{
		Version: "0", ID: newRequestID(), DetailType: detailType, Source: source, Account: b.o.Account,
		Time: time.Now().UTC().Format(time.RFC3339), Region: b.o.Region, Resources: resources, Detail: detail,
	})
	if err != nil {
		panic(err) // plain data
	}
	q.put(string(body), 0)
}

// publishWarning publishes the interruption of a spot machine ("Spot Instance
// interruption notices", EC2 User Guide). It needs the lock.
func (b *eventBus) publishWarning(m *machine) {
	b.publish("aws.ec2", "EC2 Spot Instance Interruption Warning", []string{"arn:aws:ec2:" + m.zone + ":instance/" + m.id}, map[string]string{
		"instance-id": m.id, "instance-action": m.spot.behavior,
	})
}

// RecommendRebalance publishes that a machine has a higher risk of interruption ("EC2
// instance rebalance recommendations", EC2 User Guide).
func (c *Cloud) RecommendRebalance(handle string) error {
	return c.withMachine(handle, func(m *machine) error {
		c.bus.publish("aws.ec2", "EC2 Instance Rebalance Recommendation", []string{c.bus.instanceARN(m)}, map[string]string{"instance-id": m.id})
		return nil
	})
}

// ReclaimReservation publishes that the machine's capacity reservation is taken back at
// that time ("Monitor interruptible Capacity Reservations with EventBridge and
// CloudTrail", EC2 User Guide). The machine is not terminated.
func (c *Cloud) ReclaimReservation(handle string, at time.Time) error {
	return c.withMachine(handle, func(m *machine) error {
		c.bus.publish("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning", []string{c.bus.instanceARN(m)}, map[string]string{
			"instance-id": m.id, "instance-action": "terminate", "instance-termination-time": at.UTC().Format(time.RFC3339), "azId": "use1-az1",
		})
		return nil
	})
}

func (b *eventBus) instanceARN(m *machine) string {
	return "arn:aws:ec2:" + b.o.Region + ":" + b.o.Account + ":instance/" + m.id
}

// A ScheduledChange is an event of AWS Health about machines.
type ScheduledChange struct {
	ID       string // the last part of its ARN
	Code     string // such as AWS_EC2_INSTANCE_STOP_SCHEDULED
	Status   string // open, upcoming, closed
	Start    time.Time
	Machines []string // handles
}

// ScheduleChange publishes a scheduled change ("AWS Health events Amazon EventBridge
// schema", AWS Health User Guide).
func (c *Cloud) ScheduleChange(e ScheduledChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entities := []map[string]string{}
	for _, id := range e.Machines {
		entities = append(entities, map[string]string{"entityValue": id, "status": "PENDING"})
	}
	c.bus.publish("aws.health", "AWS Health Event", e.Machines, map[string]any{
		"eventArn": "arn:aws:health:" + c.o.Region + "::event/EC2/" + e.Code + "/" + e.ID, "service": "EC2", "eventTypeCode": e.Code,
		"eventTypeCategory": "scheduledChange", "eventScopeCode": "ACCOUNT_SPECIFIC", "communicationId": newRequestID(), "statusCode": e.Status,
		"startTime": e.Start.UTC().Format("Mon, 2 Jan 2006 15:04:05 GMT"), "eventRegion": c.o.Region, "affectedAccount": c.o.Account,
		"eventDescription": []map[string]string{{"language": "en_US", "latestDescription": "EC2 has detected degradation of the underlying hardware."}},
		"affectedEntities": entities, "page": "1", "totalPages": "1",
	})
}
