package repository_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/repository"
)

const module = repository.Repository

// belowRooms is what a room of the server may reach: no other room, and not the
// server, which gives it the functions that it needs.
var belowRooms = []string{"api/v1", "confighash", "drain", "health", "journal", "provider", "reconcile", "reconcile/...", "registration", "spot", "storage", "storage/...",
	"server/internal/ports", "internal/..."}

// smallest are packages that every other one of the module may import; of these the root
// imports clip and rules.
var smallest = []string{"internal/clip", "internal/eventtype", "internal/filelimit", "internal/generation", "internal/groupspec", "internal/notice", "internal/regular", "internal/rules", "internal/sleep", "internal/validate"}

// floors says which packages of this module a package may reach, directly or not, beside
// the root. A package that is not listed may reach anything. Each ban has its reason.
var floors = []repository.Floor{
	{".", []string{"internal/clip", "internal/rules"}, []string{"github.com/", "google.golang.org/", "golang.org/x/"}, "the language is standard library only, with the rules that it shares with the rest of this module"},
	{"./internal/clip", nil, []string{"github.com/", "google.golang.org/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/eventtype", nil, []string{"google.golang.org/", "github.com/stretchr/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/filelimit", nil, []string{"google.golang.org/", "github.com/stretchr/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/groupspec", nil, []string{"google.golang.org/", "github.com/stretchr/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/notice", nil, []string{"google.golang.org/", "github.com/stretchr/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/rules", nil, []string{"github.com/", "google.golang.org/", "golang.org/x/"}, "what the root imports depends on nothing"},
	{"./internal/validate", nil, []string{"github.com/", "google.golang.org/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/sleep", nil, []string{"github.com/", "google.golang.org/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/conformance", nil, []string{"google.golang.org/", "github.com/stretchr/"}, "what suites share knows no seam"},
	{"./internal/templates", nil, []string{"github.com/", "google.golang.org/"}, "reading templates is standard library only"},
	{"./confighash", []string{"internal/templates"}, []string{"google.golang.org/"}, "a hash depends on nothing but its input"},
	{"./spot", nil, []string{"google.golang.org/"}, "detection is plain HTTP; it links into small agents"},
	{"./health", []string{"internal/command"}, []string{"google.golang.org/"}, "verdicts know no wire and no storage"},
	{"./drain", []string{"internal/feed"}, []string{"google.golang.org/"}, "coordination knows no provider and no storage"},
	{"./drain/hook", []string{"drain", "internal/command"}, []string{"google.golang.org/"}, "the hook links into small agents"},
	{"./internal/keyring", []string{"internal/pki"}, []string{"google.golang.org/"}, "keys know no transport and no storage"},
	{"./registration", []string{"internal/buckets", "internal/keyring", "internal/pki"}, []string{"google.golang.org/"}, "registration knows no transport"},
	{"./internal/layout", nil, []string{"google.golang.org/"}, "names of objects are standard library only"},
	{"./storage", nil, []string{"google.golang.org/"}, "the port links no cloud and no SQLite"},
	{"./internal/records", []string{"internal/layout", "storage"}, []string{"google.golang.org/"}, "records know no driver of a cloud and no planning"},
	{"./internal/webhook", []string{"internal/render", "internal/templates"}, []string{"google.golang.org/"}, "webhooks know events, and no server"},
	{"./internal/ledger", []string{"internal/layout", "internal/records", "storage"}, []string{"google.golang.org/"}, "the ledger knows records and storage, and no server"},
	{"./journal", nil, []string{"google.golang.org/"}, "the port of journals links no SQLite"},
	{"./storage/lease", []string{"internal/layout", "internal/records", "storage"}, nil, "the lease can be embedded on its own"},
	{"./internal/manager", []string{"storage/secret"}, nil, "what secret managers share knows none of them"},
	{"./provider", []string{"internal/duration", "internal/nearest"}, []string{"google.golang.org/"}, "what providers share knows no cloud"},
	{"./provider/simcloud", []string{"provider", "internal/duration", "internal/nearest"}, []string{"google.golang.org/"}, "the simulated cloud is for tests of other modules too"},
	{"./internal/machines", []string{"provider", "internal/duration", "internal/imds", "internal/nearest"}, []string{"google.golang.org/"}, "what providers of this host share knows none of them"},
	{"./provider/local", []string{"provider", "internal/duration", "internal/imds", "internal/machines", "internal/nearest"}, nil, "local machines need no cloud"},
	{"./internal/nocloud", nil, []string{"google.golang.org/"}, "the seed image needs no cloud"},
	{"./provider/qemu", []string{"provider", "provider/local", "internal/duration", "internal/imds", "internal/machines", "internal/nearest", "internal/nocloud", "internal/qmp"}, []string{"google.golang.org/"}, "virtual machines on this host need no cloud"},
	{"./provider/testcloud", nil, []string{"google.golang.org/"}, "what test clouds share knows none of them"},
	{"./reconcile/plan", []string{"confighash", "internal/templates"}, []string{"google.golang.org/"}, "a decision depends on nothing but its input"},
	{"./reconcile/internal/admission", []string{"reconcile/internal/avoid", "reconcile/internal/place"}, []string{"google.golang.org/"}, "the order of creates depends on nothing but demand and places"},
	{"./reconcile/internal/place", []string{"reconcile/internal/avoid"}, []string{"google.golang.org/"}, "where a create may go depends on no group and no member"},
	{"./reconcile/internal/avoid", nil, []string{"google.golang.org/"}, "what is avoided depends on no group and no member"},
	{"./reconcile/internal/fields", []string{"confighash", "internal/templates"}, []string{"google.golang.org/"}, "what differs depends on two groups alone"},
	{"./reconcile/internal/history", nil, []string{"google.golang.org/"}, "what a group remembers depends on no member and no store"},
	{"./reconcile/internal/notices", nil, []string{"google.golang.org/"}, "what was announced depends on no record and no plan"},
	{"./reconcile/internal/pace", nil, []string{"google.golang.org/"}, "an estimate depends on durations alone"},
	{"./reconcile/internal/saver", []string{"internal/sleep"}, []string{"google.golang.org/"}, "when a document is saved depends on nothing that is in it"},
	{"./reconcile/internal/silence", nil, []string{"google.golang.org/"}, "a breaker depends on counts and times alone"},
	{"./reconcile/internal/work", nil, []string{"google.golang.org/"}, "what is done next depends on no group and no member"},
	{"./reconcile/internal/questions", []string{"internal/sleep"}, []string{"google.golang.org/"}, "what a provider is asked about depends on no member"},
	{"./reconcile/internal/definitions", []string{"internal/sleep"}, []string{"google.golang.org/"}, "which definitions are read depends on no member"},
	{"./reconcile/internal/orphans", nil, []string{"google.golang.org/"}, "what becomes of an orphan depends on listings and one look at the shard"},
	{"./reconcile/internal/cloudfacts", []string{"provider", "internal/..."}, []string{"google.golang.org/"}, "what is known of a cloud depends on its provider alone"},
	{"./reconcile/internal/balance", nil, []string{"google.golang.org/"}, "load balancers need members and a provider"},
	{"./reconcile/internal/wallclock", []string{"storage"}, []string{"google.golang.org/"}, "a clock is judged by what storage says of the time"},
	{"./internal/bounded", []string{"storage"}, []string{"google.golang.org/"}, "limits of time know neither the loop nor the server"},
	{"./internal/loop", []string{"internal/duration", "internal/layout", "internal/nearest", "internal/records", "provider", "storage"}, []string{"google.golang.org/"}, "what the server asks of the loop knows neither of them"},
	{"./reconcile", []string{"internal/bounded", "internal/layout", "internal/loop", "confighash", "drain", "health", "provider", "reconcile/...", "internal/records", "storage", "storage/lease", "internal/command", "internal/duration", "internal/feed", "internal/nearest", "internal/templates"}, []string{"google.golang.org/"}, "a program that embeds the loop links no gRPC, cloud SDK, Kubernetes or SQLite"},
	{"./internal/machinefiles", []string{"internal/command", "internal/pki"}, []string{"google.golang.org/"}, "keeping files knows no wire"},
	{"./agent", []string{"internal/machinefiles", "api/v1", "spot", "health", "drain", "drain/hook", "internal/command", "internal/duration", "internal/pki", "internal/session", "internal/version", "internal/wire"}, []string{"github.com/go-jose"}, "the agent runs on every machine and stays small"},
	{"./internal/files", []string{"internal/keyring", "internal/pki", "internal/render", "internal/templates"}, []string{"google.golang.org/"}, "making files knows no wire, no session and no storage"},
	{"./cmd/nstance-agent", []string{"agent", "internal/machinefiles", "api/v1", "spot", "health", "drain", "drain/hook", "internal/command", "internal/duration", "internal/logqueue", "internal/pki", "internal/session", "internal/version", "internal/wire"}, []string{"github.com/go-jose"}, "the agent's binary stays small"},
	{"./server/internal/ports", []string{"confighash", "provider", "internal/files", "internal/config", "internal/duration", "internal/fair", "internal/keyring", "internal/nearest", "internal/pki", "internal/render", "internal/templates", "internal/webhook"}, nil, "connections know no call, no term and no room"},
	{"./server", []string{"agent", "api/v1", "confighash", "drain", "health", "journal", "provider", "reconcile", "registration", "spot", "storage", "agent/...", "internal/...", "reconcile/...", "server/...", "storage/..."}, nil, "a program that embeds the server links no cloud and no SQLite, but those it names"},
	{"./server/internal/acknowledgements", belowRooms, nil, "a room knows no other room and not the server"},
	{"./server/internal/address", belowRooms, nil, "a room knows no other room and not the server"},
	{"./server/internal/configuration", belowRooms, nil, "a room knows no other room and not the server"},
	{"./server/internal/garbage", belowRooms, nil, "a room knows no other room and not the server"},
	{"./server/internal/agents", belowRooms, nil, "a room knows no other room and not the server"},
	{"./server/internal/groups", belowRooms, nil, "a room knows no other room and not the server"},
	{"./server/internal/keys", belowRooms, nil, "a room knows no other room and not the server"},
	{"./server/internal/operators", belowRooms, nil, "a room knows no other room and not the server"},
	{"./server/internal/peers", belowRooms, nil, "a room knows no other room and not the server"},
	{"./server/internal/registrar", belowRooms, nil, "a room knows no other room and not the server"},
	{"./internal/operatorapi", []string{"internal/session"}, nil, "a client of the operators' API links no cloud and no Kubernetes"},
}

func TestFloors(t *testing.T) { repository.RequireFloors(t, floors, smallest) }

// technologies are linked by modules of their own: clouds, Kubernetes, SQLite, and the test
// doubles of clouds. They would add hundreds of megabytes to every program that embeds a
// part of this module.
var technologies = []string{
	"github.com/aws/", "cloud.google.com/", "github.com/Azure/", "github.com/luthermonson/", "k8s.io/", "sigs.k8s.io/", "modernc.org/", "gocloud.dev",
	"google.golang.org/api", "github.com/johannesboyne/", module + "/",
}

// TestCoreLinksNoTechnology: this module requires none of them, for tests neither.
func TestCoreLinksNoTechnology(t *testing.T) {
	required := regexp.MustCompile(`(?m)^\s*(?:require )?([a-z][\w.-]*\.[\w./-]+) v\S+`)
	data, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	found := required.FindAllStringSubmatch(string(data), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		require.False(t, slices.ContainsFunc(technologies, func(prefix string) bool { return strings.HasPrefix(m[1], prefix) }), m[1])
	}
}

// TestProgramsAreImportedByPrograms: what programs are made of is imported by nothing that
// others import.
func TestProgramsAreImportedByPrograms(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.ImportPath}}: {{join .Imports \" \"}}", "./...").Output()
	require.NoError(t, err)
	programs := []string{"internal/admin", "internal/dev", "internal/servercmd"}
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(strings.TrimPrefix(line, module+"/"), ": ")
		if strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "bench/") || slices.Contains(programs, pkg) {
			continue
		}
		for _, program := range programs {
			require.NotContains(t, strings.Fields(imports), module+"/"+program, "%s imports it", pkg)
		}
	}
}

// TestSuitesStayOutOfPrograms keeps test suites out of what people ship.
func TestSuitesStayOutOfPrograms(t *testing.T) { repository.RequireNoTesting(t, "./cmd/...") }

// shortest are the longest that the shortest programs may become, in lines without
// imports, comments and blanks.
var shortest = map[string]int{
	"shortest/group/main.go": 45, "failover/main.go": 60, "shortest/provider/shelf.go": 80, "shortest/detector/main.go": 40,
	"shortest/drain/main.go": 25, "shortest/registration/main.go": 40, "shortest/plan/main.go": 60, "shortest/manager/main.go": 60, "shortest/nodes/main.go": 40,
	"shortest/nodecontroller/main.go": 40, "shortest/operator/main.go": 40,
}

// TestShortestPrograms: programs that embed one part stay short. They are compiled in
// a module of their own, as those of others are.
func TestShortestPrograms(t *testing.T) {
	imports := regexp.MustCompile(`(?s)import \(.*?\n\)`)
	for path, most := range shortest {
		lines := 0
		for line := range strings.Lines(imports.ReplaceAllString(read(t, "examples/"+path), "")) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") && !strings.HasPrefix(line, "package ") {
				lines++
			}
		}
		require.LessOrEqual(t, lines, most, path)
	}
	require.NotContains(t, read(t, "examples/go.mod"), "module "+module, "internal packages must be out of reach")
}
