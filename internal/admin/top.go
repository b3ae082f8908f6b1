package admin

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wave"
	"github.com/nstance-go/nstance/internal/wire"
)

func topCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Watch waves of interruptions, groups, pools, members and holds",
		Long: `Watch waves of interruptions, groups, their members and holds, in a view that is
refreshed; what was interrupted is read every 10s. Keys: up and down choose a
group; p shows what needs attention, o pools (type, zone and market), i the
interruptions that run, by deadline; the same key shows members again; q ends.

Where standard output is no terminal it is printed once.`,
		Args: arguments(),
	}
	r := newRemote(cmd, env)
	var tenant string
	var interval time.Duration
	cmd.Flags().StringVar(&tenant, "tenant", "", "only this tenant's groups")
	cmd.Flags().Var(duration.NewFlag(&interval, 2*time.Second), "interval", "time between two refreshes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < 100*time.Millisecond {
			return nstance.FieldError("--interval", "use 100ms or more", "is %s", interval)
		}
		v := &view{cmd: cmd, link: link{r: r}, tenant: nstance.TenantID(tenant), interval: interval}
		defer v.link.disconnect()
		if err := v.link.connect(cmd.Context()); err != nil {
			return err
		}
		return v.show(cmd.Context())
	}
	return cmd
}

// A snapshot is a shard at one moment.
type snapshot struct {
	at        time.Time
	server    string // the address that answered
	status    *apiv1.GetShardStatusResponse
	groups    []*apiv1.Group
	instances []*apiv1.Instance
	waves     []*wave.Wave // of the last hour, as of the last time that they were read
}

// Interruptions are read less often than the rest: the server lists its ledger for them.
const (
	wavesInterval = 10 * time.Second
	wavesPeriod   = time.Hour
	wavesLimit    = 5000 // interruptions
)

// A view shows snapshots. It is a bubbletea model: only its loop uses the frame.
type view struct {
	cmd      *cobra.Command
	link     link // used only by the polling goroutine
	tenant   nstance.TenantID
	interval time.Duration

	lastWaves   []*wave.Wave // used only by the polling goroutine
	lastWavesAt time.Time    // likewise: when they were read; zero: not yet

	frame
}

// refreshed is the result of one fetch.
type refreshed struct {
	snapshot snapshot
	err      error
}

// show draws until it is ended, or once if standard output is no terminal.
func (v *view) show(ctx context.Context) error {
	out := v.cmd.OutOrStdout()
	if !isTerminal(out) {
		s, err := v.fetch(ctx)
		if err == nil {
			v.snapshot = s
			err = write(out, []byte(v.text(time.Now())))
		}
		return err
	}
	v.link.mute() // the view shows errors
	screen := tea.NewProgram(v, tea.WithContext(ctx), tea.WithInput(v.cmd.InOrStdin()), tea.WithOutput(out), tea.WithAltScreen())
	polling, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { v.watch(polling, func(s refreshed) { screen.Send(s) }) })
	_, err := screen.Run()
	stop()
	wg.Wait()
	if errors.Is(err, tea.ErrInterrupted) || errors.Is(err, tea.ErrProgramKilled) { // a signal, which is how it ends too
		return nil
	}
	return err
}

// watch polls until ctx ends. After a failure it looks for the leader again.
func (v *view) watch(ctx context.Context, report func(refreshed)) {
	for ctx.Err() == nil {
		s, err := v.fetch(ctx)
		report(refreshed{s, err})
		wait := v.interval
		if err != nil {
			if again, ok := v.link.connectionLost(err); ok {
				wait = again
			}
		}
		sleep.For(ctx, wait)
	}
}

// fetch reads a snapshot from the server.
func (v *view) fetch(ctx context.Context) (snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, v.link.r.timeout)
	defer cancel()
	if err := v.link.connect(ctx); err != nil {
		return snapshot{}, err
	}
	c := v.link.client
	status, err := c.GetShardStatus(ctx, &apiv1.GetShardStatusRequest{})
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{at: time.Now(), server: c.addr, status: status}
	if s.groups, err = c.groups(ctx, v.tenant); err != nil {
		return s, err
	}
	if s.instances, err = c.instances(ctx, v.tenant, ""); err != nil {
		return s, err
	}
	slices.SortStableFunc(s.instances, compareUrgency)
	if s.waves, err = v.readWaves(ctx, c, s.at); err != nil {
		return s, err
	}
	v.link.recordSuccess()
	return s, nil
}

// readWaves returns the waves of the last hour; those that it read before, for a while.
func (v *view) readWaves(ctx context.Context, c *client, now time.Time) ([]*wave.Wave, error) {
	if !v.lastWavesAt.IsZero() && now.Sub(v.lastWavesAt) < wavesInterval {
		return v.lastWaves, nil
	}
	req := &apiv1.ListInterruptionsRequest{Since: wire.Time(now.Add(-wavesPeriod)), Limit: 1000}
	list, err := firstPages(wavesLimit, func(page string) (*apiv1.ListInterruptionsResponse, error) {
		req.Page = page
		return c.ListInterruptions(ctx, req)
	}, (*apiv1.ListInterruptionsResponse).GetInterruptions)
	if err != nil {
		return nil, err
	}
	v.lastWaves, v.lastWavesAt = wave.Of(ofTenant(list, v.tenant)), now
	return v.lastWaves, nil
}

// Init implements tea.Model.
func (v *view) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (v *view) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		v.width, v.height = msg.Width, msg.Height
	case refreshed:
		v.handleRefresh(msg)
	case tea.KeyMsg:
		return v, v.key(msg.String())
	}
	return v, nil
}

// handleRefresh shows a new snapshot, or keeps the last one after an error.
func (v *view) handleRefresh(s refreshed) {
	v.failed = s.err
	if s.err == nil {
		v.snapshot = s.snapshot
	}
	v.move(0)
}

func (v *view) key(name string) tea.Cmd {
	switch name {
	case "q", "esc", "ctrl+c":
		return tea.Quit
	case "up", "k":
		v.move(-1)
	case "down", "j":
		v.move(1)
	case "p":
		v.toggle(showProblems)
	case "o":
		v.toggle(showPools)
	case "i":
		v.toggle(showInterruptions)
	}
	return nil
}

// View implements tea.Model.
func (v *view) View() string { return v.text(time.Now()) }
