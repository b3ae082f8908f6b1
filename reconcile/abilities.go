package reconcile

import "github.com/nstance-go/nstance/provider"

// Abilities returns what the provider can do beside its own methods, within the
// bounds that Options.Provider sets.
func (r *Reconciler) Abilities() provider.Abilities { return r.provider.Abilities() }
