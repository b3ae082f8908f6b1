package ec2test

import (
	"encoding/base64"
)

// How much of a console is kept ("Instance console output", EC2 User Guide).
const maxConsoleBytes = 64 << 10

// Print adds to the console of a machine.
func (c *Cloud) Print(handle string, text []byte) error {
	return c.withMachine(handle, func(m *machine) error {
		m.console = append(m.console, text...)
		m.console = m.console[max(0, len(m.console)-maxConsoleBytes):]
		return nil
	})
}

type consoleInput struct {
	dryRun
	InstanceId string `q:",required"`
	Latest     bool
}

type consoleOutput struct {
	ID     string `xml:"instanceId"`
	At     string `xml:"timestamp"`
	Output string `xml:"output,omitempty"`
}

// getConsoleOutput returns what was posted at the last change of state, or the
// latest output of types that have it.
func (f *fleet) getConsoleOutput(on call, in *consoleInput) (*consoleOutput, error) {
	machines, err := f.named(on, []string{in.InstanceId})
	if err != nil {
		return nil, err
	}
	m := machines[0]
	text := m.postedConsole
	if in.Latest {
		if m.kind.Xen {
			return nil, refuse("UnsupportedOperation", "This instance type does not support retrieving the latest console logs. "+
				"Only instances built on the Nitro System support it.")
		}
		text = m.console
	}
	return &consoleOutput{m.id, stamp(on.now), base64.StdEncoding.EncodeToString(text)}, nil
}
