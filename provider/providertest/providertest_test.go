package providertest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// parts is a provider whose methods can be replaced one by one.
type parts struct {
	create func(context.Context, nstance.MachineSpec) (nstance.Machine, error)
	get    func(context.Context, nstance.InstanceID) (nstance.Machine, error)
	list   func(context.Context, nstance.Owner) iter.Seq2[nstance.Machine, error]
	delete func(context.Context, nstance.Machine) error
	take   func(context.Context, string) error
	holds  func(context.Context, string) (bool, error)
	again  func() nstance.Provider

	nstance.ImageResolver
	nstance.SubnetCounter
	nstance.TypeLister
	nstance.PriceLister
	nstance.Parker
	nstance.Balancer
	nstance.NodeNamer
}

// mover returns the cloud as its only server has it.
func mover(c *simcloud.Cloud) nstance.AddressMover { return c.At("").(nstance.AddressMover) }

func (p *parts) TakeAddress(ctx context.Context, address string) error { return p.take(ctx, address) }

func (p *parts) HoldsAddress(ctx context.Context, address string) (bool, error) {
	return p.holds(ctx, address)
}

func (p *parts) Create(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
	return p.create(ctx, s)
}

func (p *parts) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	return p.get(ctx, id)
}

func (p *parts) List(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return p.list(ctx, o)
}

func (p *parts) Delete(ctx context.Context, m nstance.Machine) error { return p.delete(ctx, m) }

// A defect breaks one promise; noticed is the subtest that must fail.
type defect struct {
	failing string
	infect  func(p *parts, c *simcloud.Cloud)
}

// forgetful infects only the provider that another process has.
func forgetful(infect func(*parts, *simcloud.Cloud)) func(*parts, *simcloud.Cloud) {
	return func(p *parts, c *simcloud.Cloud) {
		p.again = func() nstance.Provider {
			other := *p
			infect(&other, c)
			return &other
		}
	}
}

// changeMachines changes every machine that the provider returns.
func changeMachines(change func(nstance.Machine) nstance.Machine) func(*parts, *simcloud.Cloud) {
	return func(p *parts, c *simcloud.Cloud) {
		p.create = func(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			m, err := c.Create(ctx, s)
			return change(m), err
		}
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			m, err := c.Get(ctx, id)
			return change(m), err
		}
		p.list = listing(c, func(o nstance.Owner, yield func(nstance.Machine)) {
			for m, err := range c.List(context.Background(), o) {
				if err == nil {
					yield(change(m))
				}
			}
		})
	}
}

// listing makes a List from a function that yields machines; it respects contexts.
func listing(c *simcloud.Cloud, all func(nstance.Owner, func(nstance.Machine))) func(context.Context, nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
		return func(yield func(nstance.Machine, error) bool) {
			more := true
			all(o, func(m nstance.Machine) {
				switch {
				case !more:
				case ctx.Err() != nil:
					yield(nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "cut off"))
					more = false
				default:
					more = yield(m, nil)
				}
			})
			if more && ctx.Err() != nil {
				yield(nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "cut off"))
			}
		}
	}
}

// listOwners lists machines of every owner that keep accepts.
func listOwners(keep func(filter, mark nstance.Owner) bool) func(*parts, *simcloud.Cloud) {
	return func(p *parts, c *simcloud.Cloud) {
		p.list = listing(c, func(o nstance.Owner, yield func(nstance.Machine)) {
			for _, m := range c.Machines() {
				if keep(o, m.Owner) {
					yield(m)
				}
			}
		})
	}
}

// changeSpecs changes every spec before Create.
func changeSpecs(change func(*nstance.MachineSpec)) func(*parts, *simcloud.Cloud) {
	return func(p *parts, c *simcloud.Cloud) {
		p.create = func(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			change(&s)
			return c.Create(ctx, s)
		}
	}
}

// changeDeletes changes the machine of every Delete.
func changeDeletes(change func(c *simcloud.Cloud, m *nstance.Machine)) func(*parts, *simcloud.Cloud) {
	return func(p *parts, c *simcloud.Cloud) {
		p.delete = func(ctx context.Context, m nstance.Machine) error {
			change(c, &m)
			return c.Delete(ctx, m)
		}
	}
}

// conflicting answers a conflict with the machine that has the ID.
func conflicting(owners bool) func(*parts, *simcloud.Cloud) {
	return func(p *parts, c *simcloud.Cloud) {
		p.create = func(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			m, err := c.Create(ctx, s)
			if there, gerr := c.Get(ctx, s.ID); errors.Is(err, nstance.Conflict) && gerr == nil && (there.Owner != s.Owner) == owners {
				return there, nil
			}
			return m, err
		}
	}
}

