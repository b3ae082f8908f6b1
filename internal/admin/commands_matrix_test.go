package admin_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/keyring"
)

// A trait is what a command is. What it demands of the command line:
type trait int

const (
	looks    trait = iota // it changes nothing
	changes               // --dry-run
	destroys              // --dry-run and, for what is destroyed, --yes or an answer
)

// commands lists every command, and how to run it on the world of
// these tests such that it would change or destroy something. Capitals stand
// for what differs from run to run.
var commands = map[string]struct {
	trait trait
	args  string // what follows the command; for changes and destroys
	form  string // why it has no -o table|json|yaml; empty: it has
	free  string // why it destroys without a question; empty: it asks
}{
	"cluster init":          {changes, "--storage URL --cluster prod", "", ""},
	"cluster keys":          {looks, "", "", ""},
	"cluster nonce":         {changes, "--storage URL --cluster prod", "the nonce is its output, and -o the file it goes to", ""},
	"cluster rotate":        {destroys, "identity --step finish", "", ""},
	"cluster status":        {looks, "", "", ""},
	"completion bash":       {looks, "", "a script is no data", ""},
	"completion fish":       {looks, "", "a script is no data", ""},
	"completion powershell": {looks, "", "a script is no data", ""},
	"completion zsh":        {looks, "", "a script is no data", ""},
	"attention ack":         {changes, "clock shard --for 2h", "", ""},
	"attention list":        {looks, "", "", ""},
	"attention unack":       {changes, "clock shard", "", ""},
	"audit":                 {looks, "", "", ""},
	"backup":                {looks, "", "", ""},
	"config confirm":        {destroys, "0123456789", "", ""},
	"config put":            {changes, "CONFIG --storage URL", "", ""},
	"config refresh":        {changes, "", "", ""},
	"config show":           {looks, "", "", ""},
	"config status":         {looks, "", "", ""},
	"config validate":       {looks, "", "", ""},
	"debug":                 {looks, "", "", ""},
	"drain ack":             {changes, "DRAINING --generation 1", "", ""},
	"drain watch":           {looks, "", "", ""},
	"events":                {looks, "", "", ""},
	"freeze group":          {changes, "web", "", ""},
	"freeze shard":          {changes, "", "", ""},
	"group create":          {changes, "api --template web --size 1", "", ""},
	"group delete":          {destroys, "web", "", ""},
	"cost":                  {looks, "", "", ""},
	"group get":             {looks, "", "", ""},
	"group list":            {looks, "", "", ""},
	"group pause":           {changes, "web", "", ""},
	"group resume":          {changes, "web", "", ""},
	"group rollback":        {destroys, "web", "", ""},
	"group rollout":         {looks, "", "", ""},
	"group scale":           {destroys, "web 1", "", ""},
	"group update":          {destroys, "web --size 1", "", ""},
	"instance console":      {looks, "", "", ""},
	"instance create":       {changes, "web", "", ""},
	"instance delete":       {destroys, "WEB", "", ""},
	"instance drain":        {destroys, "WEB", "", ""},
	"instance get":          {looks, "", "", ""},
	"instance list":         {looks, "", "", ""},
	"instance preserve":     {destroys, "WEB", "", ""},
	"interrupt":             {destroys, "WEB", "", ""},
	"interruption list":     {looks, "", "", ""},
	"interruption rates":    {looks, "", "", ""},
	"interruption show":     {looks, "", "", ""},
	"login":                 {destroys, "--nonce ADMIN --ca CA --registration REG", "", "an identity of another shard is refused without --yes: choosing another directory is the better answer"},
	"operator list":         {looks, "", "", ""},
	"operator register":     {destroys, "--nonce OPERATOR --ca CA --registration REG --identity DIR", "", "as login"},
	"operator revoke":       {destroys, "operator-1 --tenant blue", "", ""},
	"orphan adopt":          {destroys, "ORPHAN", "", ""},
	"orphan delete":         {destroys, "ORPHAN", "", ""},
	"orphan list":           {looks, "", "", ""},
	"plan":                  {looks, "", "", ""},
	"pool avoid":            {destroys, "zone=a --for 2h --drain", "", ""},
	"pool list":             {looks, "", "", ""},
	"pool release":          {changes, "zone=a", "", ""},
	"record repair":         {destroys, "k --remove", "", ""},
	"record show":           {looks, "", "", ""},
	"restore":               {destroys, "--in-place --storage COPY", "", ""},
	"secret delete":         {destroys, "db --storage SEALED", "", ""},
	"secret list":           {looks, "", "", ""},
	"secret put":            {destroys, "db --storage SEALED", "", ""},
	"status":                {looks, "", "", ""},
	"thaw group":            {changes, "web", "", ""},
	"thaw shard":            {changes, "", "", ""},
	"top":                   {looks, "", "it is a view; group list and instance list are its data", ""},
	"warm-pool estimate":    {looks, "", "", ""},
	"version":               {looks, "", "", ""},
}

