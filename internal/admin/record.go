package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/storage"
)

func (p *program) recordCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "record", Short: "Records as they are stored, and repair of those that cannot be read",
		Long: `Records as they are stored, and repair of those that cannot be read. A record that
cannot be read holds its group: losses are replaced, nothing else is done.

With --storage the object is read and written in the storage itself, for objects
that prevent any server from leading. Without it the server is asked.`,
	}
	cmd.AddCommand(p.recordShowCommand(), p.recordRepairCommand())
	return cmd
}

// A Record is what record show prints.
type Record struct {
	Key     string `json:"key"`
	Version string `json:"version"`
	Data    string `json:"data"`
	Error   string `json:"error,omitempty"` // why it cannot be read; absent: it can
}

// A RecordRepair is what record repair prints.
type RecordRepair struct {
	Key    string `json:"key"`
	Action string `json:"action"` // replace or remove
	DryRun bool   `json:"dry_run"`
}

// A recordAccess shows objects and repairs them.
type recordAccess interface {
	show(ctx context.Context, name string) (Record, error)
	repair(ctx context.Context, r Record, data []byte, dryRun bool) error
}

// withRecords runs fn with the server, or with the storage that the command line
// names: read-only unless fn writes.
func (p *program) withRecords(ctx context.Context, r *remote, d *storageAccess, writes bool, fn func(recordAccess) error) error {
	if d.url == "" {
		return r.with(ctx, func(c *client) error { return fn(serverRecords{c}) })
	}
	store, err := d.openTo(ctx, writes)
	if err != nil {
		return err
	}
	return fn(storedRecords{store, p.stderr})
}

// serverRecords asks the leader.
type serverRecords struct{ c *client }

func (k serverRecords) show(ctx context.Context, name string) (Record, error) {
	resp, err := k.c.GetRecord(ctx, &apiv1.GetRecordRequest{Key: name})
	if err != nil {
		return Record{}, err
	}
	return Record{Key: resp.GetKey(), Version: resp.GetVersion(), Data: string(resp.GetData()), Error: resp.GetError()}, nil
}

func (k serverRecords) repair(ctx context.Context, r Record, data []byte, dryRun bool) error {
	_, err := k.c.RepairRecord(ctx, &apiv1.RepairRecordRequest{Key: r.Key, Version: r.Version, Data: data, Remove: data == nil, DryRun: dryRun})
	return err
}

// storedRecords reads and writes the storage itself.
type storedRecords struct {
	store  storage.Store
	stderr *console // for messages about slow calls
}

func (k storedRecords) show(ctx context.Context, name string) (Record, error) {
	var obj storage.Object
	err := k.stderr.slow("reading "+name, func() (err error) {
		obj, err = k.store.Get(ctx, name)
		return err
	})
	if err != nil {
		return Record{}, err
	}
	r := Record{Key: name, Version: string(obj.Version), Data: string(obj.Data)}
	if err := storage.Readable(name, obj.Data); err != nil {
		r.Error = err.Error()
	}
	return r, nil
}

func (k storedRecords) repair(ctx context.Context, r Record, data []byte, dryRun bool) error {
	return k.stderr.slow("repairing "+r.Key, func() error {
		if dryRun {
			return storage.Rehearse(ctx, k.store, r.Key, storage.Version(r.Version), data)
		}
		_, err := storage.Repair(ctx, k.store, r.Key, storage.Version(r.Version), data, 0)
		return err
	})
}

func (p *program) recordShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show (KEY | ID)", Short: "Show an object as it is stored",
		Long: `Show an object of the shard as it is stored: an instance's record by its ID, or
any object by its key, such as state/SHARD.json. With --storage only by its key.`,
		Args: arguments("KEY"),
	}
	r, out := p.remote(cmd), p.output(cmd)
	var d storageAccess
	d.flags(p, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.withRecords(cmd.Context(), r, &d, false, func(k recordAccess) error {
			rec, err := k.show(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return out.print(rec, func(t *table) { t.record(rec) })
		})
	}
	return cmd
}

func (t *table) record(r Record) {
	t.row("Key:", r.Key)
	t.row("Version:", r.Version)
	if r.Error != "" {
		t.row("Broken:", r.Error)
	}
	for line := range strings.Lines(indented(r.Data)) { // line by line: printable replaces line breaks by spaces
		t.lines = append(t.lines, strings.TrimRight(printable(line), " "))
	}
}

// indented returns JSON with indentation, and anything else unchanged: broken
// records are shown byte for byte.
func indented(data string) string {
	var b bytes.Buffer
	if json.Indent(&b, []byte(data), "", "  ") != nil {
		return data
	}
	return b.String()
}

func (p *program) recordRepairCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "repair (KEY | ID) (--from FILE | --remove)", Short: "Replace or remove a record that cannot be read",
		Long: `Replace or remove a record that cannot be read. It refuses a record that can be read,
new content that cannot be read, and a record that has changed in the meantime.

A removed record leaves its machine, if there is one, without a record: see
nstance-admin orphan.`,
		Args: arguments("KEY"),
	}
	r, out := p.remote(cmd), p.output(cmd)
	var d storageAccess
	var from string
	var remove, yes, dryRun bool
	d.flags(p, cmd)
	cmd.Flags().StringVar(&from, "from", "", "file with the new content, - for standard input")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove it instead")
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if remove == (from != "") {
			return misused(cmd, errors.New("give either --from or --remove"))
		}
		data, err := p.content(from)
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		return p.withRecords(ctx, r, &d, !dryRun, func(k recordAccess) error {
			rec, err := k.show(ctx, args[0])
			if err == nil {
				err = k.repair(ctx, rec, data, true)
			}
			if err != nil {
				return err
			}
			s := RecordRepair{Key: rec.Key, Action: "replace", DryRun: dryRun}
			if remove {
				s.Action = "remove"
			}
			if err := p.confirm(ctx, yes || dryRun || from == "-", fmt.Sprintf("%s: %s the stored object", rec.Key, s.Action)); err != nil {
				return err
			}
			if !dryRun {
				err = k.repair(ctx, rec, data, false)
			}
			if err != nil {
				return err
			}
			return out.print(s, func(t *table) { t.repaired(s) })
		})
	}
	return cmd
}

// maxContent bounds what is read of new content, in bytes.
const maxContent = 8 << 20

// content reads the file that --from names; nil if it is not given.
func (p *program) content(from string) ([]byte, error) {
	in := p.stdin
	switch from {
	case "":
		return nil, nil
	case "-":
	default:
		f, err := os.Open(from)
		if err != nil {
			return nil, nstance.FieldError("--from", "name a file that can be read", "%v", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxContent))
	if err != nil {
		return nil, nstance.FieldError("--from", "name a file that can be read", "%v", err)
	}
	if len(data) == 0 {
		return nil, nstance.FieldError("--from", "to remove the record use --remove", "is empty")
	}
	return data, nil
}

func (t *table) repaired(s RecordRepair) {
	if s.DryRun {
		t.say("%s: %s would be accepted", s.Key, s.Action)
		return
	}
	t.say("%s: %sd", s.Key, s.Action)
}
