package azure

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/nstance-go/nstance"
)

// The parts of a machine are the resources that it has beside its first interface, itself
// and its OS disk: data disks, more interfaces and public addresses. Their number is in a tag of the first interface, which
// is made before them and deleted after them: whatever a crash leaves behind is found by
// name, and a machine without parts costs no look-up of one.
type parts struct {
	disks, nics int
	ipv4, ipv6  bool // public addresses
}

// The bounds of parts.
const (
	maxDataDisks = 64 // of the largest sizes ("Sizes for virtual machines in Azure")
)

// partWidth is how many parts of one machine are made or deleted at a time.
const partWidth = 8

func (p parts) any() bool { return p != parts{} }

// String writes parts as a tag's value.
func (p parts) String() string {
	return fmt.Sprintf("disks=%d,interfaces=%d,ipv4=%t,ipv6=%t", p.disks, p.nics, p.ipv4, p.ipv6)
}

// readParts reads a tag that String wrote. No tag means no parts. It fails with Conflict
// for another value: nothing that the interface belongs to is deleted then.
func readParts(m marks) (parts, error) {
	var p parts
	text := m[tagParts]
	if text == "" {
		return p, nil
	}
	if _, err := fmt.Sscanf(text, "disks=%d,interfaces=%d,ipv4=%t,ipv6=%t", &p.disks, &p.nics, &p.ipv4, &p.ipv6); err != nil ||
		p.String() != text || p.disks < 0 || p.disks > maxDataDisks || p.nics < 0 || p.nics > maxInterfaces {
		return parts{}, nstance.Errorf(nstance.Conflict, "tag %s says %.64q, which this version does not know", tagParts, text)
	}
	return p, nil
}

// parts returns what the arguments ask for.
func (r *request) parts() parts {
	return parts{disks: len(r.args.DataDisks), nics: len(r.args.Interfaces), ipv4: r.args.PublicIP, ipv6: r.args.PublicIPv6}
}

func dataDiskName(id string, lun int) string { return fmt.Sprintf("%s-data-%d", id, lun) }

// What a machine is made with: its interfaces, and the addresses that they have.
type network struct {
	nics      []*armnetwork.Interface
	addresses []string
}

// ensureParts makes the first interface, and then the parts that Azure does not make
// together with the machine. Those that are there are left as they are: the first interface
// may have joined load balancers.
func (p *Provider) ensureParts(ctx context.Context, r *request) (*network, error) {
	all := r.parts()
	public := all.addresses()
	out := &network{nics: make([]*armnetwork.Interface, 1+all.nics), addresses: make([]string, len(public))}
	var err error
	if out.nics[0], err = p.ensureNIC(ctx, r, 0); err != nil {
		return nil, err
	}
	var steps []func() error
	for i := range all.nics {
		steps = append(steps, func() (err error) { out.nics[i+1], err = p.ensureNIC(ctx, r, i+1); return err })
	}
	for i, a := range public {
		steps = append(steps, func() (err error) { out.addresses[i], err = p.ensurePublicIP(ctx, r, a); return err })
	}
	for lun, d := range r.args.DataDisks {
		if d.tuned() {
			steps = append(steps, func() error { return p.ensureDisk(ctx, r, lun) })
		}
	}
	if err := inParallel(steps); err != nil {
		return nil, err
	}
	if len(public) > 0 {
		if err := p.bindAddresses(ctx, r); err != nil {
			return nil, err
		}
	}
	out.addresses = append(privateAddresses(out.nics[0]), out.addresses...)
	return out, nil
}

// deleteParts deletes the parts that the interface names, and reports whether there was
// one.
func (p *Provider) deleteParts(ctx context.Context, name string, nic *armnetwork.Interface, m nstance.Machine) (bool, error) {
	all, err := readParts(readMarks(nic.Tags))
	if err != nil || !all.any() {
		return false, err
	}
	var left atomic.Bool
	var steps []func() error
	remove := func(what string, f func(context.Context, string, nstance.Machine) (bool, error)) {
		steps = append(steps, func() error {
			found, err := f(ctx, what, m)
			if found {
				left.Store(true)
			}
			return err
		})
	}
	if len(all.addresses()) > 0 {
		if err := p.releaseAddresses(ctx, name); err != nil {
			return true, err
		}
	}
	for _, a := range all.addresses() {
		remove(a.name(name), p.deletePublicIP)
	}
	for i := range all.nics {
		remove(nicName(name, i+1), p.deleteNIC)
	}
	for lun := range all.disks {
		remove(dataDiskName(name, lun), p.deleteDisk)
	}
	err = inParallel(steps)
	return left.Load(), err
}

// inParallel runs all steps, a few at a time, and returns the first error in their order.
func inParallel(steps []func() error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(steps))
	width := make(chan struct{}, partWidth)
	for i, step := range steps {
		wg.Go(func() {
			width <- struct{}{}
			defer func() { <-width }()
			errs[i] = step()
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
