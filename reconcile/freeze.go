package reconcile

// goesOnFrozen is the table of what a freeze permits: what leaves goes on leaving, what is
// told to agents and written down goes on, and nothing else is asked of the provider. Load
// balancers follow the same rule (see membership), and machines without a record stay. The
// address of the leader is no machine's: it moves as ever.
func (k stepKind) goesOnFrozen() bool {
	switch k {
	case stepDrain, stepCancel, stepWriteNotices: // nothing is asked of the provider
		return true
	case stepDelete: // of a member that leaves: requests are refused, and no plan begins one
		return true
	case stepNone, stepCreate, stepPark, stepWake:
	}
	return false
}

// frozenOut reports whether a freeze keeps g from a step.
func (s *shard) frozenOut(g *group, step stepKind) bool {
	return s.freezeOf(g) != nil && !step.goesOnFrozen()
}

// permit is asked before every call that changes a machine at the provider: the term must
// stand, and no freeze may keep m from the step. With errAgain the step waits for the thaw.
func (r *Reconciler) permit(m *member, step stepKind) error {
	if err := r.opts.Check(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozenOut(m.group, step) {
		return errAgain
	}
	return nil
}
