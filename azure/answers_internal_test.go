package azure

import (
	"net/http"
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestAnswers: what Azure may answer that is in no table.
func TestAnswers(t *testing.T) {
	calls := map[string]string{
		"create": "VirtualMachinesClient.BeginCreateOrUpdate", "get": "VirtualMachinesClient.Get",
		"list": "VirtualMachinesClient.NewListPager", "delete": "VirtualMachinesClient.BeginDelete",
		"park": "VirtualMachinesClient.BeginDeallocate", "wake": "VirtualMachinesClient.BeginStart",
	}
	refusal := func(status int) testcloud.Fault {
		return testcloud.Fault{Answer: (&armtest.Refusal{Status: status, Code: "SomethingNew", Message: providertest.Words}).ServeHTTP}
	}
	providertest.RunAnswers(t, func(t *testing.T) providertest.Answers {
		c, p := openTest(t)
		sample := testSpec(t)
		return providertest.Answers{
			Provider: p, Park: nstance.ParkStopped, Ends: []string{"delete", "park", "wake"},
			Shape: func(s *nstance.MachineSpec) {
				s.Image, s.InstanceType, s.Subnet, s.Args = sample.Image, sample.InstanceType, sample.Subnet, sample.Args
			},
			Meet: func(op string, a providertest.Answer) {
				switch a {
				case providertest.AnswerUnseen:
					c.SetDelays(unseen(op))
					return
				case providertest.AnswerEnds:
					if op == "delete" || op == "park" {
						c.FailChanges(1, "SomethingNew", providertest.Words)
					} else {
						c.FailCreates(1, "SomethingNew", providertest.Words)
					}
					return
				}
				c.Faults.All(calls[op], map[providertest.Answer]testcloud.Fault{
					providertest.AnswerRefused: refusal(http.StatusUnprocessableEntity),
					providertest.AnswerClash:   refusal(http.StatusConflict),
					providertest.AnswerFailed:  refusal(http.StatusNotImplemented),
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
			Clear:    c.Faults.Clear,
			Machines: func() int { return len(c.Machines()) },
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