// twins returns another handle for a repeated create.
func twins(p *parts, c *simcloud.Cloud) {
	var mu sync.Mutex
	made := 0
	p.create = func(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
		m, err := c.Create(ctx, s)
		mu.Lock()
		defer mu.Unlock()
		made++
		m.ProviderID = fmt.Sprintf("%s-%d", m.ProviderID, made)
		return m, err
	}
	p.delete = func(ctx context.Context, m nstance.Machine) error {
		m.ProviderID = ""
		return c.Delete(ctx, m)
	}
}

// marksLater returns a machine without marks once.
func marksLater(p *parts, c *simcloud.Cloud) {
	var marked sync.Map
	bare := func(m nstance.Machine) nstance.Machine {
		if _, ok := marked.LoadOrStore(m.ID, true); !ok {
			m.Owner, m.Epoch = nstance.Owner{}, 0
		}
		return m
	}
	p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
		m, err := c.Get(ctx, id)
		return bare(m), err
	}
	p.list = listing(c, func(o nstance.Owner, yield func(nstance.Machine)) {
		for _, m := range c.Machines() {
			if o.Owns(m.Owner) {
				yield(bare(m))
			}
		}
	})
}

var defects = map[string]defect{
	"loses the group":                 {"create/returns the machine asked for, with all its marks", changeMachines(func(m nstance.Machine) nstance.Machine { m.Group = ""; return m })},
	"loses the epoch":                 {"create/returns the machine asked for, with all its marks", changeMachines(func(m nstance.Machine) nstance.Machine { m.Epoch = 0; return m })},
	"makes twins":                     {"create/the same spec returns the same machine", twins},
	"makes twins at once":             {"create/the same spec at the same time makes one machine", twins},
	"makes twins for the next leader": {"another process/the same spec returns the same machine", forgetful(twins)},
	"lists what it made": {"another process/sees machines with all their marks", forgetful(func(p *parts, _ *simcloud.Cloud) {
		p.list = func(context.Context, nstance.Owner) iter.Seq2[nstance.Machine, error] {
			return func(func(nstance.Machine, error) bool) {}
		}
	})},
	"deletes what it made": {"another process/deletes a machine until not found, and it is gone", forgetful(func(p *parts, _ *simcloud.Cloud) {
		p.delete = func(context.Context, nstance.Machine) error { return nstance.NotFound }
	})},
	"hands out one handle": {"create/different specs at the same time make different machines",
		changeMachines(func(m nstance.Machine) nstance.Machine { m.ProviderID = "vm"; return m })},
	"forgets parameters": {"create/other parameters under the same ID are a conflict", conflicting(false)},
	"adopts strangers":   {"create/another owner of the same ID is a conflict", conflicting(true)},
	"takes any ID": {"create/an ID that is none is refused", func(p *parts, c *simcloud.Cloud) {
		p.create = func(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			if _, err := nstance.ParseInstanceID(string(s.ID)); err != nil {
				return nstance.Machine{ID: s.ID, ProviderID: "x"}, nil
			}
			return c.Create(ctx, s)
		}
	}},
	"takes a limit for a parameter": {"create/a limit of machines on one host is heeded or refused", func(p *parts, c *simcloud.Cloud) {
		p.create = func(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			s.Token += strconv.Itoa(s.HostLimit)
			s.UserData = append(s.UserData[:len(s.UserData):len(s.UserData)], byte(s.HostLimit))
			s.HostLimit = 0
			return c.Create(ctx, s)
		}
	}},
	"hides the host": {"create/a limit of machines on one host is heeded or refused", func(p *parts, c *simcloud.Cloud) {
		p.create = func(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			limit := s.HostLimit
			s.HostLimit = 0
			m, err := c.Create(ctx, s)
			if limit > 0 {
				m.Zone = ""
			}
			return m, err
		}
	}},
	"shows unmarked machines":  {"get/shows the marks from the first moment", marksLater},
	"lists unmarked machines":  {"list/shows the marks from the first moment", marksLater},
	"lists every installation": {"list/shows nothing of another installation", listOwners(func(f, m nstance.Owner) bool { f.Installation = m.Installation; return f.Owns(m) })},
	"lists every shard":        {"list/shows nothing of another cluster or shard", listOwners(func(f, m nstance.Owner) bool { f.Shard = m.Shard; return f.Owns(m) })},
	"lists every cluster":      {"list/shows nothing of another cluster or shard", listOwners(func(f, m nstance.Owner) bool { f.Cluster = m.Cluster; return f.Owns(m) })},
	"lists every tenant":       {"list/filters by tenant, and without one yields every tenant", listOwners(func(f, m nstance.Owner) bool { f.Tenant = ""; return f.Owns(m) })},
	"lists the default tenant": {"list/filters by tenant, and without one yields every tenant",
		listOwners(func(f, m nstance.Owner) bool { return f.Owns(m) && (f.Tenant != "" || m.Tenant == "default") })},
	"lists twice": {"list/yields each machine once", func(p *parts, c *simcloud.Cloud) {
		p.list = listing(c, func(o nstance.Owner, yield func(nstance.Machine)) {
			for _, m := range slices.Repeat(c.Machines(), 2) {
				if o.Owns(m.Owner) {
					yield(m)
				}
			}
		})
	}},
	"lists one page": {"list/yields each machine once", func(p *parts, c *simcloud.Cloud) {
		p.list = listing(c, func(o nstance.Owner, yield func(nstance.Machine)) {
			for _, m := range slices.Collect(slices.Values(c.Machines()))[:min(len(c.Machines()), 10)] {
				if o.Owns(m.Owner) {
					yield(m)
				}
			}
		})
	}},
	"lists two pages": {"list/yields each machine once", func(p *parts, c *simcloud.Cloud) {
		p.list = listing(c, func(o nstance.Owner, yield func(nstance.Machine)) {
			for _, m := range slices.Collect(slices.Values(c.Machines()))[:min(len(c.Machines()), 24)] {
				if o.Owns(m.Owner) {
					yield(m)
				}
			}
		})
	}},
	"an outage is an absence": {"outage/is no absence", func(p *parts, c *simcloud.Cloud) {
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			m, err := c.Get(ctx, id)
			if nstance.CodeOf(err) == nstance.Unavailable {
				err = nstance.NotFound
			}
			return m, err
		}
	}},
	"an outage is an empty list": {"outage/is no absence", func(p *parts, c *simcloud.Cloud) {
		p.list = func(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
			return func(yield func(nstance.Machine, error) bool) {
				for m, err := range c.List(ctx, o) {
					if nstance.CodeOf(err) == nstance.Unavailable || !yield(m, err) {
						return
					}
				}
			}
		}
	}},
	"an outage is a deletion": {"outage/is no absence", func(p *parts, c *simcloud.Cloud) {
		p.delete = func(ctx context.Context, m nstance.Machine) error {
			err := c.Delete(ctx, m)
			if nstance.CodeOf(err) == nstance.Unavailable {
				err = nil
			}
			return err
		}
	}},
	"cannot be left": {"list/may be left early", func(p *parts, c *simcloud.Cloud) {
		p.list = func(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
			return func(yield func(nstance.Machine, error) bool) {
				for m, err := range c.List(ctx, o) {
					yield(m, err)
				}
			}
		}
	}},
	"holds its lock while it lists": {"list/its loop may call the provider", func(p *parts, c *simcloud.Cloud) {
		lock := make(chan struct{}, 1)
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			lock <- struct{}{}
			defer func() { <-lock }()
			return c.Get(ctx, id)
		}
		p.list = func(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
			return func(yield func(nstance.Machine, error) bool) {
				lock <- struct{}{}
				defer func() { <-lock }()
				c.List(ctx, o)(yield)
			}
		}
	}},
	"cuts listings silently": {"context/one that ends during a listing fails it", func(p *parts, c *simcloud.Cloud) {
		p.list = func(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
			return func(yield func(nstance.Machine, error) bool) {
				for m, err := range c.List(ctx, o) {
					if err != nil && ctx.Err() != nil || !yield(m, err) {
						return
					}
				}
			}
		}
	}},
	"finds any machine": {"list/its loop may call the provider", func(p *parts, c *simcloud.Cloud) {
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			if _, err := c.Get(ctx, id); err != nil {
				return nstance.Machine{}, err
			}
			return slices.Collect(slices.Values(c.Machines()))[0], nil
		}
	}},
	"does not know its own answer": {"get/two reads agree", func(p *parts, c *simcloud.Cloud) {
		reads := 0
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			m, err := c.Get(ctx, id)
			reads++
			m.Zone = fmt.Sprint(reads)
			return m, err
		}
	}},
	"has no not found": {"get/an unknown machine is not found", func(p *parts, c *simcloud.Cloud) {
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			m, err := c.Get(ctx, id)
			if errors.Is(err, nstance.NotFound) {
				err = errors.New("404")
			}
			return m, err
		}
	}},
	"takes a failed read for absence": {"context/one that has ended fails every call and is no answer", func(p *parts, c *simcloud.Cloud) {
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			m, err := c.Get(ctx, id)
			if err != nil {
				err = nstance.Errorf(nstance.NotFound, "%v", err)
			}
			return m, err
		}
	}},
	"ignores contexts": {"context/one that has ended fails every call and is no answer", func(p *parts, c *simcloud.Cloud) {
		p.create = func(_ context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			return c.Create(context.Background(), s)
		}
	}},
	"deletes nothing": {"delete/repeated until not found, and the machine is gone", func(p *parts, _ *simcloud.Cloud) {
		p.delete = func(context.Context, nstance.Machine) error { return nstance.Errorf(nstance.NotFound, "gone") }
	}},
	"never finishes a delete": {"delete/repeated until not found, and the machine is gone", func(p *parts, c *simcloud.Cloud) {
		p.delete = func(ctx context.Context, m nstance.Machine) error { _ = c.Delete(ctx, m); return nil }
	}},
	"deletes the unknown": {"delete/an unknown machine is not found", func(p *parts, c *simcloud.Cloud) {
		p.delete = func(ctx context.Context, m nstance.Machine) error {
			if err := c.Delete(ctx, m); !errors.Is(err, nstance.NotFound) {
				return err
			}
			return nstance.Errorf(nstance.Conflict, "404")
		}
	}},
	"deletes the neighbour": {"delete/leaves other machines alone", func(p *parts, c *simcloud.Cloud) {
		p.delete = func(ctx context.Context, m nstance.Machine) error {
			for _, n := range c.Machines() {
				_ = c.Delete(ctx, n)
			}
			return c.Delete(ctx, m)
		}
	}},
	"trusts the handle": {"delete/with another ID is a conflict and touches nothing", changeDeletes(func(c *simcloud.Cloud, m *nstance.Machine) {
		for _, n := range c.Machines() {
			if n.ProviderID == m.ProviderID {
				*m = n
			}
		}
	})},
	"ignores owners": {"delete/with another owner is a conflict and touches nothing", changeDeletes(func(c *simcloud.Cloud, m *nstance.Machine) {
		for _, n := range c.Machines() {
			if n.ID == m.ID {
				m.Owner = n.Owner
			}
		}
	})},
	"ignores handles": {"delete/with another machine's handle is a conflict and touches neither", changeDeletes(func(_ *simcloud.Cloud, m *nstance.Machine) {
		m.ProviderID = ""
	})},
	"ignores the market": {"market/spot is honoured and shown", changeSpecs(func(s *nstance.MachineSpec) { s.Market = "" })},
	"knows every market": {"market/an unknown market is refused", changeSpecs(func(s *nstance.MachineSpec) { s.Market = nstance.Spot })},
	"ignores args":       {"args/an unacceptable no_such_argument is refused by name", changeSpecs(func(s *nstance.MachineSpec) { s.Args = nil })},
	"mangles user data":  {"user data/reaches the machine unchanged", changeSpecs(func(s *nstance.MachineSpec) { s.UserData = []byte(strings.ToUpper(string(s.UserData))) })},
	"takes no address": {"address/one that was taken is held", func(p *parts, _ *simcloud.Cloud) {
		p.take = func(context.Context, string) error { return nil }
	}},
	"holds every address": {"address/taking it moves it away from another machine", func(p *parts, c *simcloud.Cloud) {
		p.holds = func(ctx context.Context, address string) (bool, error) {
			_, err := mover(c).HoldsAddress(ctx, address)
			return err == nil, err
		}
	}},
	"knows every address": {"address/one that does not exist is not found", func(p *parts, c *simcloud.Cloud) {
		p.holds = func(ctx context.Context, address string) (bool, error) {
			held, err := mover(c).HoldsAddress(ctx, address)
			if errors.Is(err, nstance.NotFound) {
				err = nil
			}
			return held, err
		}
	}},
	"takes silence for no": {"address/a context that has ended fails every call and is no answer", func(p *parts, c *simcloud.Cloud) {
		p.holds = func(ctx context.Context, address string) (bool, error) {
			held, err := mover(c).HoldsAddress(ctx, address)
			if errors.Is(err, nstance.Unavailable) {
				err = nil
			}
			return held, err
		}
	}},
	"finds every image": {"ability/images/a name without a match is not found", func(p *parts, c *simcloud.Cloud) {
		p.ImageResolver = images(func(ctx context.Context, q nstance.ImageQuery) (string, error) {
			q.Name = ""
			return c.ResolveImage(ctx, q)
		})
	}},
	"finds another image each time": {"ability/images/two lookups agree", func(p *parts, _ *simcloud.Cloud) {
		n := 0
		p.ImageResolver = images(func(context.Context, nstance.ImageQuery) (string, error) {
			n++
			return fmt.Sprint("img-", n), nil
		})
	}},
	"counts once": {"ability/subnets/a machine takes an address", func(p *parts, _ *simcloud.Cloud) {
		p.SubnetCounter = subnets(func(context.Context, []string) (map[string]int, error) {
			return map[string]int{"subnet-1": 5, "subnet-2": 5}, nil
		})
	}},
	"counts any subnet": {"ability/subnets/an unknown subnet is left out", func(p *parts, _ *simcloud.Cloud) {
		p.SubnetCounter = subnets(func(_ context.Context, names []string) (map[string]int, error) {
			return map[string]int{names[0]: 5}, nil
		})
	}},
	"knows every type": {"ability/types/an unknown type is missing", func(p *parts, _ *simcloud.Cloud) {
		p.TypeLister = types(func(_ context.Context, names []string) (map[string][]nstance.Arch, error) {
			out := map[string][]nstance.Arch{}
			for _, n := range names {
				out[n] = []nstance.Arch{nstance.AMD64}
			}
			return out, nil
		})
	}},
	"has a price for every type": {"ability/prices/an unknown type is left out", func(p *parts, _ *simcloud.Cloud) {
		p.PriceLister = prices(func(_ context.Context, names []string) (all []nstance.Price, _ error) {
			for _, n := range names {
				all = append(all, nstance.Price{InstanceType: n, Zone: "sim-a", Market: nstance.Spot, PerHour: 1})
			}
			return all, nil
		})
	}},
	"lists old prices": {"ability/prices/a spot machine of the type has one price in each zone", func(p *parts, c *simcloud.Cloud) {
		p.PriceLister = prices(func(ctx context.Context, names []string) ([]nstance.Price, error) {
			all, err := c.Prices(ctx, names)
			return append(all, all...), err
		})
	}},
	"parks nothing": {"ability/parking/a parked machine is stopped, and runs again when it is woken", func(p *parts, c *simcloud.Cloud) {
		p.Parker = parker{Cloud: c, park: func(context.Context, nstance.Machine, nstance.ParkMode) error { return nil }}
	}},
	"parks in any mode": {"ability/parking/another mode than that of its spec is refused", func(p *parts, c *simcloud.Cloud) {
		p.Parker = parker{Cloud: c, park: func(ctx context.Context, m nstance.Machine, _ nstance.ParkMode) error {
			return c.Park(ctx, m, nstance.ParkStopped)
		}}
	}},
	"parks for any owner": {"ability/parking/a machine of another owner is left alone", func(p *parts, c *simcloud.Cloud) {
		p.Parker = parker{Cloud: c, park: func(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
			for _, o := range c.Machines() {
				if o.ID == m.ID {
					m.Owner = o.Owner
				}
			}
			return c.Park(ctx, m, mode)
		}}
	}},
	"joins none": {"ability/load balancers/a machine that joins is a member", func(p *parts, c *simcloud.Cloud) {
		p.Balancer = balancer{Cloud: c, join: func(context.Context, nstance.LoadBalancer, []nstance.Machine) error { return nil }}
	}},
	"empties the load balancer": {"ability/load balancers/a machine that leaves is no longer a member, and the others stay", func(p *parts, c *simcloud.Cloud) {
		p.Balancer = balancer{Cloud: c, leave: func(ctx context.Context, lb nstance.LoadBalancer, _ []nstance.Machine) error {
			return c.LeaveBalancer(ctx, lb, c.Machines())
		}}
	}},
	"minds leaving twice": {"ability/load balancers/leaving again changes nothing", func(p *parts, c *simcloud.Cloud) {
		p.Balancer = balancer{Cloud: c, leave: func(ctx context.Context, lb nstance.LoadBalancer, m []nstance.Machine) error {
			in, err := c.BalancerMembers(ctx, lb)
			if err == nil && !slices.Contains(in, m[0].ProviderID) {
				return nstance.Errorf(nstance.Conflict, "not a member")
			}
			return c.LeaveBalancer(ctx, lb, m)
		}}
	}},
	"knows every load balancer": {"ability/load balancers/an unknown load balancer is not found", func(p *parts, c *simcloud.Cloud) {
		p.Balancer = balancer{Cloud: c, leave: func(ctx context.Context, lb nstance.LoadBalancer, m []nstance.Machine) error {
			if err := c.LeaveBalancer(ctx, lb, m); !errors.Is(err, nstance.NotFound) {
				return err
			}
			return nil
		}}
	}},
	"names nodes by their status": {"ability/nodes/a machine's provider ID does not change", func(p *parts, _ *simcloud.Cloud) {
		p.NodeNamer = nodes(func(m nstance.Machine) string { return "test:///" + m.ProviderID + string(m.Status) })
	}},
	"names nodes in a directory each": {"ability/nodes/machines differ after the last slash", func(p *parts, _ *simcloud.Cloud) {
		p.NodeNamer = nodes(func(m nstance.Machine) string { return "test:///" + m.ProviderID + "/node" })
	}},
	"refuses args without names": {"args/an unacceptable no_such_argument is refused by name", func(p *parts, c *simcloud.Cloud) {
		p.create = func(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			m, err := c.Create(ctx, s)
			if errors.Is(err, nstance.Invalid) {
				err = nstance.Errorf(nstance.Invalid, "bad request")
			}
			return m, err
		}
	}},
}

