package admin

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/version"
)

// maxPage bounds what is read of one page of a server's HTTP port, in bytes.
const maxPage = 64 << 20

// Debugged is what debug has gathered.
type Debugged struct {
	File  string            `json:"file"`
	Files []string          `json:"files"` // in it
	Lacks map[string]string `json:"lacks"` // by file that is not in it, why
}

func debugCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "debug FILE", Short: "Gather what an incident needs into one file",
		Long: "Gather what an incident needs into FILE, a .tar.gz: what the leader says of groups, instances, interruptions,\n" +
			"pools, orphans, operators and keys, the newest 10000 events, the alarms and the newest calls that changed\n" +
			"something; what each server says of itself; and of each --http its metrics, health and the data of its status\n" +
			"page. What cannot be had is named, and all else is gathered.\n\n" +
			"Values of variables and arguments and the text of the configuration are left out: they may hold secrets.",
		Args: arguments("FILE"),
	}
	var pages []string
	cmd.Flags().StringSliceVar(&pages, "http", nil, "HTTP address of a server, port 8990 by default; may be repeated")
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(pages) > 0 {
			with, err := withPorts("http", pages, portHTTP)
			if err != nil {
				return err
			}
			pages = with
		}
		_, id, err := r.identity()
		if err != nil {
			return err
		}
		b := &bundle{remote: r, id: id, done: Debugged{File: args[0], Lacks: map[string]string{}}}
		if err := stderrOf(cmd).slow("gathering", func() error {
			return writeNew(args[0], func(w io.Writer) error { return b.write(cmd.Context(), w, pages) })
		}); err != nil {
			return err
		}
		return out.print(b.done, func(t *table) { writeDebugged(t, b.done) })
	}
	return cmd
}

func writeDebugged(t *table, done Debugged) {
	t.say("%s: %d files", done.File, len(done.Files))
	for _, name := range slices.Sorted(maps.Keys(done.Lacks)) {
		t.say("lacks %s: %s", name, done.Lacks[name])
	}
}

// A bundle is gathered for one incident.
type bundle struct {
	*remote
	id   Identity
	dir  string // that all its files are in
	at   time.Time
	tar  *tar.Writer
	done Debugged
}

// write fails where the bundle cannot be written. What cannot be had is noted.
func (b *bundle) write(ctx context.Context, w io.Writer, pages []string) error {
	packed := gzip.NewWriter(w)
	b.at, b.tar = time.Now(), tar.NewWriter(packed)
	b.dir = fmt.Sprintf("nstance-%s-%s-%s", b.id.Cluster, b.id.Shard, b.at.UTC().Format("20060102T150405Z"))
	servers := b.id.Servers
	if err := b.with(ctx, func(c *client) error {
		servers = append(servers, b.fromLeader(ctx, c)...)
		return nil
	}); err != nil {
		b.done.Lacks["leader"] = message(err)
	}
	slices.Sort(servers)
	for _, addr := range slices.Compact(servers) {
		answer, err := b.fromServer(ctx, addr)
		b.add("servers/"+fileName(addr)+".json", answer, err)
	}
	for _, addr := range pages {
		for _, page := range []string{"metrics", "healthz", "readyz", "status.json"} {
			text, err := b.page(ctx, "http://"+addr+"/"+page)
			b.add("http/"+fileName(addr)+"/"+page, text, err)
		}
	}
	about, err := json.MarshalIndent(map[string]any{"nstance_admin": version.Software, "at": b.at, "lacks": b.done.Lacks}, "", " ")
	b.add("about.json", about, err)
	if err := b.tar.Close(); err != nil { // of any write before, too
		return err
	}
	return packed.Close()
}

// add writes a file, or notes why there is none.
func (b *bundle) add(name string, content []byte, err error) {
	if err != nil {
		b.done.Lacks[name] = message(err)
		return
	}
	b.done.Files = append(b.done.Files, name)
	header := &tar.Header{Name: path.Join(b.dir, name), Mode: 0o600, Size: int64(len(content)), ModTime: b.at}
	if b.tar.WriteHeader(header) == nil { // Close fails as it did
		_, _ = b.tar.Write(content)
	}
}

