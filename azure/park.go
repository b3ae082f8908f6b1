package azure

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

func parkModes() []nstance.ParkMode {
	return []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}
}

// ParkModes implements [nstance.Parker].
func (*Provider) ParkModes() []nstance.ParkMode { return parkModes() }

// own returns m as Azure knows it.
func (p *Provider) own(ctx context.Context, m nstance.Machine) (*armcompute.VirtualMachine, view, error) {
	vm, err := p.read(ctx, string(m.ID), true)
	if err != nil {
		return nil, view{}, readError(err)
	}
	if err := checkMarks("machine "+string(m.ID), vm.Tags, m); err != nil {
		return nil, view{}, err
	}
	if vm.Properties == nil {
		return nil, view{}, nstance.Errorf(nstance.Unavailable, "Azure shows nothing of machine %s", m.ID)
	}
	return vm, viewOf(vm.Properties.InstanceView), nil
}

// Park implements [nstance.Parker] by deallocation: a machine that is only stopped
// is billed as if it ran ("States and billing status of Azure Virtual Machines").
func (p *Provider) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	if mode != nstance.ParkStopped && mode != nstance.ParkHibernated {
		return nstance.FieldError("warm_pool.mode", "use stopped or hibernated", "%.64q is neither", mode)
	}
	vm, v, err := p.own(ctx, m)
	if err != nil {
		return err
	}
	switch {
	case p.machine(vm).Market == nstance.Spot:
		return nstance.FieldError("warm_pool", "use on-demand capacity", "machine %s is spot capacity: deallocated, it counts as evicted", m.ID)
	case v.power == "deallocated", v.power == "deallocating":
		return nil
	case v.power != "running" && v.power != "stopped":
		return nstance.Errorf(nstance.Conflict, "machine %s is %s and cannot be parked yet", m.ID, deref(vm.Properties.ProvisioningState))
	}
	o := &armcompute.VirtualMachinesClientBeginDeallocateOptions{}
	if mode == nstance.ParkHibernated {
		o.Hibernate = new(true)
	}
	_, err = p.vms.BeginDeallocate(ctx, p.o.ResourceGroup, string(m.ID), o)
	return p.changed(vm, "park", err)
}

// Wake implements [nstance.Parker]. Azure may find that it has no capacity only
// after it has accepted this: then Get says StatusStopped with the cause.
func (p *Provider) Wake(ctx context.Context, m nstance.Machine) error {
	vm, v, err := p.own(ctx, m)
	if err != nil {
		return err
	}
	switch v.power {
	case "running", "starting":
		return nil
	case "deallocated", "stopped":
	default:
		return nstance.Errorf(nstance.Conflict, "machine %s is %s and cannot be started yet", m.ID, deref(vm.Properties.ProvisioningState))
	}
	_, err = p.vms.BeginStart(ctx, p.o.ResourceGroup, string(m.ID), nil)
	return p.changed(vm, "wake", err)
}

// changed classifies the answer to a change of a machine. One that is asked for again quotes
// why it has failed.
func (p *Provider) changed(vm *armcompute.VirtualMachine, change string, err error) error {
	repeats := p.asked.repeats(deref(vm.Name), change)
	switch {
	case err != nil:
		return readError(err)
	case repeats:
		return failedBefore(vm)
	}
	return nil
}

// maxConsoleLog bounds how much of a console is read in search of its end.
const maxConsoleLog = 16 << 20

// ConsoleOutput implements [nstance.ConsoleReader]: Azure answers with a link to a
// file in storage, which is secret and is read without a token.
func (p *Provider) ConsoleOutput(ctx context.Context, m nstance.Machine) ([]byte, error) {
	if _, _, err := p.own(ctx, m); err != nil {
		return nil, err
	}
	got, err := p.vms.RetrieveBootDiagnosticsData(ctx, p.o.ResourceGroup, string(m.ID), nil)
	if err != nil {
		return nil, readError(err)
	}
	text := deref(got.SerialConsoleLogBlobURI)
	if text == "" { // nothing was written yet
		return nil, nil
	}
	link, err := url.Parse(text)
	if err != nil || link.Host == "" || link.Scheme != "https" && !strings.HasPrefix(p.o.Endpoint, "http://") {
		return nil, nstance.Errorf(nstance.Unavailable, "the link to the console is not usable")
	}
	return p.fetchEnd(ctx, link)
}

// fetchEnd returns the end of a file. Its errors do not name the link.
func (p *Provider) fetchEnd(ctx context.Context, link *url.URL) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, link.String(), nil)
	if err != nil {
		return nil, nstance.Errorf(nstance.Internal, "the link to the console is none")
	}
	resp, err := p.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		} else if u, ok := err.(*url.Error); ok { //nolint:errorlint // it has the link in its text
			err = u.Err
		}
		return nil, nstance.Errorf(nstance.Unavailable, "console in storage: %w", err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return nil, nil
	case resp.StatusCode != http.StatusOK:
		return nil, nstance.Errorf(nstance.Unavailable, "console in storage: status %d", resp.StatusCode)
	}
	end := &tail{}
	if _, err := io.Copy(end, io.LimitReader(resp.Body, maxConsoleLog)); err != nil {
		return nil, nstance.Errorf(nstance.Unavailable, "console in storage: %w", err)
	}
	return end.Bytes(), nil
}

// A tail keeps the end of what is written to it.
type tail struct{ bytes.Buffer }

func (t *tail) Write(b []byte) (int, error) {
	n := len(b)
	if n > clip.MaxConsole {
		b = b[n-clip.MaxConsole:]
	}
	if over := t.Len() + len(b) - clip.MaxConsole; over > 0 {
		t.Next(over)
	}
	t.Buffer.Write(b)
	return n, nil
}

// ReadFrom would read past Write.
func (t *tail) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{t}, r) }