// promised are the commands that the specification names.
const promised = `cluster nonce; cluster init; cluster status; operator register; operator revoke;
	group list; group get; group create; group update; group scale; group delete; group pause; group resume; group rollout; group rollback;
	instance list; instance get; instance create; instance delete; instance drain; instance preserve; plan; interrupt;
	config status; config refresh; config validate; events; interruption list; interruption show; interruption rates; orphan list; orphan adopt; orphan delete;
	record show; record repair; freeze shard; freeze group; thaw shard; thaw group; pool avoid; pool release; pool list; top; completion bash`

// leaves returns every command that does something, by its path.
func leaves(cmd *cobra.Command, prefix string) map[string]*cobra.Command {
	out := map[string]*cobra.Command{}
	for _, sub := range cmd.Commands() {
		path := strings.TrimSpace(prefix + " " + sub.Name())
		if below := leaves(sub, path); len(below) > 0 {
			maps.Copy(out, below)
			continue
		}
		out[path] = sub
	}
	return out
}

func TestEveryCommandIsKnown(t *testing.T) {
	t.Parallel()
	all := leaves(admin.Command(), "")
	require.Equal(t, slices.Sorted(maps.Keys(commands)), slices.Sorted(maps.Keys(all)), "say in commands what a new command is")
	for _, name := range strings.Split(promised, ";") {
		require.Contains(t, all, strings.TrimSpace(name))
	}
	require.NotNil(t, all["events"].Flags().Lookup("follow"))
	nonce := all["cluster nonce"].Flags()
	for _, name := range []string{"storage-bucket", "key-provider", "key-source", "tenant", "expiry", "output"} {
		require.NotNil(t, nonce.Lookup(name), name)
	}
}

func TestEveryCommandHasItsFlags(t *testing.T) {
	t.Parallel()
	for path, cmd := range leaves(admin.Command(), "") {
		t.Run(path, func(t *testing.T) {
			c, f := commands[path], cmd.Flags()
			require.Equal(t, c.trait >= changes, f.Lookup("dry-run") != nil, "--dry-run belongs to what changes things")
			require.Equal(t, c.trait == destroys, f.Lookup("yes") != nil, "--yes belongs to what destroys")
			out := f.Lookup("output")
			form := out != nil && out.Shorthand == "o"
			require.Equal(t, c.form == "", form, "-o belongs to what prints")
			if form {
				require.Contains(t, out.Usage, "table, json, yaml")
			}
			require.NotEmpty(t, cmd.Short)
			require.NotNil(t, cmd.Args, "what is too much must be refused")
		})
	}
}

// Every command has a heading in the reference.
func TestEveryCommandIsDocumented(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../docs/nstance-admin.md")
	require.NoError(t, err)
	var headings []string
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "### ") {
			headings = append(headings, strings.NewReplacer("bash|", "bash, completion ", "zsh|", "zsh, completion ", "fish|", "fish, completion ").Replace(line))
		}
	}
	for path := range commands {
		require.Contains(t, strings.Join(headings, ""), path, "docs/nstance-admin.md does not describe %s", path)
	}
}

// A stage is where a command is run: a world, and storage of two kinds.
type stage struct {
	*world
	empty, sealed *depot
	copied        *depot // holds a cluster
	words         *strings.Replacer
	before        []map[string]time.Time // what the storages and the identity held
}

