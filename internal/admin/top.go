package admin

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

func (p *program) topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Watch groups, members, drains and holds",
		Long: `Watch groups, their members, drains and holds, in a view that is drawn again and
again. Keys: up and down choose a group, p shows the shard's problems, q ends.

Where standard output is no terminal it is printed once.`,
		Args: arguments(),
	}
	r := p.remote(cmd)
	var tenant string
	var interval time.Duration
	cmd.Flags().StringVar(&tenant, "tenant", "", "only this tenant's groups")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between two looks")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < 100*time.Millisecond {
			return nstance.FieldError("--interval", "use 100ms or more", "is %s", interval)
		}
		return r.with(cmd.Context(), func(c *client) error {
			v := &view{p: p, c: c, tenant: nstance.TenantID(tenant), interval: interval, limit: r.timeout}
			return v.show(cmd.Context())
		})
	}
	return cmd
}

// A scene is a shard at one moment.
type scene struct {
	at        time.Time
	status    ShardStatus
	groups    []Group
	instances []Instance
}

// A view shows a scene after the other. It is a model of bubbletea's: only its
// loop touches it.
type view struct {
	p        *program
	c        *client
	ctx      context.Context
	tenant   nstance.TenantID
	interval time.Duration
	limit    time.Duration // for one look

	frame
	looking bool
}

// seen is the outcome of one look.
type seen struct {
	scene scene
	err   error
}

// again says that it is time for the next look.
type again struct{}

// show draws until somebody ends it, or once where nobody could.
func (v *view) show(ctx context.Context) error {
	v.ctx = ctx
	out, ok := v.p.stdout.(*os.File)
	if !ok || !terminal(out) {
		s, err := v.look()
		if err == nil {
			v.scene = s
			_, err = v.p.stdout.Write([]byte(v.text(v.p.now())))
		}
		return err
	}
	_, err := tea.NewProgram(v, tea.WithContext(ctx), tea.WithInput(v.p.stdin), tea.WithOutput(out), tea.WithAltScreen()).Run()
	if errors.Is(err, tea.ErrInterrupted) || errors.Is(err, tea.ErrProgramKilled) { // a signal, which is how it ends too
		return nil
	}
	return err
}

func terminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// look asks the server for everything.
func (v *view) look() (scene, error) {
	ctx, cancel := context.WithTimeout(v.ctx, v.limit)
	defer cancel()
	status, err := v.c.GetShardStatus(ctx, &apiv1.GetShardStatusRequest{})
	if err != nil {
		return scene{}, err
	}
	s := scene{at: v.p.now(), status: statusOf(status, v.c.addr)}
	if s.groups, err = v.c.groups(ctx, v.tenant); err != nil {
		return s, err
	}
	s.instances, err = v.c.instances(ctx, v.tenant, "")
	slices.SortStableFunc(s.instances, urgency)
	return s, err
}

// Init implements tea.Model.
func (v *view) Init() tea.Cmd { return v.begin() }

// begin looks, beside the loop.
func (v *view) begin() tea.Cmd {
	if v.looking {
		return nil
	}
	v.looking = true
	return func() tea.Msg {
		s, err := v.look()
		return seen{s, err}
	}
}

// Update implements tea.Model.
func (v *view) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		v.width, v.height = msg.Width, msg.Height
	case seen:
		v.looking = false
		v.saw(msg)
		return v, tea.Tick(v.interval, func(time.Time) tea.Msg { return again{} })
	case again:
		return v, v.begin()
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
