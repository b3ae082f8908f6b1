package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
)

func recordCommand(env environment, open openStore) *cobra.Command {
	cmd := &cobra.Command{
		Use: "record", Short: "Records as they are stored, and repair of those that cannot be read",
		Long: `Records as they are stored, and repair of those that cannot be read. A record that
cannot be read holds its group: losses are replaced, nothing else is done.

With --storage the object is read and written in the storage itself, for objects
that prevent any server from leading. Without it the server is asked.`,
	}
	cmd.AddCommand(recordShowCommand(env, open), recordRepairCommand(env, open))
	return cmd
}

// A recordAccess shows objects and repairs them: the two calls of the API, which
// storage answers as well.
type recordAccess interface {
	show(ctx context.Context, name string) (*apiv1.GetRecordResponse, error)
	repair(ctx context.Context, req *apiv1.RepairRecordRequest) (*apiv1.RepairRecordResponse, error)
}

// withRecords runs fn with the server, or with the storage that the command line
// names: read-only unless fn writes.
func withRecords(cmd *cobra.Command, r *remote, d *storageAccess, writes bool, fn func(recordAccess) error) error {
	ctx := cmd.Context()
	if d.url == "" {
		return r.with(ctx, func(c *client) error { return fn(serverRecords{c}) })
	}
	store, err := d.openTo(ctx, writes)
	if err != nil {
		return err
	}
	return fn(storedRecords{store, stderrOf(cmd)})
}

// serverRecords asks the leader.
type serverRecords struct{ c *client }

func (k serverRecords) show(ctx context.Context, name string) (*apiv1.GetRecordResponse, error) {
	return k.c.GetRecord(ctx, &apiv1.GetRecordRequest{Key: name})
}

func (k serverRecords) repair(ctx context.Context, req *apiv1.RepairRecordRequest) (*apiv1.RepairRecordResponse, error) {
	return k.c.RepairRecord(ctx, req)
}

// storedRecords reads and writes the storage itself.
type storedRecords struct {
	store  storage.Store
	stderr *console // for messages about slow calls
}

func (k storedRecords) show(ctx context.Context, name string) (*apiv1.GetRecordResponse, error) {
	var obj storage.Object
	err := k.stderr.slow("reading "+name, func() (err error) {
		obj, err = k.store.Get(ctx, name)
		return err
	})
	if err != nil {
		return nil, err
	}
	r := &apiv1.GetRecordResponse{Key: name, Version: string(obj.Version), Data: obj.Data}
	if err := records.Readable(name, obj.Data); err != nil {
		r.Error = err.Error()
	}
	return r, nil
}

func (k storedRecords) repair(ctx context.Context, req *apiv1.RepairRecordRequest) (*apiv1.RepairRecordResponse, error) {
	resp := &apiv1.RepairRecordResponse{}
	err := k.stderr.slow("repairing "+req.GetKey(), func() error {
		if req.GetDryRun() {
			return records.Rehearse(ctx, k.store, req.GetKey(), storage.Version(req.GetVersion()), req.GetData())
		}
		v, err := records.Repair(ctx, k.store, req.GetKey(), storage.Version(req.GetVersion()), req.GetData(), 0)
		resp.Version = string(v)
		return err
	})
	return resp, err
}

func recordShowCommand(env environment, open openStore) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show (KEY | ID)", Short: "Show an object as it is stored",
		Long: `Show an object of the shard as it is stored: an instance's record by its ID, or
any object by its key, such as state/SHARD.json. With --storage only by its key.`,
		Args: arguments("KEY"),
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	var d storageAccess
	d.flags(cmd, open)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withRecords(cmd, r, &d, false, func(k recordAccess) error {
			rec, err := k.show(cmd.Context(), args[0])
			return out.result(document{rec}, err, func(t *table) { writeRecord(t, rec) })
		})
	}
	return cmd
}

func writeRecord(t *table, r *apiv1.GetRecordResponse) {
	t.row("Key:", r.GetKey())
	t.row("Version:", r.GetVersion())
	if r.GetError() != "" {
		t.row("Broken:", r.GetError())
	}
	for line := range strings.Lines(indented(r.GetData())) { // line by line: printable replaces line breaks by spaces
		t.lines = append(t.lines, strings.TrimRight(printable(line), " "))
	}
}

// indented returns JSON with indentation, and anything else unchanged: broken
// records are shown byte for byte.
func indented(data []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, data, "", "  ") != nil {
		return string(data)
	}
	return b.String()
}

func recordRepairCommand(env environment, open openStore) *cobra.Command {
	cmd := &cobra.Command{
		Use: "repair (KEY | ID) (--from FILE | --remove)", Short: "Replace or remove a record that cannot be read",
		Long: `Replace or remove a record that cannot be read. It refuses a record that can be read,
new content that cannot be read, and a record that has changed in the meantime.

A removed record leaves its machine, if there is one, without a record: see
nstance-admin orphan.`,
		Args: arguments("KEY"),
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	var d storageAccess
	var from string
	var remove, yes, dryRun bool
	d.flags(cmd, open)
	cmd.Flags().StringVar(&from, "from", "", "file with the new content, - for standard input")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove it instead")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if remove == (from != "") {
			return misused(cmd, errors.New("give either --from or --remove"))
		}
		data, err := recordContent(cmd, from)
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		return withRecords(cmd, r, &d, !dryRun, func(k recordAccess) error {
			rec, err := k.show(ctx, args[0])
			if err != nil {
				return err
			}
			req := &apiv1.RepairRecordRequest{Key: rec.GetKey(), Version: rec.GetVersion(), Data: data, Remove: remove, DryRun: true}
			resp, err := k.repair(ctx, req)
			if err != nil {
				return err
			}
			action := "replace"
			if remove {
				action = "remove"
			}
			if err := confirm(cmd, yes || dryRun, fmt.Sprintf("%s: %s the stored object", rec.GetKey(), action)); err != nil {
				return err
			}
			if !dryRun {
				req.DryRun = false
				resp, err = k.repair(ctx, req)
			}
			return out.result(document{resp}, err, func(t *table) {
				if dryRun {
					t.say("%s: %s would be accepted", rec.GetKey(), action)
					return
				}
				t.say("%s: %sd", rec.GetKey(), action)
			})
		})
	}
	return cmd
}

// maxContent bounds what is read of new content, in bytes.
const maxContent = 8 << 20

// recordContent reads the file that --from names; nil if it is not given.
func recordContent(cmd *cobra.Command, from string) ([]byte, error) {
	if from == "" {
		return nil, nil
	}
	data, err := readInput(cmd, "from", from, maxContent)
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, nstance.FieldError("--from", "to remove the record use --remove", "is empty")
	}
	return []byte(data), nil
}