type images func(context.Context, nstance.ImageQuery) (string, error)

func (f images) ResolveImage(ctx context.Context, q nstance.ImageQuery) (string, error) {
	return f(ctx, q)
}

type nodes func(nstance.Machine) string

func (f nodes) NodeProviderID(m nstance.Machine) string {
	if m.ProviderID == "" {
		return ""
	}
	return f(m)
}

type subnets func(context.Context, []string) (map[string]int, error)

func (f subnets) FreeAddresses(ctx context.Context, names []string) (map[string]int, error) {
	return f(ctx, names)
}

type types func(context.Context, []string) (map[string][]nstance.Arch, error)

func (f types) TypeArchs(ctx context.Context, names []string) (map[string][]nstance.Arch, error) {
	return f(ctx, names)
}

type prices func(context.Context, []string) ([]nstance.Price, error)

func (f prices) Prices(ctx context.Context, names []string) ([]nstance.Price, error) {
	return f(ctx, names)
}

// parker is the cloud's, but for the function.
type parker struct {
	*simcloud.Cloud
	park func(context.Context, nstance.Machine, nstance.ParkMode) error
}

func (p parker) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	return p.park(ctx, m, mode)
}

// balancer is the cloud's, but for the functions that are set.
type balancer struct {
	*simcloud.Cloud
	join, leave func(context.Context, nstance.LoadBalancer, []nstance.Machine) error
}

