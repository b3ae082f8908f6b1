package dev

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/qemu"
	"github.com/nstance-go/nstance/storage"
)

// The scenarios.
const (
	Interrupt = "interrupt"
	Mass      = "mass"
	Crash     = "crash"
	Rollout   = "rollout"
	Failover  = "failover"
	Kill      = "kill"
	Bridge    = "bridge"
	Demo      = "demo"
)

// Scenarios are the values that Options.Scenario may have besides "".
func Scenarios() []string {
	return []string{Interrupt, Mass, Crash, Rollout, Failover, Kill, Bridge, Demo}
}

const (
	defaultInstances = 3
	defaultCount     = 50
	defaultKills     = 20
	defaultBridges   = 1
	maxInstances     = 500 // processes on one machine
	defaultTTL       = 6 * time.Second
	defaultHTTP      = "127.0.0.1:8990"
)

// Options adjust Run. Nil and zero fields mean the defaults.
type Options struct {
	// Scenario to play; empty: none, Run serves until its context ends.
	Scenario string

	Instances int // size of the group; 3, of virtual machines 1, in scenario failover 2, in scenario demo 6
	Count     int // its size in scenario mass; 50, of virtual machines 4. How often scenario kill kills; 20. Members of each group that scenario bridge loses at a time; 1

	// Rounds is how often scenario bridge loses members; 1.
	Rounds int

	// Park is how the pool of scenario bridge is parked: stopped (the default) or
	// hibernated.
	Park nstance.ParkMode

	// Seed decides what scenario kill does, and when: the same seed, the same
	// choices. Zero: a random one, which the summary names.
	Seed uint64

	// Storage is the URL of a store to keep the shard's truth in, such as
	// s3://bucket: in a folder of its own there, removed in the end, private
	// keys sealed. Empty: a directory in Data.
	Storage string

	// Open opens Storage. Nil: storage.Open, which knows directories only.
	Open func(ctx context.Context, rawURL string) (storage.Store, error)

	// Data is the directory to keep everything in, made if need be. Empty: a
	// temporary one, removed in the end.
	Data string

	// Temp is where a temporary directory is made. Empty: os.TempDir.
	Temp string

	// HTTP is where the status page listens; 127.0.0.1:8990. If the port is
	// taken, one of the hundred after it.
	HTTP string

	// Protocol of the machines' metadata services: aws (the default) or gcp.
	Protocol string

	// Cloud is the cloud in whose test server the machines are. Nil: provider
	// local.
	Cloud *Cloud

	// QEMU has virtual machines, with the kernel and the initramfs that it names.
	// Nil: child processes. For all scenarios but kill, bridge and demo.
	QEMU *qemu.Options

	// JSON has every event written to Out as one JSON object a line, and
	// everything for people to Err. Without it, all of that goes to Out.
	JSON bool

	Out, Err io.Writer // nil: discarded

	// Machine is the command that a machine runs: a program that calls
	// Machine. Default: this executable with the argument "machine".
	Machine []string

	// DrainHook is the command that empties a machine: a program that calls
	// DrainDemo, or another. Default: this executable with the argument
	// "drain-demo".
	DrainHook []string

	// Server is the command that serves the shard in scenarios failover and
	// kill, as nstance-server run does. Default: this executable with the argument
	// "run".
	Server []string

	// ElectionTTL is how long a leader's term lasts without renewal in
	// scenarios failover and kill: 1s to 60s; 6s, as everywhere, and in kill 1s.
	ElectionTTL time.Duration

	Log *slog.Logger // of the server and the cloud; nil: discarded

	patience time.Duration            // for one stage, to which the machines' number adds; 20s, in scenario demo 1m
	limits   map[string]time.Duration // of stages with one of their own
	pause    time.Duration            // after each scene of scenario demo; 4s
}

// complete returns a copy of o with the defaults filled in, or what is wrong.
func (o *Options) complete() (*Options, error) {
	c := Options{}
	if o != nil {
		c = *o
	}
	if c.QEMU != nil {
		fill(&c.Instances, map[bool]int{true: guestFailover, false: 1}[c.Scenario == Failover])
		if c.Scenario == Mass {
			fill(&c.Count, guestCount)
		}
		fill(&c.patience, guestPatience)
	}
	if c.Scenario == Demo {
		fill(&c.Instances, demoInstances)
		fill(&c.patience, demoPatience)
	}
	fill(&c.pause, demoPause)
	fill(&c.Instances, defaultInstances)
	fill(&c.Count, defaultCounts(c.Scenario))
	fill(&c.Rounds, 1)
	fill(&c.Park, nstance.ParkStopped)
	fill(&c.Seed, rand.Uint64()>>11) // what a JSON number holds
	fill(&c.HTTP, defaultHTTP)
	fill(&c.Protocol, "aws")
	fill[io.Writer](&c.Out, io.Discard)
	fill[io.Writer](&c.Err, io.Discard)
	fill(&c.patience, 20*time.Second)
	fill(&c.ElectionTTL, map[bool]time.Duration{true: records.MinLeaseTTL, false: defaultTTL}[c.Scenario == Kill])
	fill(&c.Log, slog.New(slog.DiscardHandler))
	if err := c.commands(); err != nil {
		return nil, err
	}
	return &c, c.check()
}

