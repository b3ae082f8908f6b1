package sim

import (
	"context"
	"fmt"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
)

// bootstrap renders its server's name into user data, as servers with different
// addresses do: no other server renders the same bytes. User data on demand is the same
// everywhere, since the checks require that each accepted order is executed, and one
// that cannot be repeated fails.
type bootstrap struct{ p *process }

func (b bootstrap) Render(_ context.Context, req reconcile.RenderRequest) (reconcile.Rendered, error) {
	out := reconcile.Rendered{UserData: []byte(req.Definition.UserData.Content), Args: req.Definition.Args}
	if !req.OnDemand {
		server, _, _ := strings.Cut(b.p.name, "/") // unchanged by a restart
		out.UserData = fmt.Appendf(out.UserData, "\nfrom %s", server)
	}
	return out, nil
}

// rendered returns the definition part of a machine's user data.
func rendered(spec nstance.MachineSpec) string {
	text, _, _ := strings.Cut(string(spec.UserData), "\n")
	return text
}
