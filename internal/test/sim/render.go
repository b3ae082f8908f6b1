package sim

import (
	"context"
	"fmt"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage"
)

// A bootstrap renders its server's name into user data, as servers do whose
// addresses differ: no other server can make the same bytes. Only what is made
// on demand is the same everywhere, since each order is checked to be carried
// out, and one that cannot be made again fails.
type bootstrap struct{ p *process }

func (b bootstrap) Render(_ context.Context, rec *storage.Instance, def nstance.Definition) (reconcile.Rendered, error) {
	out := reconcile.Rendered{UserData: []byte(def.UserData.Content), Args: def.Args}
	if !rec.OnDemand {
		server, _, _ := strings.Cut(b.p.name, "/") // which keeps its address through a restart
		out.UserData = fmt.Appendf(out.UserData, "\nfrom %s", server)
	}
	return out, nil
}

// rendered is what a machine's user data says of its definition.
func rendered(spec nstance.MachineSpec) string {
	text, _, _ := strings.Cut(string(spec.UserData), "\n")
	return text
}
