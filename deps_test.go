package nstance_test

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/nstance-go/nstance"

// heavy are dependencies that must not reach a program that did not ask for
// them: they add tens of megabytes and minutes of compilation.
var heavy = []string{
	"github.com/aws/", "cloud.google.com/", "github.com/Azure/", "github.com/luthermonson/",
	"k8s.io/", "sigs.k8s.io/", "modernc.org/", "gocloud.dev",
}

// clouds are the clients of clouds, for compute, storage and secrets.
var clouds = []string{
	"github.com/aws/", "cloud.google.com/", "google.golang.org/api", "github.com/Azure/", "github.com/luthermonson/", "gocloud.dev", "k8s.io/", "sigs.k8s.io/",
}

// anyOwn permits every package of this module.
var anyOwn = []string{"agent", "api/v1", "confighash", "drain", "health", "journal", "provider", "reconcile", "registration", "server", "spot", "storage",
	"agent/...", "drain/...", "internal/...", "journal/...", "provider/...", "reconcile/...", "server/...", "spot/...", "storage/..."}

// belowRooms is what a room of the server may reach: no other room, and not the
// server, which gives it the functions that it needs.
var belowRooms = []string{"api/v1", "confighash", "drain", "health", "journal", "provider", "reconcile", "reconcile/...", "registration", "spot", "storage", "storage/...",
	"server/internal/ports", "internal/..."}

// smallest are packages that every other one of the module may import; of these the root
// imports clip and rules.
var smallest = []string{"internal/clip", "internal/eventtype", "internal/filelimit", "internal/groupspec", "internal/notice", "internal/rules", "internal/sleep", "internal/validate"}

