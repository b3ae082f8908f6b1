package repository_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// comparedInstants are the functions of the leader that compare instants, by the reason why a
// wall clock that is known to be wrong ends nothing for good there. An instant on record is
// compared with the present by shard.reached and Census.due alone, or after ClockRight was asked.
var comparedInstants = map[string]map[string]string{
	"instants of this process, with the monotonic reading, or elapsed time": {
		"reconcile/act.go":                                     "resume retryTime",
		"reconcile/balancing.go":                               "balancersLeft",
		"reconcile/clock.go":                                   "detectPause",
		"reconcile/cloud.go":                                   "recordAddresses",
		"reconcile/create.go":                                  "findMachine provenRefusal",
		"reconcile/drain.go":                                   "reassignDrain",
		"reconcile/facts.go":                                   "answerOutdated handleMissing",
		"reconcile/group.go":                                   "recent",
		"reconcile/intent.go":                                  "reshape",
		"reconcile/internal/balance/balance.go":                "takeDue",
		"reconcile/internal/cloudfacts/cloudfacts.go":          "readScores",
		"reconcile/internal/definitions/definitions.go":        "due",
		"reconcile/internal/notices/book.go":                   "DropExpired",
		"reconcile/internal/place/addresses.go":                "full order",
		"reconcile/internal/place/candidates.go":               "candidate fallbackWaits",
		"reconcile/internal/place/capacity.go":                 "SoldOut accept recovering refuse send soldOut stale waited",
		"reconcile/internal/place/choose.go":                   "Find choice",
		"reconcile/internal/place/pools.go":                    "Warned WarnedFor reclaim reclaimed",
		"reconcile/internal/place/rates.go":                    "awaitPrices price",
		"reconcile/internal/place/refusals.go":                 "AcceptedFor refuseFor stale waits",
		"reconcile/internal/silence/silence.go":                "Get Holds Together",
		"reconcile/internal/wallclock/wallclock.go":            "New off",
		"reconcile/internal/work/budget.go":                    "Spend",
		"reconcile/internal/work/queue.go":                     "AddAt Age Less Next addDue",
		"reconcile/obstacle.go":                                "obstructed",
		"reconcile/orphans.go":                                 "restUntilCollection",
		"reconcile/relaunch.go":                                "leaveFailedMachine",
		"reconcile/remove.go":                                  "absenceEarly",
		"reconcile/run.go":                                     "admitDue process",
		"reconcile/save.go":                                    "saveSnapshots",
		"reconcile/shard.go":                                   "lasts",
		"reconcile/watch.go":                                   "askAfterBreak askWhileBooting countQueriesAfterBreak handleUnlisted",
		"server/alarms.go":                                     "attention",
		"server/internal/acknowledgements/acknowledgements.go": "recordListed",
		"server/internal/address/address.go":                   "acquire try",
		"server/internal/agents/keeper.go":                     "due find pass",
		"server/internal/agents/rivalry.go":                    "takeOver",
		"server/internal/agents/session_files.go":              "checkFileDeadlines due",
		"server/internal/garbage/garbage.go":                   "waitForPass",
		"server/internal/groups/marks.go":                      "findSecrets",
		"server/internal/keys/keys.go":                         "age",
		"server/internal/peers/peers.go":                       "forgetAbsent",
		"server/internal/ports/gate.go":                        "logDisplaced oldest",
		"server/internal/registrar/exposure.go":                "admit dropOld",
		"server/limits.go":                                     "dropAbuser refusalOf remember",
		"server/listeners.go":                                  "closeOld",
		"server/server.go":                                     "campaign",
	},
	"two instants on record or of a request, none of them the present": {
		"reconcile/advice.go":                       "eligibleAt heeded returnedUntil",
		"reconcile/census.go":                       "becameReady provesDefinition",
		"reconcile/drain.go":                        "within",
		"reconcile/facts.go":                        "served",
		"reconcile/internal/admission/admission.go": "earliest",
		"reconcile/internal/avoid/pool.go":          "repeats",
		"reconcile/internal/history/claims.go":      "AddClaim",
		"reconcile/internal/history/market.go":      "ReturnAt",
		"reconcile/internal/history/readiness.go":   "Covers Include",
		"reconcile/internal/notices/book.go":        "Receive",
		"reconcile/internal/orphans/orphans.go":     "List",
		"reconcile/internal/place/candidates.go":    "avoidedUntil",
		"reconcile/internal/place/place.go":         "earliest",
		"reconcile/plan/census.go":                  "earlierOf laterOf",
		"reconcile/standby.go":                      "viewStandby",
		"reconcile/times.go":                        "earliest latest",
		"reconcile/view.go":                         "launchBy",
		"server/attention.go":                       "attentionRows",
		"server/internal/agents/certlog.go":         "append lastExpiry",
		"server/internal/operators/keys.go":         "later",
		"server/internal/registrar/holders.go":      "add",
		"server/internal/registrar/records.go":      "endOf",
		"server/rotation.go":                        "claimWorkload later",
	},
	"what follows asks whether the clock can be trusted": {
		"reconcile/clock.go":                                   "lookAgainAt reached",
		"reconcile/create.go":                                  "absenceProvenAt formerCallsEnd",
		"reconcile/internal/avoid/book.go":                     "NextEnd Restore",
		"reconcile/internal/history/history.go":                "Restore",
		"reconcile/internal/history/market.go":                 "before",
		"reconcile/internal/orphans/orphans.go":                "doubt tooEarly",
		"reconcile/internal/place/candidates.go":               "ToLeave",
		"reconcile/plan/census.go":                             "passed",
		"reconcile/plan/deadline.go":                           "drainFromNow pastNotice tightest",
		"reconcile/plan/finish.go":                             "watchDrain",
		"server/internal/acknowledgements/acknowledgements.go": "end",
		"server/internal/garbage/garbage.go":                   "read",
		"server/internal/registrar/holders.go":                 "addOperators dependsOn",
	},
	"too early or too late costs a call or a repeated step, and ends nothing": {
		"reconcile/intent.go":                     "recordAsk",
		"reconcile/internal/avoid/book.go":        "Check",
		"reconcile/internal/place/pools.go":       "remember",
		"reconcile/ondemand.go":                   "checkRequest",
		"reconcile/preserve.go":                   "endPreserve",
		"reconcile/standby.go":                    "ClaimStandby",
		"reconcile/watch.go":                      "listOnce",
		"server/internal/agents/session_files.go": "expired",
		"server/internal/groups/resolver.go":      "lookUp",
		"server/internal/keys/keys.go":            "Certificate",
	},
	"only shown, measured or selected by a question": {
		"reconcile/attention.go":                     "trouble",
		"reconcile/avoid.go":                         "avoidanceChanged",
		"reconcile/cloud.go":                         "recordPrices",
		"reconcile/holds.go":                         "publishHolds",
		"reconcile/park.go":                          "fellAsleep",
		"reconcile/roster.go":                        "forget",
		"server/internal/agents/metadata.go":         "MetadataProblems",
		"server/internal/agents/provider_notices.go": "NoticeProblems set",
		"server/internal/metrics/grpc.go":            "Unary",
		"server/internal/metrics/journal.go":         "remember since warned",
		"server/internal/metrics/store.go":           "note",
		"server/internal/operators/actions.go":       "ListActions matches",
		"server/internal/operators/ledger.go":        "GetInterruptionRates complete endedLife from journalFilter learn matches",
		"server/page.go":                             "addPools dayOf",
	},
	"the end of a certificate, as TLS has it": {
		"server/internal/ports/expiry.go": "Check On",
	},
}