func (b balancer) JoinBalancer(ctx context.Context, lb nstance.LoadBalancer, m []nstance.Machine) error {
	if b.join != nil {
		return b.join(ctx, lb, m)
	}
	return b.Cloud.JoinBalancer(ctx, lb, m)
}

func (b balancer) LeaveBalancer(ctx context.Context, lb nstance.LoadBalancer, m []nstance.Machine) error {
	if b.leave != nil {
		return b.leave(ctx, lb, m)
	}
	return b.Cloud.LeaveBalancer(ctx, lb, m)
}

// TestSubject is what TestDefects runs in processes of their own, where it must fail.
// By itself it checks a healthy provider.
func TestSubject(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		c := simcloud.New(&simcloud.Options{
			PageSize: 2, Addresses: []string{"10.0.0.100"}, Balancers: []string{"lb-1"},
			Subnets: map[string]int{"subnet-1": 5, "subnet-2": 5},
			Types:   map[string][]nstance.Arch{"": {nstance.AMD64}, "small": {nstance.AMD64, nstance.ARM64}},
			Prices:  map[simcloud.Pool]float64{{InstanceType: "small", Zone: "sim-a", Market: nstance.Spot}: 0.03},
			Images:  []simcloud.Image{{ID: "img-1", Owner: "me", Name: "base-1"}, {ID: "img-2", Owner: "me", Name: "base-2"}},
		})
		t.Cleanup(c.Close)
		p := &parts{create: c.Create, get: c.Get, list: c.List, delete: c.Delete, take: mover(c).TakeAddress, holds: mover(c).HoldsAddress,
			ImageResolver: c, SubnetCounter: c, TypeLister: c, PriceLister: c, Parker: c, Balancer: c,
			NodeNamer: nodes(func(m nstance.Machine) string { return "test:///" + m.ProviderID })}
		p.again = func() nstance.Provider { other := *p; return &other }
		wait := time.Duration(0) // the default
		if d, ok := findDefect(conformance.Defect()); ok {
			d.infect(p, c)
			wait = time.Second // it fails anyway: no need to wait
		}
		return providertest.Subject{
			Break: func() func() {
				c.Inject(simcloud.Fault{Times: -1})
				return c.ClearFaults
			},
			Again:    func() nstance.Provider { return p.again() },
			Provider: p, Spot: true, Wait: wait, Address: "10.0.0.100", NoAddress: "10.0.0.101", Elsewhere: c.At("b").(nstance.AddressMover),
			Image: nstance.ImageQuery{Owner: "me", Name: "base-*"}, Subnets: []string{"subnet-1", "subnet-2"}, Types: []string{"small"}, Priced: "small", Park: []nstance.ParkMode{nstance.ParkStopped},
			Balancer: nstance.LoadBalancer{Name: "front", ID: "lb-1"},
			UserData: func(_ context.Context, m nstance.Machine) ([]byte, error) {
				s, _ := c.Spec(m.ID)
				return s.UserData, nil
			},
		}
	})
}

