package admin

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/sleep"
)

func (p *program) topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Watch groups, members, drains and holds",
		Long: `Watch groups, their members, drains and holds, in a view that is drawn again and
again. Keys: up and down choose a group, p shows what needs attention, q ends.

Where standard output is no terminal it is printed once.`,
		Args: arguments(),
	}
	r := p.remote(cmd)
	var tenant string
	var interval time.Duration
	cmd.Flags().StringVar(&tenant, "tenant", "", "only this tenant's groups")
	cmd.Flags().Var(duration.NewFlag(&interval, 2*time.Second), "interval", "time between two looks")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < 100*time.Millisecond {
			return nstance.FieldError("--interval", "use 100ms or more", "is %s", interval)
		}
		v := &view{p: p, link: link{r: r}, tenant: nstance.TenantID(tenant), interval: interval}
		defer v.link.hangUp()
		if err := v.link.connect(cmd.Context()); err != nil {
			return err
		}
		return v.show(cmd.Context())
	}
	return cmd
}

// A scene is a shard at one moment.
type scene struct {
	at        time.Time
	server    string // the address that answered
	status    *apiv1.GetShardStatusResponse
	groups    []*apiv1.Group
	instances []*apiv1.Instance
}

// A view shows a scene after the other. It is a model of bubbletea's: only its
// loop touches the frame.
type view struct {
	p        *program
	link     link // the looker's alone while it looks
	tenant   nstance.TenantID
	interval time.Duration

	frame
}

// seen is the outcome of one look.
type seen struct {
	scene scene
	err   error
}

// show draws until somebody ends it, or once where nobody could.
func (v *view) show(ctx context.Context) error {
	out, ok := v.p.stdout.(*os.File)
	if !ok || !terminal(out) {
		s, err := v.look(ctx)
		if err == nil {
			v.scene = s
			_, err = v.p.stdout.Write([]byte(v.text(v.p.now())))
		}
		return err
	}
	v.link.silence() // the view says it
	screen := tea.NewProgram(v, tea.WithContext(ctx), tea.WithInput(v.p.stdin), tea.WithOutput(out), tea.WithAltScreen())
	looking, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { v.watch(looking, func(s seen) { screen.Send(s) }) })
	_, err := screen.Run()
	stop()
	wg.Wait()
	if errors.Is(err, tea.ErrInterrupted) || errors.Is(err, tea.ErrProgramKilled) { // a signal, which is how it ends too
		return nil
	}
	return err
}

func terminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// watch looks again and again until ctx ends. After a failed look it seeks the
// server that leads, for as long as somebody watches.
func (v *view) watch(ctx context.Context, tell func(seen)) {
	for ctx.Err() == nil {
		s, err := v.look(ctx)
		tell(seen{s, err})
		wait := v.interval
		if err != nil {
			if again, ok := v.link.lost(err); ok {
				wait = again
			}
		}
		sleep.For(ctx, wait)
	}
}

// look asks the server for everything.
func (v *view) look(ctx context.Context) (scene, error) {
	ctx, cancel := context.WithTimeout(ctx, v.link.r.timeout)
	defer cancel()
	if err := v.link.connect(ctx); err != nil {
		return scene{}, err
	}
	c := v.link.client
	status, err := c.GetShardStatus(ctx, &apiv1.GetShardStatusRequest{})
	if err != nil {
		return scene{}, err
	}
	s := scene{at: v.p.now(), server: c.addr, status: status}
	if s.groups, err = c.groups(ctx, v.tenant); err != nil {
		return s, err
	}
	if s.instances, err = c.instances(ctx, v.tenant, ""); err != nil {
		return s, err
	}
	slices.SortStableFunc(s.instances, urgency)
	v.link.works()
	return s, nil
}

// Init implements tea.Model.
func (v *view) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (v *view) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		v.width, v.height = msg.Width, msg.Height
	case seen:
		v.saw(msg)
	case tea.KeyMsg:
		return v, v.key(msg.String())
	}
	return v, nil
}

// saw keeps the last scene when nothing newer could be seen.
func (v *view) saw(s seen) {
	v.failed = s.err
	if s.err == nil {
		v.scene = s.scene
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
		v.problems = !v.problems
	}
	return nil
}

// View implements tea.Model.
func (v *view) View() string { return v.text(v.p.now()) }