// TestInstantsAreComparedByTheTable: a comparison of instants in another function goes through
// shard.reached or Census.due, or is listed with its reason.
func TestInstantsAreComparedByTheTable(t *testing.T) {
	listed := map[string]bool{}
	for _, files := range comparedInstants {
		for file, functions := range files {
			for _, name := range strings.Fields(functions) {
				require.False(t, listed[file+" "+name], "%s of %s is listed twice", name, file)
				listed[file+" "+name] = true
			}
		}
	}
	for _, dir := range []string{"reconcile", "reconcile/plan", "reconcile/internal/*", "server", "server/internal/*"} {
		files, err := filepath.Glob(dir + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files, dir)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, d := range parsed.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || !comparesInstants(f) {
					continue
				}
				name := filepath.ToSlash(file) + " " + f.Name.Name
				require.True(t, listed[name], "%s compares instants: use shard.reached or Census.due for one on record, or say above why not", name)
				delete(listed, name)
			}
		}
	}
	require.Empty(t, listed, "listed, and compares no instants")
}

// comparesInstants reports whether a function calls Before, After or Sub of a time, or measures
// from or to the present.
func comparesInstants(f *ast.FuncDecl) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		of, _ := method.X.(*ast.Ident)
		switch inTime := of != nil && of.Name == "time"; method.Sel.Name {
		case "Since", "Until":
			found = found || inTime
		case "Before", "After", "Sub":
			found = found || !inTime
		}
		return true
	})
	return found
}
