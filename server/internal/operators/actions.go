package operators

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/wire"
)

// An actionQuery selects actions.
type actionQuery struct {
	by, method   string
	since, until time.Time
	after        position // of the last one of the page before
	limit        int
}

func newActionQuery(req *apiv1.ListActionsRequest) (q actionQuery, err error) {
	q = actionQuery{
		by: req.GetBy(), method: req.GetMethod(),
		since: wire.TimeOf(req.GetSince()), until: wire.TimeOf(req.GetUntil()), limit: cmp.Or(int(req.GetLimit()), 100),
	}
	if q.limit < 0 || q.limit > journalPage {
		return q, nstance.FieldError("limit", "use 1 to 1000", "%d is out of range", q.limit)
	}
	if req.GetPage() != "" {
		q.after, err = parsePosition(req.GetPage())
	}
	return q, err
}

func actionPosition(a *ledger.Action) position { return position{at: a.At, instance: a.ID} }

func (q *actionQuery) matches(a *ledger.Action) bool {
	switch {
	case q.by != "" && a.By != q.by, q.method != "" && a.Method != q.method:
	case !q.since.IsZero() && a.At.Before(q.since), !q.until.IsZero() && !a.At.Before(q.until):
	case q.after != (position{}) && actionPosition(a).compare(q.after) <= 0:
	default:
		return true
	}
	return false
}

// ListActions implements the RPC, from the ledger. What was written on a day was done then,
// or before.
func (o *Service) ListActions(ctx context.Context, req *apiv1.ListActionsRequest) (*apiv1.ListActionsResponse, error) {
	q, err := newActionQuery(req)
	if err != nil {
		return nil, err
	}
	var found []ledger.Action
	var problems []string
	for day, err := range o.Ledger.Days(ctx, q.since, time.Time{}) {
		if err != nil {
			return nil, err
		}
		problems = append(problems, problemTexts(day.Problems)...)
		for i := range day.Actions {
			if a := &day.Actions[i]; q.matches(a) {
				found = append(found, *a)
			}
		}
		slices.SortFunc(found, func(a, b ledger.Action) int { return actionPosition(&a).compare(actionPosition(&b)) })
		found = found[:min(len(found), q.limit+1)]
		if began, err := time.Parse(time.DateOnly, day.Date); err == nil && len(found) > q.limit && !found[q.limit].At.Before(began) {
			break // earlier days have only what comes after these
		}
	}
	return actionPage(q, found, problems), nil
}

func actionPage(q actionQuery, found []ledger.Action, problems []string) *apiv1.ListActionsResponse {
	var list []*apiv1.Action
	for i := range found[:min(len(found), q.limit)] {
		list = append(list, actionMessage(&found[i]))
	}
	resp := &apiv1.ListActionsResponse{Actions: fitting(list), Problems: fitProblems(problems)}
	if n := len(resp.GetActions()); n > 0 && n < len(found) {
		resp.NextPage = actionPosition(&found[n-1]).String()
	}
	return resp
}

func actionMessage(a *ledger.Action) *apiv1.Action {
	return &apiv1.Action{
		At: wire.Time(a.At), By: a.By, Role: string(a.Role), Tenant: string(a.Tenant), Method: a.Method, Request: a.Request,
		Code: string(a.Code), Error: a.Error, Omitted: int32(a.Omitted),
	}
}
