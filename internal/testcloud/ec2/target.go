package ec2

// A target is one member of a target group: a machine at a port.
type target struct {
	machine string
}

// A registration is a target in its target group.
type registration struct{}

// removeTargets ends the registrations of a machine that is terminated.
func (c *Cloud) removeTargets(m *machine) {
	for _, group := range c.targets {
		for t := range group {
			if t.machine == m.id {
				delete(group, t)
			}
		}
	}
}