func findDefect(name string) (defect, bool) {
	if d, ok := defects[name]; ok {
		return d, true
	}
	if d, ok := smokeDefects[name]; ok {
		return d.defect, true
	}
	d, ok := hangs[name]
	return d, ok
}

// advice is what a failure says besides what was wrong.
var advice = map[string]string{
	"makes twins":                     "find the machine of a repeated spec by its ID or token",
	"makes twins at once":             "find the machine of a repeated spec by its ID or token",
	"takes a failed read for absence": "an error is never absence",
	"finds any machine":               " answered another machine: ",
}

// TestDefects: a provider that breaks one promise fails the subtest of that promise.
func TestDefects(t *testing.T) {
	for name, d := range defects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			subtest := strings.ReplaceAll(d.failing, " ", "_")
			pattern := "/^" + strings.ReplaceAll(regexp.QuoteMeta(subtest), "/", "$/^") + "$"
			conformance.RequireFailure(t, "TestSubject", pattern, name, "--- FAIL: TestSubject/"+subtest+" ", "the calls before the failure:", advice[name])
		})
	}
}

// A smokeDefect shows in the smoke test, with this in its message.
type smokeDefect struct {
	defect
	message string
}

func smoking(message string, infect func(*parts, *simcloud.Cloud)) smokeDefect {
	return smokeDefect{defect{"smoke", infect}, message}
}

