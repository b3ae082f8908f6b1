package servercmd

import (
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/logqueue"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/provider/qemu"
)

func (p *program) devCommand() *cobra.Command {
	o := dev.Options{Out: p.stdout, Err: p.stderr, Open: p.parts.Storage}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole shard on this machine, to try or to test",
		Long: `Run a whole shard on this machine: the server, a local cloud whose machines are
child processes, and the real agent on each of them. It needs no set-up, listens on
loopback only, and removes everything at the end.

A scenario runs one case and exits with 0 only if all expected steps happened:

  interrupt  a spot member is reclaimed: replaced, drained, deleted
  mass       all --count members are reclaimed at the same time
  crash      a member's process is killed: replaced without drain
  rollout    the template changes: replaced one by one, replacement first
  failover   the leader of two servers is killed during a drain and creates: the
             other one takes over, and no machine is lost or created twice
  kill       --count times a server or a machine is killed at a random instant
             while the group changes: at the end it reaches its size
  bridge     --count members of a group with a warm pool and of one without are
             reclaimed at the same moment: how soon each has its capacity back,
             and the pool is parked again
  demo       a show of two minutes: reclaim, wave, rollout and shortage, each with a
             line of explanation, to watch on the status page

With --json, standard output has one JSON object per line for each event, and at
the end a summary with the milliseconds of each stage.`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.Scenario, "scenario", "", strings.Join(dev.Scenarios(), ", ")+" (default: none, run until Ctrl-C)")
	f.IntVar(&o.Instances, "instances", 3, "members of the group; in scenario demo 6")
	f.IntVar(&o.Count, "count", 0, "members of the group in scenario mass (default 50, of virtual machines 4); kills in scenario kill (default 20); members of each group that scenario bridge loses (default 1)")
	f.StringVar((*string)(&o.Park), "park", string(nstance.ParkStopped), "how the pool of scenario bridge is parked: stopped, or hibernated")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of scenario kill (default: random)")
	f.Var(duration.NewFlag(&o.ElectionTTL, 0), "election-ttl", "how long a leader's term lasts without renewal, in scenarios failover (default 6s) and kill (default 1s)")
	stores := "file:///directory"
	if p.parts.Storage != nil {
		stores = "s3://bucket, gs://bucket, azblob://container or " + stores
	}
	f.StringVar(&o.Storage, "storage", "", "URL of the storage: "+stores+"; in its own folder, removed at the end (default: a directory in --data)")
	f.StringVar(&o.Data, "data", "", "directory for all files (default: a temporary one)")
	f.StringVar(&o.HTTP, "http", "127.0.0.1:8990", "where the status page listens; the next free port, if that is taken")
	f.StringVar(&o.Protocol, "metadata", "aws", "the machines' metadata services: aws, gcp or azure")
	var cloud string
	places := "where the machines are: local, or qemu for virtual machines, in all scenarios but kill, bridge and demo"
	if clouds := slices.Sorted(maps.Keys(p.parts.Clouds)); len(clouds) > 0 {
		places += "; or the test server of a cloud, through its real provider: " + strings.Join(clouds, ", ")
	}
	f.StringVar(&cloud, "provider", "local", places)
	var guest qemu.Options
	f.StringVar(&guest.Kernel, "kernel", ".bin/qemu/vmlinuz", "kernel of virtual machines; make qemu-guest builds it")
	f.StringVar(&guest.Initrd, "initrd", ".bin/qemu/initrd", "initramfs of virtual machines, with the agent; make qemu-guest builds it")
	f.BoolVar(&o.JSON, "json", false, "print events as JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := checkDev(f, &o); err != nil {
			return err
		}
		if cloud != virtual && (f.Changed("kernel") || f.Changed("initrd")) {
			return nstance.FieldError("--kernel", "add --provider qemu", "belongs to virtual machines")
		}
		if !f.Changed("instances") && (cloud == virtual || o.Scenario == dev.Demo) {
			o.Instances = 0 // the default of these
		}
		if cloud == virtual {
			o.QEMU = &guest
		} else if o.Cloud, err = p.devCloud(cloud); err != nil {
			return err
		}
		if o.Cloud != nil && f.Changed("metadata") {
			return nstance.FieldError("--metadata", "leave it out", "belongs to provider local: %s has its own metadata service", cloud)
		}
		log, lines, err := p.logger(slog.LevelWarn)
		if err != nil {
			return err
		}
		defer lines.Close()
		defer logqueue.Libraries(log)()
		o.Log = log
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP) // the terminal is gone: tidy up
		defer stop()
		return dev.Run(ctx, &o)
	}
	return cmd
}

// virtual is the name of provider qemu.
const virtual = "qemu"

// devCloud returns the cloud of that name, nil for provider local. Its credentials
// are this program's environment from now on, for servers here and in processes
// of their own.
func (p *program) devCloud(name string) (*dev.Cloud, error) {
	if name == "" || name == "local" {
		return nil, nil
	}
	names := append(slices.Sorted(maps.Keys(p.parts.Clouds)), "local", virtual)
	if err := nearest.Among("--provider", name, names); err != nil {
		return nil, err
	}
	c := p.parts.Clouds[name]()
	for key, value := range c.Env {
		if err := os.Setenv(key, value); err != nil {
			return nil, nstance.Errorf(nstance.Internal, "%w", err)
		}
	}
	return c, nil
}

// checkDev refuses flags that the scenario has no use for, and numbers that the
// options would take for the default.
func checkDev(f *pflag.FlagSet, o *dev.Options) error {
	for flag, n := range map[string]int{"instances": o.Instances, "count": o.Count} {
		if f.Changed(flag) && n < 1 {
			return nstance.FieldError("--"+flag, "use 1 or more", "%d is too few", n)
		}
	}
	for _, flag := range []struct {
		name, remedy string
		scenarios    []string
	}{
		{"count", "use --instances", []string{dev.Mass, dev.Kill, dev.Bridge}},
		{"park", "leave it out", []string{dev.Bridge}},
		{"seed", "leave it out", []string{dev.Kill}},
		{"election-ttl", "leave it out", []string{dev.Failover, dev.Kill}},
	} {
		if f.Changed(flag.name) && !slices.Contains(flag.scenarios, o.Scenario) {
			return nstance.FieldError("--"+flag.name, flag.remedy, "belongs to scenario %s", strings.Join(flag.scenarios, " or "))
		}
	}
	if f.Changed("instances") && o.Scenario == dev.Mass {
		return nstance.FieldError("--instances", "use --count", "does not belong to scenario mass")
	}
	return nil
}

func (p *program) machineCommand() *cobra.Command {
	return &cobra.Command{
		Use: "machine", Short: "Be a machine of the local cloud", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return dev.Machine(cmd.Context()) },
	}
}

func (p *program) drainDemoCommand() *cobra.Command {
	var work time.Duration
	cmd := &cobra.Command{
		Use: "drain-demo", Short: "Empty a machine of the local cloud", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return dev.DrainDemo(cmd.Context(), work, p.stdout)
		},
	}
	cmd.Flags().Var(duration.NewFlag(&work, dev.DemoWork), "work", "how long that takes")
	return cmd
}
