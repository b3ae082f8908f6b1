package gcp_test

import (
	"net/http"
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestAnswers: what Compute Engine may answer that is in no table.
func TestAnswers(t *testing.T) {
	calls := map[string]string{"create": "instances.insert", "get": "instances.get", "list": "instances.list", "delete": "instances.delete", "park": "instances.stop", "wake": "instances.start"}
	kinds := map[string]string{"create": "insert", "delete": "delete", "park": "stop", "wake": "start"}
	providertest.RunAnswers(t, func(t *testing.T) providertest.Answers {
		faults := &testcloud.Faults{}
		cloud, p := newCloud(t, &gcetest.Options{Faults: faults})
		return providertest.Answers{
			Provider: p, Shape: shape, Park: nstance.ParkStopped, Ends: []string{"delete", "park", "wake"},
			Meet: func(op string, a providertest.Answer) {
				switch a {
				case providertest.AnswerUnseen:
					cloud.SetDelays(unseen(op))
					return
				case providertest.AnswerEnds:
					cloud.FailOperation(kinds[op], gcetest.OperationError{Code: "SOMETHING_NEW", Message: providertest.Words})
					return
				}
				faults.All(calls[op], map[providertest.Answer]testcloud.Fault{
					providertest.AnswerRefused: {Answer: gcetest.Refuse(http.StatusUnprocessableEntity, "somethingNew", providertest.Words)},
					providertest.AnswerClash:   {Answer: gcetest.Refuse(http.StatusConflict, "somethingNew", providertest.Words)},
					providertest.AnswerFailed:  {Answer: gcetest.Refuse(http.StatusInternalServerError, "somethingNew", providertest.Words)},
					providertest.AnswerCut:     {Lost: testcloud.LostRest},
					providertest.AnswerLost:    {Lost: testcloud.LostAnswer},
					providertest.AnswerNone:    {Lost: testcloud.LostRequest},
					providertest.AnswerLate:    {Lost: testcloud.LostLate},
					providertest.AnswerPage:    testcloud.Page(http.StatusOK),
					providertest.AnswerBlank:   testcloud.Blank(http.StatusOK),
					providertest.AnswerBarred:  testcloud.Page(http.StatusForbidden),
					providertest.AnswerAbsent:  testcloud.Page(http.StatusNotFound),
					providertest.AnswerSlower:  testcloud.Page(http.StatusTooManyRequests),
				}[a])
			},
			Clear:    faults.Clear,
			Machines: func() int { return len(cloud.Machines()) },
		}
	})
}

// unseen are the delays of a cloud that shows late what it has accepted.
func unseen(op string) testcloud.Delays {
	d := testcloud.Delays{Start: providertest.Unseen, Stop: providertest.Unseen, Delete: providertest.Unseen}
	if op == "create" {
		d.Visible = providertest.Unseen
	}
	return d
}
