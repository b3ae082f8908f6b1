package aws_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestAnswers: what EC2 may answer that is in no table.
func TestAnswers(t *testing.T) {
	calls := map[string]string{"create": "RunInstances", "get": "DescribeInstances", "list": "DescribeInstances", "delete": "TerminateInstances", "park": "StopInstances", "wake": "StartInstances"}
	providertest.RunAnswers(t, func(t *testing.T) providertest.Answers {
		w := newWorld(t, nil)
		sample := w.spec()
		return providertest.Answers{
			Provider: w.Provider, Park: nstance.ParkStopped,
			Shape: func(s *nstance.MachineSpec) {
				s.Image, s.InstanceType, s.Subnet, s.Args = sample.Image, sample.InstanceType, sample.Subnet, sample.Args
			},
			Meet: func(op string, a providertest.Answer) {
				switch a {
				case providertest.AnswerUnseen:
					w.cloud.SetDelays(unseen(op))
					return
				case providertest.AnswerEnds:
					w.cloud.SetDelays(testcloud.Delays{Linger: time.Hour})
					w.cloud.FailNextBoots(ec2test.StateReason{Code: "Server.SomethingNew", Message: providertest.Words})
					return
				}
				w.faults.All(calls[op], map[providertest.Answer]testcloud.Fault{
					providertest.AnswerRefused: {Answer: ec2test.Refusal("SomethingNew", providertest.Words)},
					providertest.AnswerClash:   {Answer: func(rw http.ResponseWriter, _ *http.Request) { answerNew(rw, http.StatusConflict) }},
					providertest.AnswerFailed:  {Answer: func(rw http.ResponseWriter, _ *http.Request) { answerNew(rw, http.StatusInternalServerError) }},
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
			Clear:    w.faults.Clear,
			Machines: func() int { return len(w.cloud.Machines()) },
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

// answerNew answers with a code that no table has.
func answerNew(w http.ResponseWriter, status int) {
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`<Response><Errors><Error><Code>SomethingNew</Code><Message>` + providertest.Words + `</Message></Error></Errors><RequestID>1</RequestID></Response>`))
}