func fill[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func defaultCounts(scenario string) int {
	switch scenario {
	case Kill:
		return defaultKills
	case Bridge:
		return defaultBridges
	}
	return defaultCount
}

func (o *Options) commands() error {
	if len(o.Machine) > 0 && len(o.DrainHook) > 0 && len(o.Server) > 0 {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return nstance.Errorf(nstance.Internal, "where is this program: %w", err)
	}
	if len(o.Machine) == 0 {
		o.Machine = []string{self, "machine"}
	}
	if len(o.DrainHook) == 0 {
		o.DrainHook = []string{self, "drain-demo"}
		switch o.Scenario {
		case Failover:
			o.DrainHook = append(o.DrainHook, "--work", o.slowDrain().String())
		case Demo:
			o.DrainHook = append(o.DrainHook, "--work", demoWork.String())
		}
	}
	if len(o.Server) == 0 {
		o.Server = []string{self, "run"}
	}
	return nil
}

func (o *Options) check() error {
	if o.Scenario != "" && !slices.Contains(Scenarios(), o.Scenario) {
		return nstance.FieldError("scenario", "use "+strings.Join(Scenarios(), ", "), "%.64q is not a scenario of this version", o.Scenario)
	}
	if err := o.checkCloud(); err != nil {
		return err
	}
	if err := o.checkQEMU(); err != nil {
		return err
	}
	if o.Instances < 1 || o.Instances > maxInstances {
		return nstance.FieldError("instances", "use 1 to 500", "%d machines are not possible here", o.Instances)
	}
	if o.Count < 1 || o.Count > maxInstances {
		return nstance.FieldError("count", "use 1 to 500", "%d are not possible here", o.Count)
	}
	if err := o.checkBridge(); err != nil {
		return err
	}
	if o.ElectionTTL < records.MinLeaseTTL || o.ElectionTTL > records.MaxLeaseTTL {
		return nstance.FieldError("election-ttl", "use 1s to 60s", "%s is out of range", o.ElectionTTL)
	}
	host, _, err := net.SplitHostPort(o.HTTP)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nstance.FieldError("http", "use 127.0.0.1:8990, or another port", "%.64q is not an address of the loopback interface", o.HTTP)
	}
	return nil
}

// checkBridge refuses what scenarios bridge and demo cannot do.
func (o *Options) checkBridge() error {
	switch {
	case o.Scenario == Demo && (o.Cloud != nil || o.QEMU != nil):
		return nstance.FieldError("scenario", "leave out the provider", "demo needs provider local, which can be sold out")
	case o.Scenario != Bridge:
		return nil
	case o.Cloud != nil || o.QEMU != nil:
		return nstance.FieldError("scenario", "leave out the provider", "bridge needs provider local, which pretends how long machines boot and wake")
	case o.Count > o.Instances:
		return nstance.FieldError("count", "use up to --instances", "%d members of %d cannot be lost", o.Count, o.Instances)
	case o.Rounds < 1:
		return nstance.FieldError("rounds", "use 1 or more", "%d is too few", o.Rounds)
	case o.Park != nstance.ParkStopped && o.Park != nstance.ParkHibernated:
		return nstance.FieldError("park", "use stopped or hibernated", "%.64q is no mode of this scenario", o.Park)
	}
	return nil
}

// checkCloud refuses scenarios in which the cloud would have to take machines back
// in a way that it does not.
func (o *Options) checkCloud() error {
	switch {
	case o.Cloud == nil || o.Cloud.Kind.Spot || slices.Contains([]string{"", Crash, Rollout}, o.Scenario):
		return nil
	case o.Cloud.Maintain == nil:
		return nstance.FieldError("scenario", "use crash or rollout", "provider %s takes no machines back, which is part of %s", o.Cloud.Kind.Name, o.Scenario)
	case o.Scenario == Kill:
		return nstance.FieldError("scenario", "use failover", "provider %s takes whole nodes back, not single machines: at random instants none would be left", o.Cloud.Kind.Name)
	}
	return nil
}

// slowDrain is how long a machine takes to be emptied in scenario failover:
// longer than there is no leader.
func (o *Options) slowDrain() time.Duration { return o.ElectionTTL + 3*time.Second }

// drainTimeout is ample for the drain hook.
func (o *Options) drainTimeout() time.Duration {
	const ample = 30 * time.Second
	if o.Scenario == Failover {
		return ample + o.slowDrain()
	}
	return ample
}

// paired reports whether the scenario is about two servers.
func (o *Options) paired() bool { return o.Scenario == Failover || o.Scenario == Kill }

// size of the group that the options ask for.
func (o *Options) size() int {
	if o.Scenario == Mass {
		return o.Count
	}
	return o.Instances
}

// machines is how many machines there are before anything happens.
func (o *Options) machines() int {
	if o.Scenario == Bridge {
		return 2*o.size() + o.Count
	}
	return o.size()
}