// hang never returns.
func hang() { select {} }

var smokeDefects = map[string]smokeDefect{
	"creates nothing": smoking(` answered no machine: its ID must be tst`, func(p *parts, _ *simcloud.Cloud) {
		p.create = func(context.Context, nstance.MachineSpec) (nstance.Machine, error) { return nstance.Machine{}, nil }
	}),
	"refuses every create": smoking(`answered internal (sorry): no error was due`, func(p *parts, _ *simcloud.Cloud) {
		p.create = func(context.Context, nstance.MachineSpec) (nstance.Machine, error) {
			return nstance.Machine{}, errors.New("sorry")
		}
	}),
	"finds nothing": smoking(`; the machine was due`, func(p *parts, _ *simcloud.Cloud) {
		p.get = func(_ context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			return nstance.Machine{}, nstance.Errorf(nstance.NotFound, "no machine %s", id)
		}
	}),
	"lists nothing": smoking(` answered 0 entries `, func(p *parts, c *simcloud.Cloud) {
		p.list = listing(c, func(nstance.Owner, func(nstance.Machine)) {})
	}),
	"accepts every delete and does nothing": smoking(` times, Get still finds it: Get(tst`, func(p *parts, _ *simcloud.Cloud) {
		p.delete = func(context.Context, nstance.Machine) error { return nil }
	}),
	"hands out another provider ID": smoking(`: its provider ID must be "sim-`, func(p *parts, c *simcloud.Cloud) {
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			m, err := c.Get(ctx, id)
			m.ProviderID = "other"
			return m, err
		}
	}),
	"takes delete for done": smoking(`, Get still finds it: Get(tst`, func(p *parts, _ *simcloud.Cloud) {
		p.delete = func(context.Context, nstance.Machine) error { return nstance.Errorf(nstance.NotFound, "gone") }
	}),
	"never says not found": smoking(`; NotFound was due once the machine is gone`, func(p *parts, c *simcloud.Cloud) {
		p.delete = func(ctx context.Context, m nstance.Machine) error { _ = c.Delete(ctx, m); return nil }
	}),
	"panics": smoking(`panics: out of machines`, func(p *parts, _ *simcloud.Cloud) {
		p.create = func(context.Context, nstance.MachineSpec) (nstance.Machine, error) { panic("out of machines") }
	}),
	"hangs in Create": smoking(`Create(web tst`, func(p *parts, _ *simcloud.Cloud) {
		p.create = func(context.Context, nstance.MachineSpec) (m nstance.Machine, err error) { hang(); return m, err }
	}),
	"hangs in Get": smoking(` hangs: it has not returned after`, func(p *parts, _ *simcloud.Cloud) {
		p.get = func(context.Context, nstance.InstanceID) (m nstance.Machine, err error) { hang(); return m, err }
	}),
	"waits in Get for its context": smoking(` gave no answer within `, func(p *parts, _ *simcloud.Cloud) {
		p.get = func(ctx context.Context, _ nstance.InstanceID) (nstance.Machine, error) {
			<-ctx.Done()
			return nstance.Machine{}, ctx.Err()
		}
	}),
	"hangs in List": smoking(` hangs: its sequence has not gone on for`, func(p *parts, _ *simcloud.Cloud) {
		p.list = func(context.Context, nstance.Owner) iter.Seq2[nstance.Machine, error] {
			return func(func(nstance.Machine, error) bool) { hang() }
		}
	}),
	"lists without end": smoking(` does not end: it has yielded 20000 entries`, func(p *parts, c *simcloud.Cloud) {
		p.list = func(context.Context, nstance.Owner) iter.Seq2[nstance.Machine, error] {
			return func(yield func(nstance.Machine, error) bool) {
				for yield(nstance.Machine{}, nil) {
				}
			}
		}
	}),
	"hangs in Delete": smoking(` hangs: it has not returned after`, func(p *parts, _ *simcloud.Cloud) {
		p.delete = func(context.Context, nstance.Machine) error { hang(); return nil }
	}),
}

