package ec2

import (
	"strconv"
	"time"
)

// A spotRequest is the Spot Instance request behind a spot machine. Everything
// in it is guarded by the cloud's lock.
type spotRequest struct {
	id         string
	machine    *machine // nil: open
	kind       InstanceType
	image      string
	zone       string
	persistent bool
	behavior   string
	maxPrice   string
	created    time.Time
	tags       map[string]string
	state      string // open, active, closed, cancelled
	code       string
	message    string
	updated    time.Time
}

func newSpotRequest(on call, l *launch) *spotRequest {
	o := l.in.InstanceMarketOptions.SpotOptions
	behavior := orElse(o.InstanceInterruptionBehavior, "terminate")
	if l.in.HibernationOptions.Configured {
		behavior = "hibernate"
	}
	s := &spotRequest{
		id: "sir-" + newID("x")[3:11], kind: l.kind, image: l.image.ID, zone: l.zone, persistent: o.SpotInstanceType == "persistent", behavior: behavior,
		maxPrice: o.MaxPrice, created: on.now, tags: l.tags["spot-instances-request"], state: "open",
	}
	s.setStatus("pending-evaluation", "Your Spot request has been submitted for review, and is pending evaluation.")
	return s
}

func (s *spotRequest) setStatus(code, message string) {
	s.code, s.message, s.updated = code, message, time.Now()
}

func (s *spotRequest) fulfill(m *machine) {
	s.machine, s.zone, s.state = m, m.zone, "active"
	s.setStatus("fulfilled", "Your Spot request is fulfilled.")
}

func (s *spotRequest) close(code, message string) {
	if s.state == "active" {
		s.state = "closed"
		s.setStatus(code, message)
	}
}

// checkPrice refuses a maximum price below the price now. The request remains
// open then ("Error codes for the Amazon EC2 API", SpotMaxPriceTooLow).
func (c *Cloud) checkPrice(on call, l *launch) error {
	limit := l.in.InstanceMarketOptions.SpotOptions.MaxPrice
	if !l.in.spot() || limit == "" || l.kind.SpotPrice == "" {
		return nil
	}
	most, err := strconv.ParseFloat(limit, 64)
	if err != nil {
		return err
	}
	price, err := strconv.ParseFloat(l.kind.SpotPrice, 64)
	if err != nil || price <= most {
		return err
	}
	s := newSpotRequest(on, l)
	s.setStatus("price-too-low", "Your Spot request price is lower than the minimum required Spot request fulfillment price.")
	c.spotRequests[s.id] = s
	return refuse("SpotMaxPriceTooLow", "Your Spot request price of %s is lower than the minimum required Spot request fulfillment price of %s.", limit, l.kind.SpotPrice)
}

type spotInput struct {
	listInput
	SpotInstanceRequestIds []string `q:"SpotInstanceRequestId"`
}

type spotOutput struct {
	Requests  []spotItem `xml:"spotInstanceRequestSet>item"`
	NextToken string     `xml:"nextToken,omitempty"`
}

type spotItem struct {
	ID     string `xml:"spotInstanceRequestId"`
	Price  string `xml:"spotPrice,omitempty"`
	Kind   string `xml:"type"`
	State  string `xml:"state"`
	Status struct {
		Code    string `xml:"code"`
		Updated string `xml:"updateTime"`
		Message string `xml:"message"`
	} `xml:"status"`
	Launch struct {
		Image string `xml:"imageId"`
		Type  string `xml:"instanceType"`
	} `xml:"launchSpecification"`
	Machine  string    `xml:"instanceId,omitempty"`
	Created  string    `xml:"createTime"`
	Product  string    `xml:"productDescription"`
	Zone     string    `xml:"launchedAvailabilityZone,omitempty"`
	Behavior string    `xml:"instanceInterruptionBehavior"`
	Tags     []tagItem `xml:"tagSet>item"`
}

func (s *spotRequest) kindName() string {
	if s.persistent {
		return "persistent"
	}
	return "one-time"
}

func (s *spotRequest) item() spotItem {
	out := spotItem{
		ID: s.id, Price: s.maxPrice, Kind: s.kindName(), State: s.state, Created: stamp(s.created), Product: "Linux/UNIX", Zone: s.zone,
		Behavior: s.behavior, Tags: tagItems(s.tags),
	}
	out.Status.Code, out.Status.Message, out.Status.Updated = s.code, s.message, stamp(s.updated)
	out.Launch.Image, out.Launch.Type = s.image, s.kind.Name
	if s.machine != nil {
		out.Machine = s.machine.id
	}
	return out
}

func (c *Cloud) describeSpotInstanceRequests(_ call, in *spotInput) (*spotOutput, error) {
	var all []entry
	for _, s := range c.spotRequests {
		has := filterable{
			"spot-instance-request-id": {s.id}, "state": {s.state}, "type": {s.kindName()}, "status-code": {s.code}, "launch.instance-type": {s.kind.Name},
			"launched-availability-zone": {s.zone},
		}
		if s.machine != nil {
			has["instance-id"] = []string{s.machine.id}
		}
		all = append(all, entry{s.id, has, s.tags})
	}
	ids, next, err := c.list(in.listInput, listing{
		filters: []string{"spot-instance-request-id", "state", "type", "status-code", "launch.instance-type", "launched-availability-zone", "instance-id"},
		asked:   in.SpotInstanceRequestIds, notFound: unknownSpotRequest, least: minPage, most: maxPage,
	}, all)
	if err != nil {
		return nil, err
	}
	out := &spotOutput{NextToken: next}
	for _, id := range ids {
		out.Requests = append(out.Requests, c.spotRequests[id].item())
	}
	return out, nil
}

func unknownSpotRequest(id string) error {
	return refuse("InvalidSpotInstanceRequestID.NotFound", "The spot instance request ID '%s' does not exist", id)
}