// floors says which packages of this module a package may reach, directly or
// not, beside the root. Whatever is not listed may reach anything below its
// own floor. Each ban has its reason.
var floors = []struct {
	pkg    string
	may    []string // packages of this module; a trailing /... means all below
	ban    []string // import paths by prefix
	reason string
}{
	{".", []string{"internal/clip", "internal/rules"}, []string{"github.com/", "google.golang.org/", "golang.org/x/"}, "the language is standard library only, with the rules that it shares with the rest of this module"},
	{"./internal/clip", nil, []string{"github.com/", "google.golang.org/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/eventtype", nil, []string{"github.com/stretchr/", "google.golang.org/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/filelimit", nil, []string{"github.com/stretchr/", "google.golang.org/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/groupspec", nil, []string{"github.com/stretchr/", "google.golang.org/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/notice", nil, []string{"github.com/stretchr/", "google.golang.org/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/rules", nil, []string{"github.com/", "google.golang.org/", "golang.org/x/"}, "what the root imports depends on nothing"},
	{"./internal/validate", nil, []string{"github.com/", "google.golang.org/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/sleep", nil, []string{"github.com/", "google.golang.org/", "golang.org/x/"}, "what everything may import depends on nothing"},
	{"./internal/conformance", nil, append([]string{"google.golang.org/", "github.com/stretchr/"}, heavy...), "what suites share knows no seam"},
	{"./internal/templates", nil, []string{"github.com/", "google.golang.org/"}, "reading templates is standard library only"},
	{"./confighash", []string{"internal/templates"}, append([]string{"google.golang.org/"}, heavy...), "a hash depends on nothing but its input"},
	{"./spot", nil, append([]string{"google.golang.org/"}, heavy...), "detection is plain HTTP; it links into small agents"},
	{"./health", []string{"internal/command"}, append([]string{"google.golang.org/"}, heavy...), "verdicts know no wire and no storage"},
	{"./drain", []string{"internal/feed"}, append([]string{"google.golang.org/"}, heavy...), "coordination knows no provider and no storage"},
	{"./drain/hook", []string{"drain", "internal/command"}, append([]string{"google.golang.org/"}, heavy...), "the hook links into small agents"},
	{"./drain/kube", nil, append(slices.DeleteFunc(slices.Clone(heavy), func(p string) bool { return strings.HasSuffix(p, "k8s.io/") }), "google.golang.org/grpc", "k8s.io/kubectl", "k8s.io/apiextensions-apiserver", "sigs.k8s.io/controller-runtime", "sigs.k8s.io/cluster-api"), "drains of nodes can be embedded on their own, and need no more than Kubernetes' client"},
	{"./internal/keyring", []string{"internal/pki"}, append([]string{"google.golang.org/"}, heavy...), "keys know no transport and no storage"},
	{"./registration", []string{"internal/keyring", "internal/pki"}, append([]string{"google.golang.org/"}, heavy...), "registration knows no transport"},
	{"./internal/layout", nil, append([]string{"google.golang.org/"}, heavy...), "names of objects are standard library only"},
	{"./storage", nil, append([]string{"google.golang.org/"}, heavy...), "the port links no cloud and no SQLite"},
	{"./internal/records", []string{"internal/layout", "storage"}, append([]string{"google.golang.org/"}, heavy...), "records know no driver of a cloud and no planning"},
	{"./internal/webhook", []string{"internal/render", "internal/templates"}, append([]string{"google.golang.org/"}, heavy...), "webhooks know events, and no server"},
	{"./internal/ledger", []string{"internal/layout", "internal/records", "storage"}, append([]string{"google.golang.org/"}, heavy...), "the ledger knows records and storage, and no server"},
	{"./journal", nil, append([]string{"google.golang.org/"}, heavy...), "the port of journals links no SQLite"},
	{"./storage/lease", []string{"internal/layout", "internal/records", "storage"}, heavy, "the lease can be embedded on its own"},
	{"./storage/secret", nil, heavy, "sealing needs no cloud"},
	{"./internal/manager", []string{"storage/secret"}, heavy, "what secret managers share knows none of them"},
	{"./provider", []string{"internal/duration", "internal/nearest"}, append([]string{"google.golang.org/"}, heavy...), "what providers share knows no cloud"},
	{"./provider/simcloud", []string{"provider", "internal/duration", "internal/nearest"}, append([]string{"google.golang.org/"}, heavy...), "the simulated cloud is for tests of other modules too"},
	{"./provider/aws", []string{"provider", "internal/duration", "internal/nearest"}, otherClouds("github.com/aws/"), "a program that embeds a provider links only its cloud"},
	{"./internal/machines", []string{"provider", "internal/duration", "internal/imds", "internal/nearest"}, append([]string{"google.golang.org/"}, heavy...), "what providers of this host share knows none of them"},
	{"./provider/local", []string{"provider", "internal/duration", "internal/imds", "internal/machines", "internal/nearest"}, heavy, "local machines need no cloud"},
	{"./provider/azure", []string{"provider", "internal/duration", "internal/nearest"}, []string{"github.com/aws/", "cloud.google.com/", "github.com/luthermonson/", "k8s.io/", "sigs.k8s.io/", "modernc.org/", "gocloud.dev", "google.golang.org/"}, "a program with machines on Azure links no other cloud's SDK"},
	{"./internal/test/testcloud/arm", []string{"internal/test/testcloud"}, []string{"github.com/aws/", "cloud.google.com/", "github.com/luthermonson/", "k8s.io/", "sigs.k8s.io/", "modernc.org/", "gocloud.dev", "google.golang.org/", "github.com/stretchr/"}, "the test cloud knows no provider; programs link it"},
	{"./provider/proxmox", []string{"provider", "internal/duration", "internal/nearest", "internal/nocloud"}, slices.DeleteFunc(slices.Clone(heavy), func(p string) bool { return p == "github.com/luthermonson/" }), "a program with this provider links no other cloud"},
	{"./internal/nocloud", nil, append([]string{"google.golang.org/"}, heavy...), "the seed image needs no cloud"},
	{"./internal/test/testcloud/pve", []string{"internal/nocloud", "internal/test/testcloud"}, append([]string{"google.golang.org/", "github.com/stretchr/"}, heavy...), "single-machine mode links it"},
	{"./provider/qemu", []string{"provider", "provider/local", "internal/duration", "internal/imds", "internal/machines", "internal/nearest", "internal/nocloud", "internal/qmp"}, append([]string{"google.golang.org/"}, heavy...), "virtual machines on this host need no cloud"},
	{"./provider/gcp", []string{"provider", "internal/duration", "internal/nearest"}, append(otherClouds("cloud.google.com/"), "cloud.google.com/go/storage", "google.golang.org/api/compute/"), "a program that embeds a provider links only its cloud"},
	{"./internal/test/testcloud/gce", []string{"internal/test/testcloud"}, append([]string{"google.golang.org/"}, heavy...), "single-machine mode links test clouds, and no cloud's SDK"},
	{"./internal/test/testcloud", nil, append([]string{"google.golang.org/"}, heavy...), "what test clouds share knows none of them"},
	{"./internal/test/testcloud/ec2", []string{"internal/test/testcloud"}, append([]string{"github.com/aws/", "google.golang.org/", "testing"}, heavy...), "a test cloud knows neither the client nor the provider that is tested against it"},
	{"./internal/test/testcloud/ec2/modelcheck", nil, append([]string{"github.com/", "google.golang.org/"}, heavy...), "a check against AWS's model is independent of the code that it checks"},
	{"./reconcile/plan", []string{"confighash", "internal/templates"}, append([]string{"google.golang.org/"}, heavy...), "a decision depends on nothing but its input"},
	{"./reconcile/internal/admission", nil, append([]string{"google.golang.org/"}, heavy...), "the order of creates depends on nothing but demand and answers"},
	{"./reconcile/internal/orphans", nil, append([]string{"google.golang.org/"}, heavy...), "what becomes of an orphan depends on listings and one look at the shard"},
	{"./reconcile/internal/balance", nil, append([]string{"google.golang.org/"}, heavy...), "load balancers need members and a provider"},
	{"./reconcile/internal/wallclock", []string{"storage"}, append([]string{"google.golang.org/"}, heavy...), "a clock is judged by what storage says of the time"},
	{"./internal/loop", []string{"internal/duration", "internal/layout", "internal/nearest", "internal/records", "provider", "storage"}, append([]string{"google.golang.org/"}, heavy...), "what the server asks of the loop knows neither of them"},
	{"./reconcile", []string{"internal/layout", "internal/loop", "confighash", "drain", "health", "provider", "reconcile/internal/admission", "reconcile/internal/balance", "reconcile/internal/orphans", "reconcile/plan", "reconcile/internal/wallclock", "internal/records", "storage", "storage/lease", "internal/command", "internal/duration", "internal/feed", "internal/nearest", "internal/templates"}, append([]string{"google.golang.org/"}, heavy...), "a program that embeds the loop links no gRPC, cloud SDK, Kubernetes or SQLite"},
	{"./internal/machinefiles", []string{"internal/command", "internal/pki"}, append([]string{"google.golang.org/"}, heavy...), "keeping files knows no wire"},
	{"./agent", []string{"internal/machinefiles", "api/v1", "spot", "health", "drain", "drain/hook", "internal/command", "internal/duration", "internal/pki", "internal/session", "internal/wire"}, append([]string{"github.com/go-jose"}, heavy...), "the agent runs on every machine and stays small"},
	{"./internal/files", []string{"internal/keyring", "internal/pki", "internal/render", "internal/templates"}, append([]string{"google.golang.org/"}, heavy...), "making files knows no wire, no session and no storage"},
	{"./cmd/nstance-agent", []string{"agent", "internal/machinefiles", "api/v1", "spot", "health", "drain", "drain/hook", "internal/command", "internal/duration", "internal/pki", "internal/session", "internal/wire"}, append([]string{"github.com/go-jose"}, heavy...), "the agent's binary stays small"},
	{"./server/internal/ports", []string{"confighash", "provider", "internal/files", "internal/config", "internal/duration", "internal/keyring", "internal/nearest", "internal/pki", "internal/render", "internal/templates", "internal/webhook"}, clouds, "connections know no call, no term and no room"},
	{"./server", []string{"agent", "api/v1", "confighash", "drain", "health", "journal", "provider", "reconcile", "registration", "spot", "storage", "agent/...", "internal/...", "reconcile/...", "server/...", "storage/..."}, append([]string{"modernc.org/"}, clouds...), "a program that embeds the server links no cloud and no SQLite, but those it names"},
	{"./server/internal/address", belowRooms, clouds, "a room knows no other room and not the server"},
	{"./server/internal/configuration", belowRooms, clouds, "a room knows no other room and not the server"},
	{"./server/internal/garbage", belowRooms, clouds, "a room knows no other room and not the server"},
	{"./server/internal/agents", belowRooms, clouds, "a room knows no other room and not the server"},
	{"./server/internal/groups", belowRooms, clouds, "a room knows no other room and not the server"},
	{"./server/internal/keys", belowRooms, clouds, "a room knows no other room and not the server"},
	{"./server/internal/operators", belowRooms, clouds, "a room knows no other room and not the server"},
	{"./server/internal/peers", belowRooms, clouds, "a room knows no other room and not the server"},
	{"./server/internal/registrar", belowRooms, clouds, "a room knows no other room and not the server"},
	{"./internal/operatorapi", []string{"internal/session"}, heavy, "a client of the operators' API links no cloud and no Kubernetes"},
	{"./operator/api/v1beta1", nil, append([]string{"sigs.k8s.io/controller-runtime", "google.golang.org/grpc"}, withoutKubernetes(clouds)...), "who reads the resources links none of the controllers"},
	{"./operator/internal/shards", []string{"api/v1", "drain", "internal/feed", "internal/operatorapi", "internal/pki", "internal/session", "internal/wire"}, heavy, "the copy of a shard knows no Kubernetes"},
	{"./operator/internal/protection", []string{"operator/api/v1beta1"}, append([]string{"google.golang.org/grpc"}, withoutKubernetes(clouds)...), "what becomes of workloads is decided without calling anything"},
	{"./operator/webhooks", []string{"operator/api/v1beta1"}, append([]string{"google.golang.org/grpc"}, withoutKubernetes(clouds)...), "webhooks decide by what is written: they link no controller and know no shard"},
	{"./operator", []string{"api/v1", "drain", "drain/kube", "internal/feed", "internal/operatorapi", "internal/pki", "internal/session", "internal/wire", "operator/..."}, withoutKubernetes(clouds), "the operator knows shards by their API only: no provider, no storage"},
	{"./internal/dev", anyOwn, clouds, "single-machine mode builds quickly"},
	{"./internal/servercmd", anyOwn, clouds, "what a program is linked with is its own choice"},
	{"./internal/admin", anyOwn, clouds, "what a program is linked with is its own choice"},
	{"./cmd/nstance-operator", []string{"api/v1", "drain", "drain/kube", "internal/feed", "internal/operatorapi", "internal/operatorcmd", "internal/pki", "internal/session", "internal/version", "internal/wire", "operator", "operator/..."}, withoutKubernetes(clouds), "the operator's program links no cloud, no storage and no server"},
	{"./cmd/nstance-dev", anyOwn, clouds, "the first command of the README builds quickly"},
}

// otherClouds returns what a program that asked for one SDK must not link.
func otherClouds(own string) []string {
	return slices.DeleteFunc(slices.Clone(heavy), func(dep string) bool { return dep == own })
}

// withoutKubernetes returns bans for what is made for Kubernetes.
func withoutKubernetes(bans []string) []string {
	return slices.DeleteFunc(slices.Clone(bans), func(ban string) bool { return strings.Contains(ban, "k8s.io/") })
}

func TestFloors(t *testing.T) {
	for _, f := range floors {
		t.Run(f.pkg, func(t *testing.T) {
			for _, dep := range deps(t, f.pkg) {
				for _, banned := range f.ban {
					require.False(t, strings.HasPrefix(dep, banned) && !strings.HasPrefix(dep, module), "%s reaches %s: %s", f.pkg, dep, f.reason)
				}
				if own, ok := strings.CutPrefix(dep, module+"/"); ok && own != strings.TrimPrefix(f.pkg, "./") {
					require.True(t, permitted(own, f.may) || f.pkg != "." && permitted(own, smallest), "%s reaches %s, which is not below it: %s", f.pkg, own, f.reason)
				}
			}
		})
	}
}

// TestProgramsChooseClouds: a provider of a cloud, and what only programs are made of, is
// imported by programs and by nothing that others import.
func TestProgramsChooseClouds(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.ImportPath}}: {{join .Imports \" \"}}", "./...").Output()
	require.NoError(t, err)
	programs := []string{"internal/admin", "internal/dev", "internal/servercmd"}
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(strings.TrimPrefix(line, module+"/"), ": ")
		if strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "bench/") {
			continue
		}
		for _, cloud := range []string{"aws", "gcp", "azure", "proxmox"} {
			own := "provider/" + cloud
			if pkg != own && !strings.HasPrefix(pkg, own+"/") {
				require.NotContains(t, strings.Fields(imports), module+"/"+own, "%s imports it", pkg)
			}
		}
		for _, program := range programs {
			if !slices.Contains(programs, pkg) {
				require.NotContains(t, strings.Fields(imports), module+"/"+program, "%s imports it", pkg)
			}
		}
	}
}

// TestSuitesStayOutOfPrograms keeps test suites out of what people ship.
func TestSuitesStayOutOfPrograms(t *testing.T) {
	for _, dep := range deps(t, "./cmd/...") {
		require.NotContains(t, dep, "stretchr/testify")
		require.NotEqual(t, "testing", dep)
	}
}

func permitted(pkg string, may []string) bool {
	for _, m := range may {
		if below, ok := strings.CutSuffix(m, "/..."); ok && strings.HasPrefix(pkg, below+"/") || pkg == m {
			return true
		}
	}
	return false
}

func deps(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", pkg).Output()
	require.NoError(t, err)
	return strings.Fields(string(out))
}

// shortest are the longest that the shortest programs may become, in lines without
// imports, comments and blanks.
var shortest = map[string]int{
	"shortest/group/main.go": 25, "failover/main.go": 40, "shortest/provider/shelf.go": 80, "shortest/detector/main.go": 40,
	"shortest/drain/main.go": 25, "shortest/registration/main.go": 40, "shortest/plan/main.go": 60, "shortest/manager/main.go": 40, "shortest/nodes/main.go": 40,
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