// TestSmokeDefects: a provider that cannot do the least fails the smoke test, in words,
// and no other subtest runs.
func TestSmokeDefects(t *testing.T) {
	for name, d := range smokeDefects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.RequireSmokeFailure(t, "TestSubject", name, d.message)
		})
	}
}

// hangs are providers that pass the smoke test and hang later, in many subtests.
var hangs = map[string]defect{
	"hangs in Delete of a foreign handle": {"delete/with another ID is a conflict and touches nothing", func(p *parts, c *simcloud.Cloud) {
		p.delete = func(ctx context.Context, m nstance.Machine) error {
			err := c.Delete(ctx, m)
			if errors.Is(err, nstance.Conflict) {
				hang()
			}
			return err
		}
	}},
	"hangs in Get of an unknown machine": {"get/an unknown machine is not found", func(p *parts, c *simcloud.Cloud) {
		deleted := false
		p.delete = func(ctx context.Context, m nstance.Machine) error { deleted = true; return c.Delete(ctx, m) }
		p.get = func(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
			m, err := c.Get(ctx, id)
			if errors.Is(err, nstance.NotFound) && !deleted {
				hang()
			}
			return m, err
		}
	}},
}

// TestHangs: the whole run ends, and says which subtests it left out.
func TestHangs(t *testing.T) {
	for name, d := range hangs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failing := "--- FAIL: TestSubject/" + strings.ReplaceAll(d.failing, " ", "_") + " "
			conformance.RequireFailure(t, "TestSubject", "", name, "--- PASS: TestSubject/smoke ", failing,
				" hangs: it has not returned after 1s", "in vain; repair them first")
		})
	}
}

