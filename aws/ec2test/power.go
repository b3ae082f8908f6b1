package ec2test

type machinesInput struct {
	dryRun
	InstanceIds []string `q:"InstanceId,required"`
}

func (in *machinesInput) resources() int { return len(in.InstanceIds) }

type terminateInput struct {
	machinesInput
	Force          bool
	SkipOsShutdown bool
}

type stopInput struct {
	machinesInput
	Hibernate      bool
	Force          bool
	SkipOsShutdown bool
}

type startInput struct {
	machinesInput
	AdditionalInfo string
}

type stateChange struct {
	ID       string    `xml:"instanceId"`
	Current  stateItem `xml:"currentState"`
	Previous stateItem `xml:"previousState"`
}

type stateChanges struct {
	Changes []stateChange `xml:"instancesSet>item"`
}

const maxMachinesPerCall = 1000

// change does something to all machines of a call and says how their states
// changed.
func change(machines []*machine, do func(*machine)) *stateChanges {
	out := &stateChanges{}
	for _, m := range machines {
		before := m.state
		do(m)
		out.Changes = append(out.Changes, stateChange{m.id, m.state.item(), before.item()})
	}
	return out
}

// terminateInstances ends all of the machines, or none if one is not known. A
// protected one fails the call, but machines in other zones end all the same
// (API reference, TerminateInstances).
func (f *fleet) terminateInstances(on call, in *terminateInput) (*stateChanges, error) {
	machines, err := f.batch(on, in.InstanceIds)
	if err != nil {
		return nil, err
	}
	guarded := map[string]string{} // by zone
	for _, m := range machines {
		if m.launch.DisableApiTermination && m.state != terminated {
			guarded[m.zone] = m.id
		}
	}
	var ending []*machine
	for _, m := range machines {
		if guarded[m.zone] == "" {
			ending = append(ending, m)
		}
	}
	out := change(ending, func(m *machine) { f.terminate(m, userShutdown) })
	for _, id := range guarded {
		return nil, refuse("OperationNotPermitted", "The instance '%s' may not be terminated. Modify its 'disableApiTermination' instance attribute and try again.", id)
	}
	return out, nil
}

func (f *fleet) batch(on call, ids []string) ([]*machine, error) {
	if len(ids) > maxMachinesPerCall {
		return nil, refuse("InvalidParameterValue", "Too many instances are specified: at most %d", maxMachinesPerCall)
	}
	return f.named(on, ids)
}

func (f *fleet) stopInstances(on call, in *stopInput) (*stateChanges, error) {
	machines, err := f.batch(on, in.InstanceIds)
	if err != nil {
		return nil, err
	}
	for _, m := range machines {
		if err := checkStop(m, in.Hibernate); err != nil {
			return nil, err
		}
	}
	why := userShutdown
	if in.Hibernate {
		why = userHibernate
	}
	return change(machines, func(m *machine) {
		if m.state == running || m.state == pending {
			f.stop(m, why)
		}
	}), nil
}

func checkStop(m *machine, hibernate bool) error {
	switch {
	case m.state == terminated || m.state == shuttingDown || m.state == pending && hibernate:
		return refuse("IncorrectInstanceState", "The instance '%s' is not in a state from which it can be stopped.", m.id)
	case m.spot != nil && !m.spot.persistent:
		return refuse("UnsupportedOperation", "You can't stop the Spot Instance '%s' because it is associated with a one-time Spot Instance request. "+
			"You can only stop Spot Instances associated with persistent Spot Instance requests.", m.id)
	case m.launch.DisableApiStop:
		return refuse("OperationNotPermitted", "The instance '%s' may not be stopped. Modify its 'disableApiStop' instance attribute and try again.", m.id)
	case hibernate && !m.launch.HibernationOptions.Configured:
		return refuse("UnsupportedHibernationConfiguration", "The instance '%s' is not configured for hibernation.", m.id)
	}
	return nil
}

// startInstances starts all of the machines or none. It needs capacity, as a
// launch does.
func (f *fleet) startInstances(on call, in *startInput) (*stateChanges, error) {
	machines, err := f.batch(on, in.InstanceIds)
	if err != nil {
		return nil, err
	}
	for _, m := range machines {
		if m.state != stopped && m.state != running && m.state != pending {
			return nil, refuse("IncorrectInstanceState", "The instance '%s' is not in a state from which it can be started.", m.id)
		}
	}
	var holding []*machine
	for _, m := range machines {
		if m.state != stopped {
			continue
		}
		if !f.o.Capacity.Take(m.shape()) {
			for _, h := range holding {
				f.release(h)
			}
			return nil, refuse("InsufficientInstanceCapacity", "Insufficient capacity.")
		}
		m.holdsCapacity = true
		holding = append(holding, m)
	}
	return change(machines, func(m *machine) {
		if m.state == stopped {
			m.launched = on.now
			f.begin(m, nil)
		}
	}), nil
}
