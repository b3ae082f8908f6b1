package ec2test

import (
	"maps"
	"math"
	"slices"
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
	launch     *launch // what is launched once the price falls
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

// A spotMarket has the prices of spot capacity and the requests for it.
type spotMarket struct {
	o        *Options
	requests map[string]*spotRequest
	history  []priceChange
}

func newSpotMarket(o *Options) *spotMarket {
	return &spotMarket{o: o, requests: map[string]*spotRequest{}, history: o.firstPrices()}
}

// checkPrice refuses a maximum price below the price now. The request remains
// open then ("Error codes for the Amazon EC2 API", SpotMaxPriceTooLow).
func (sm *spotMarket) checkPrice(on call, l *launch) error {
	limit := l.in.InstanceMarketOptions.SpotOptions.MaxPrice
	if !l.in.spot() || limit == "" {
		return nil
	}
	price, affordable := sm.affordable(l)
	if affordable {
		return nil
	}
	s := newSpotRequest(on, l)
	s.launch = l
	s.setStatus("price-too-low", "Your Spot request price is lower than the minimum required Spot request fulfillment price.")
	sm.requests[s.id] = s
	return refuse("SpotMaxPriceTooLow", "Your Spot request price of %s is lower than the minimum required Spot request fulfillment price of %s.", limit, price)
}

// affordable returns the lowest price where the launch may go, and whether its maximum
// price, which has been checked, is not below that.
func (sm *spotMarket) affordable(l *launch) (price string, ok bool) {
	most, _ := strconv.ParseFloat(l.in.InstanceMarketOptions.SpotOptions.MaxPrice, 64)
	lowest := math.Inf(1)
	latest := map[string]string{} // by zone
	for _, p := range sm.history {
		if p.kind == l.kind.Name && (l.zone == "" || l.zone == p.zone) {
			latest[p.zone] = p.price
		}
	}
	for _, text := range latest {
		if f, err := strconv.ParseFloat(text, 64); err == nil && f < lowest {
			price, lowest = text, f
		}
	}
	return price, len(latest) == 0 || lowest <= most
}

// fulfillOpen launches what open requests ask for and can pay now: "your request remains
// open" ("Error codes for the Amazon EC2 API", SpotMaxPriceTooLow), and a request that is
// open "waits to be fulfilled" ("Spot Instance request status", EC2 User Guide). It needs
// c.mu.
func (r *launcher) fulfillOpen() {
	for _, id := range slices.Sorted(maps.Keys(r.fleet.spot.requests)) {
		s := r.fleet.spot.requests[id]
		if s.state != "open" || s.launch == nil {
			continue
		}
		if _, ok := r.fleet.spot.affordable(s.launch); !ok {
			continue
		}
		l := *s.launch
		l.request = s
		m, err := r.launchOne(call{now: time.Now()}, &l, newID("r"), 0)
		if err != nil {
			s.setStatus("capacity-not-available", err.Error())
			continue
		}
		r.tokens.bind(&l, []*machine{m})
		r.fleet.begin(m, nil)
	}
}

// OpenSpotRequests returns how many requests wait for the price to fall.
func (c *Cloud) OpenSpotRequests() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spot.requests {
		if s.state == "open" {
			n++
		}
	}
	return n
}

type cancelSpotInput struct {
	dryRun
	SpotInstanceRequestIds []string `q:"SpotInstanceRequestId,required"`
}

type cancelSpotOutput struct {
	Requests []cancelledItem `xml:"spotInstanceRequestSet>item"`
}

type cancelledItem struct {
	ID    string `xml:"spotInstanceRequestId"`
	State string `xml:"state"`
}

// cancel ends requests, all or none. The machine of one that was
// fulfilled runs on ("CancelSpotInstanceRequests", EC2 API Reference).
func (sm *spotMarket) cancel(_ call, in *cancelSpotInput) (*cancelSpotOutput, error) {
	for _, id := range in.SpotInstanceRequestIds {
		if sm.requests[id] == nil {
			return nil, unknownSpotRequest(id)
		}
	}
	out := &cancelSpotOutput{}
	for _, id := range in.SpotInstanceRequestIds {
		s := sm.requests[id]
		switch s.state {
		case "open":
			s.state = "cancelled"
			s.setStatus("canceled-before-fulfillment", "Your Spot request is canceled before it was fulfilled.")
		case "active":
			s.state = "cancelled"
			s.setStatus("request-canceled-and-instance-running", "Your Spot request is canceled, but your instance is still running.")
		}
		out.Requests = append(out.Requests, cancelledItem{id, s.state})
	}
	return out, nil
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

func (sm *spotMarket) describe(_ call, in *spotInput) (*spotOutput, error) {
	var all []entry[spotItem]
	for _, s := range sm.requests {
		has := filterable{
			"spot-instance-request-id": {s.id}, "state": {s.state}, "type": {s.kindName()}, "status-code": {s.code}, "launch.instance-type": {s.kind.Name},
			"launched-availability-zone": {s.zone},
		}
		if s.machine != nil {
			has["instance-id"] = []string{s.machine.id}
		}
		all = append(all, entry[spotItem]{s.id, has, s.tags, s.item()})
	}
	items, next, err := list(sm.o, in.listInput, listing{
		filters: []string{"spot-instance-request-id", "state", "type", "status-code", "launch.instance-type", "launched-availability-zone", "instance-id"},
		asked:   in.SpotInstanceRequestIds, notFound: unknownSpotRequest, least: minPage, most: maxPage,
	}, all)
	return &spotOutput{items, next}, err
}

func unknownSpotRequest(id string) error {
	return refuse("InvalidSpotInstanceRequestID.NotFound", "The spot instance request ID '%s' does not exist", id)
}