// fromLeader adds what the leader knows, and returns the addresses of the servers that it
// knows.
func (b *bundle) fromLeader(ctx context.Context, c *client) []string {
	questions := b.questions(c)
	for _, name := range slices.Sorted(maps.Keys(questions)) {
		list, err := questions[name](ctx)
		var content []byte
		if err == nil {
			content, err = json.MarshalIndent(documents(list), "", " ")
		}
		b.add(name+".json", content, err)
	}
	servers := []string{c.addr}
	status, err := c.GetShardStatus(ctx, &apiv1.GetShardStatusRequest{})
	if err != nil {
		b.done.Lacks["standbys"] = message(err)
	}
	for _, s := range status.GetStandbys() {
		if s.GetAddress() != "" { // its version tells it
			servers = append(servers, s.GetAddress())
		}
	}
	return servers
}

// questions are asked of the leader, by the name of the file for the answer.
func (b *bundle) questions(c *client) map[string]func(context.Context) ([]proto.Message, error) {
	return map[string]func(context.Context) ([]proto.Message, error){
		"status":        one(c.GetShardStatus, &apiv1.GetShardStatusRequest{}),
		"configuration": one(c.GetConfigStatus, &apiv1.GetConfigStatusRequest{}),
		"keys":          one(c.ListKeys, &apiv1.ListKeysRequest{}),
		"avoided-pools": one(c.ListAvoidedPools, &apiv1.ListAvoidedPoolsRequest{}),
		"rates":         one(c.GetInterruptionRates, &apiv1.GetInterruptionRatesRequest{}),
		"interruptions": one(c.ListInterruptions, &apiv1.ListInterruptionsRequest{Limit: 1000}),
		"actions":       one(c.ListActions, &apiv1.ListActionsRequest{Limit: 1000}),
		"orphans":       all(c.orphans),
		"instances":     all(func(ctx context.Context) ([]*apiv1.Instance, error) { return c.instances(ctx, "", "") }),
		"groups": all(func(ctx context.Context) ([]*apiv1.Group, error) {
			groups, err := c.groups(ctx, "")
			for _, g := range groups {
				withoutValues(g)
			}
			return groups, err
		}),
		"events": all(func(ctx context.Context) ([]*apiv1.Event, error) {
			return c.events(ctx, eventQuery{limit: maxEvents}, b.at)
		}),
		"alarms": all(func(ctx context.Context) ([]*apiv1.Event, error) {
			return c.events(ctx, eventQuery{limit: maxEvents, types: []string{string(nstance.EventAlarm)}}, b.at)
		}),
		"operators": all(c.operators),
	}
}

// withoutValues removes what a tenant wrote and may be secret.
func withoutValues(g *apiv1.Group) {
	for name := range g.GetVars() {
		g.Vars[name] = ""
	}
	g.Args = ""
}

// one returns a question that has one answer.
func one[Q, A any, M interface {
	*A
	proto.Message
}](call func(context.Context, *Q, ...grpc.CallOption) (M, error), q *Q) func(context.Context) ([]proto.Message, error) {
	return func(ctx context.Context) ([]proto.Message, error) {
		answer, err := call(ctx, q)
		return []proto.Message{answer}, err
	}
}

// all returns a question that has a list of answers.
func all[M proto.Message](call func(context.Context) ([]M, error)) func(context.Context) ([]proto.Message, error) {
	return func(ctx context.Context) ([]proto.Message, error) {
		list, err := call(ctx)
		out := make([]proto.Message, len(list))
		for i, m := range list {
			out[i] = m
		}
		return out, err
	}
}

// fromServer returns what a server says of itself: of the shard where it leads, else who
// does.
func (b *bundle) fromServer(ctx context.Context, addr string) ([]byte, error) {
	c, err := b.open(addr, b.id)
	if err != nil {
		return nil, err
	}
	defer c.close()
	status, err := c.GetShardStatus(ctx, &apiv1.GetShardStatusRequest{})
	if e, ok := errors.AsType[*nstance.Error](err); ok && e.Code == nstance.Unavailable && e.Leader != "" {
		return json.MarshalIndent(map[string]any{"leads": false, "leader": e.Leader}, "", " ")
	}
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(map[string]any{"leads": true, "version": status.GetVersion(), "epoch": status.GetEpoch(), "problems": status.GetProblems()}, "", " ")
}

// page reads a page of a server's HTTP port.
func (b *bundle) page(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
	if err == nil && resp.StatusCode != http.StatusOK {
		return fmt.Appendf(nil, "%s\n%s", resp.Status, text), nil // such as a server that is not ready, and why
	}
	return text, err
}

// fileName returns an address as the name of a file.
func fileName(addr string) string {
	return strings.NewReplacer(":", "_", "[", "", "]", "", "/", "_").Replace(addr)
}

// message returns an error in one line.
func message(err error) string { return clip.Line(err.Error()) }