// TestAmbiguousCreates: a cloud may lose the answer of a Create. A caller repeats the same
// spec, and so does the suite.
func TestAmbiguousCreates(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Subject {
		c := simcloud.New(nil)
		t.Cleanup(c.Close)
		var lost sync.Map
		p := &parts{create: c.Create, get: c.Get, list: c.List, delete: c.Delete}
		p.create = func(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
			m, err := c.Create(ctx, s)
			if _, before := lost.LoadOrStore(s.ID, true); err == nil && !before {
				return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "the answer was lost")
			}
			return m, err
		}
		return providertest.Subject{Provider: struct{ nstance.Provider }{p}, Spot: true}
	})
}

// TestSkips: what is not checked is skipped with the reason.
func TestSkips(t *testing.T) {
	if conformance.Defect() == "no input" {
		providertest.Run(t, func(t *testing.T) providertest.Subject {
			c := simcloud.New(nil)
			t.Cleanup(c.Close)
			return providertest.Subject{Provider: struct{ nstance.Provider }{c}, Spot: true}
		})
		return
	}
	out, passed := conformance.Rerun(t, "TestSkips", "/^(smoke|args|address|ability|user_data)$", "no input")
	require.True(t, passed, out)
	for _, reason := range []string{
		"Subject.BadArgs is empty", "Subject.UserData is nil", "the provider is no nstance.AddressMover", "the provider is no nstance.AccountNamer",
		"the provider is no nstance.NodeNamer",
		"the provider is no nstance.ImageResolver", "the provider is no nstance.SubnetCounter", "the provider is no nstance.TypeLister",
		"the provider is no nstance.Balancer",
	} {
		require.Contains(t, out, "not checked: "+reason)
	}
}

func ExampleRun() {
	// In a provider's test file:
	_ = func(t *testing.T) {
		providertest.Run(t, func(t *testing.T) providertest.Subject {
			cloud := simcloud.New(nil)
			t.Cleanup(cloud.Close)
			return providertest.Subject{Provider: cloud, Spot: true}
		})
	}
	fmt.Println("see the names of its subtests with go test -v")
	// Output: see the names of its subtests with go test -v
}