func newStage(t *testing.T) *stage {
	w := newWorld(t).populate()
	w.groups[1].Kind = "web"
	w.instances[string(webB)].Drain.Executor = string(nstance.ExecutorOperator)
	s := &stage{world: w, empty: newDepot(t), sealed: newDepot(t), copied: newDepot(t)}
	s.copied.server(s.copied.box())
	s.sealed.key, s.sealed.env = s.empty.key, s.empty.env
	require.Zero(t, s.sealed.secret("old", "put", "db").code)
	w.set(func() { w.phases = []string{"retired", "current"} })
	file := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	operator := w.nonce(func(c *keyring.Claims) { c.Kind = nstance.RoleOperator })
	s.words = strings.NewReplacer("URL", s.empty.url(), "SEALED", s.sealed.url(), "COPY", s.copied.url(), "WEB", string(webA), "DRAINING", string(webB), "ORPHAN", string(webNew), "REG", w.registration,
		"ADMIN", file("admin", w.nonce(nil)), "OPERATOR", file("operator", operator), "CONFIG", file("config", `{"cluster": {"id": "prod"}, "shard": {"id": "a", "provider": {"kind": "sim"}}}`), "CA", w.caFile(), "DIR", filepath.Join(t.TempDir(), "new"))
	s.before = s.files()
	return s
}

func (s *stage) files() []map[string]time.Time {
	return []map[string]time.Time{s.empty.files(), s.sealed.files(), s.copied.files(), files(s.t, s.dir)}
}

func (s *stage) try(path string, more ...string) result {
	args := strings.Fields(path)
	for _, word := range strings.Fields(commands[path].args) {
		args = append(args, s.words.Replace(word))
	}
	env := map[string]string{"NSTANCE_ADMIN_DIR": s.dir, "NSTANCE_SECRET_KEY": s.empty.key.Encode()}
	return run(s.t, strings.NewReader("new"), env, append(args, more...)...)
}

// changes returns the changes that were requested or made.
func (s *stage) changes() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.requests {
		r := m.ProtoReflect()
		dry := r.Descriptor().Fields().ByName("dry_run")
		if dry == nil && reads(r.Descriptor().Name()) || dry != nil && r.Get(dry).Bool() {
			continue
		}
		out = append(out, string(r.Descriptor().Name()))
	}
	for i, now := range s.files() {
		if !maps.Equal(s.before[i], now) {
			out = append(out, "files")
		}
	}
	return out
}

func reads(message protoreflect.Name) bool {
	return strings.HasPrefix(string(message), "Get") || strings.HasPrefix(string(message), "List")
}

func TestDryRunsChangeNothing(t *testing.T) {
	t.Parallel()
	for path, c := range commands {
		if c.trait == looks {
			continue
		}
		t.Run(path, func(t *testing.T) {
			s := newStage(t)
			r := s.try(path, "--dry-run")
			require.Zero(t, r.code, r.errors)
			if c.form == "" {
				r := s.try(path, "--dry-run", "-o", "json")
				require.Zero(t, r.code, r.errors)
				require.True(t, strings.HasPrefix(r.out, "{") || strings.HasPrefix(r.out, "["), r.out)
			}
			require.Empty(t, s.changes())
			if c.trait == changes { // else TestDestructiveCommandsAsk does it
				r := s.try(path)
				require.Zero(t, r.code, r.errors)
				require.NotEmpty(t, s.changes(), "without --dry-run it does, or this test sees nothing")
			}
		})
	}
}

func TestDestructiveCommandsAsk(t *testing.T) {
	t.Parallel()
	for path, c := range commands {
		if c.trait != destroys || c.free != "" {
			continue
		}
		t.Run(path, func(t *testing.T) {
			s := newStage(t)
			r := s.try(path)
			require.Equal(t, 2, r.code, r.errors)
			require.Contains(t, r.errors, "this needs a confirmation, and standard input is not a terminal (repeat it with --yes)")
			require.Empty(t, s.changes())
			r = s.try(path, "--yes")
			require.Zero(t, r.code, r.errors)
			require.NotEmpty(t, s.changes())
		})
	}
}
