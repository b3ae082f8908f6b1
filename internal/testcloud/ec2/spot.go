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

func (s *spotRequest) setStatus(code, message string) { s.code, s.message = code, message }

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
