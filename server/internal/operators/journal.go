package operators

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/journal"
)

const (
	journalPage    = 1000
	maxJournalPage = 10_000
	maxTypes       = 64
)

// journalTenant returns the tenant whose events the caller may see; empty: all.
func (c caller) journalTenant(asked string) (nstance.TenantID, error) {
	tenant := nstance.TenantID(asked)
	if c.Role == nstance.RoleAdmin {
		return tenant, nil
	}
	if tenant != "" && tenant != c.Tenant {
		return "", nstance.Errorf(nstance.NotFound, "no tenant %.64s", asked)
	}
	return c.Tenant, nil
}

// ListEvents implements the RPC.
func (o *Service) ListEvents(ctx context.Context, req *apiv1.ListEventsRequest) (*apiv1.ListEventsResponse, error) {
	f, err := eventFilter(callerOf(ctx), req)
	if err != nil {
		return nil, err
	}
	limit := f.Limit
	f.Limit++ // one more says whether there is another page
	events, err := o.Events.Events(ctx, f)
	if err != nil {
		return nil, err
	}
	if f.Newest {
		slices.Reverse(events)
	}
	resp, size := &apiv1.ListEventsResponse{}, 0
	for _, e := range events {
		m := wire.Event(e)
		if size += proto.Size(m); len(resp.Events) == limit || size > maxAnswer && len(resp.Events) > 0 {
			resp.NextPage = strconv.FormatUint(resp.Events[len(resp.Events)-1].GetSeq(), 10)
			break
		}
		resp.Events = append(resp.Events, m)
	}
	return resp, nil
}

func eventFilter(c caller, req *apiv1.ListEventsRequest) (f journal.Filter, err error) {
	f = journal.Filter{
		Group: nstance.GroupID(req.GetGroup()), Since: wire.TimeOf(req.GetSince()), Until: wire.TimeOf(req.GetUntil()),
		Limit: int(req.GetLimit()), Newest: req.GetNewest(),
	}
	if f.Tenant, err = c.journalTenant(req.GetTenant()); err != nil {
		return f, err
	}
	if req.GetInstance() != "" {
		if f.Instance, err = nstance.ParseInstanceID(req.GetInstance()); err != nil {
			return f, err
		}
	}
	switch {
	case f.Limit < 0 || f.Limit > maxJournalPage:
		return f, nstance.FieldError("limit", "use 1 to 10000", "%d is out of range", f.Limit)
	case len(req.GetTypes()) > maxTypes:
		return f, nstance.FieldError("types", "name fewer, or none for all", "%d types are too many", len(req.GetTypes()))
	case f.Limit == 0:
		f.Limit = journalPage
	}
	f.Limit = min(f.Limit, maxJournalPage-1)
	for i, t := range req.GetTypes() {
		if err := nearest.Among(fmt.Sprintf("types[%d]", i), nstance.EventType(t), eventtype.All()); err != nil {
			return f, err
		}
		f.Types = append(f.Types, nstance.EventType(t))
	}
	if req.GetPage() == "" {
		return f, nil
	}
	n, err := strconv.ParseUint(req.GetPage(), 10, 63)
	if err != nil {
		return f, nstance.FieldError("page", "use next_page of the answer before, or leave it out", "%.64q is no page", req.GetPage())
	}
	if f.Newest {
		f.Before = nstance.Seq(n)
	} else {
		f.After = nstance.Seq(n)
	}
	return f, nil
}
