package proxmox_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestAnswers: what Proxmox VE may answer that is in no table.
func TestAnswers(t *testing.T) {
	calls := map[string]string{
		"create": callClone, "get": callList, "list": callList, "delete": callDestroy, "park": callShutdown, "wake": callStart,
	}
	tasks := map[string]string{"create": "qmclone", "delete": "qmdestroy", "park": "qmshutdown", "wake": "qmstart"}
	providertest.RunAnswers(t, func(t *testing.T) providertest.Answers {
		b := newBench(t, nil)
		return providertest.Answers{
			Provider: b.p, Park: nstance.ParkStopped, Background: []string{"delete", "park", "wake"}, Ends: []string{"delete", "park", "wake"},
			Calls: func(op string) int { return b.cloud.Faults().Calls()[calls[op]] },
			Shape: func(s *nstance.MachineSpec) { s.InstanceType, s.Args = "small", json.RawMessage(`{"template": 9000}`) },
			Meet: func(op string, a providertest.Answer) {
				switch a {
				case providertest.AnswerUnseen:
					b.cloud.SetDelays(unseen(op))
					return
				case providertest.AnswerEnds:
					n := 1
					if op == "delete" { // fewer in a row are the cluster's own work that is not over yet
						n = 4
					}
					b.cloud.FailTasks(tasks[op], slices.Repeat([]string{providertest.Words}, n)...)
					return
				}
				b.cloud.Faults().All(calls[op], map[providertest.Answer]testcloud.Fault{
					providertest.AnswerRefused: answer(422, providertest.Words),
					providertest.AnswerClash:   answer(409, providertest.Words),
					providertest.AnswerFailed:  answer(599, providertest.Words),
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
			Clear:    b.cloud.Faults().Clear,
			Machines: func() int { return len(b.cloud.Machines()) },
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
