package azure

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider"
)

// The limits of a notice before deletion (TerminateNotificationProfile).
const (
	minTerminate = provider.Duration(5 * time.Minute)
	maxTerminate = provider.Duration(15 * time.Minute)
)

// The pauses before a machine that was accepted is looked for again.
const (
	firstLook = 100 * time.Millisecond
	lastLook  = 1600 * time.Millisecond
)

// nicPause is how often an interface is looked at while Azure makes it.
const nicPause = time.Second

// Create implements [nstance.Provider]. It puts the machine under the condition
// that there is none of that name, and returns as soon as Azure has accepted it.
func (p *Provider) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	r, err := p.o.request(spec)
	if err != nil {
		return nstance.Machine{}, err
	}
	if err := ctx.Err(); err != nil {
		return nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "nothing was sent: %w", err)
	}
	if since := p.created.since(spec.ID); !since.IsZero() {
		return p.existing(ctx, r, since)
	}
	n, err := p.ensureParts(ctx, r)
	switch {
	case errors.Is(err, errMachineExists):
		return p.existing(ctx, r, time.Now())
	case err != nil:
		return nstance.Machine{}, err
	}
	vm, err := p.put(ctx, r, n)
	switch {
	case exists(err):
		return p.existing(ctx, r, time.Now())
	case err != nil:
		return nstance.Machine{}, createError(err)
	}
	p.created.add(spec.ID, time.Now())
	return p.machine(vm), nil
}

// put sends the one PUT of a machine.
func (p *Provider) put(ctx context.Context, r *request, n *network) (*armcompute.VirtualMachine, error) {
	var resp *http.Response
	_, err := p.vms.BeginCreateOrUpdate(policy.WithCaptureResponse(ctx, &resp), p.o.ResourceGroup, string(r.spec.ID), r.vm(n),
		&armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions{IfNoneMatch: new("*")})
	if err != nil {
		return nil, err
	}
	vm := &armcompute.VirtualMachine{}
	if err := runtime.UnmarshalAsJSON(resp, vm); err != nil {
		return nil, err
	}
	if vm.ID == nil {
		return nil, nstance.Errorf(nstance.Ambiguous, "azure: the answer shows no machine")
	}
	return vm, nil
}

// existing returns the machine that stands under the spec's name, if it was made
// from the same spec. One that Azure has known and does not know any more is not
// made again.
func (p *Provider) existing(ctx context.Context, r *request, since time.Time) (nstance.Machine, error) {
	vm, err := p.read(ctx, string(r.spec.ID), false)
	for wait := firstLook; isGone(err) && wait <= lastLook && time.Since(since) < Consistency; wait *= 4 {
		if !sleep.For(ctx, wait) {
			return nstance.Machine{}, createError(ctx.Err())
		}
		vm, err = p.read(ctx, string(r.spec.ID), false)
	}
	switch {
	case isGone(err) && time.Since(since) < Consistency:
		return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "machine %s was accepted and is not visible yet", r.spec.ID)
	case isGone(err):
		return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s existed and is gone", r.spec.ID)
	case err != nil:
		return nstance.Machine{}, createError(err)
	}
	if got := readMarks(vm.Tags)[tagDigest]; got != provider.Fingerprint(r.spec) {
		return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s exists with other parameters", r.spec.ID)
	}
	p.created.add(r.spec.ID, time.Now())
	return p.machine(vm), nil
}

// ensureNIC returns interface i of the machine, and makes it if there is none.
func (p *Provider) ensureNIC(ctx context.Context, r *request, i int) (*armnetwork.Interface, error) {
	name, wanted := nicName(string(r.spec.ID), i), r.nic(i)
	var got armnetwork.InterfacesClientGetResponse
	err := p.ensure(ctx, r, part{
		what: "network interface " + name,
		get: func(ctx context.Context) (_ shownPart, err error) {
			got, err = p.nics.Get(ctx, p.o.ResourceGroup, name, nil)
			shown := shownNIC(&got.Interface)
			shown.other = otherSubnet(&got.Interface, subnetOf(&wanted))
			return shown, err
		},
		put: func(ctx context.Context) (operation, error) {
			if got.ID == nil {
				// Whether Network honours the condition is not documented; the read before
				// is what counts.
				ctx = policy.WithHTTPHeader(ctx, http.Header{"If-None-Match": {"*"}})
			}
			return p.nics.BeginCreateOrUpdate(ctx, p.o.ResourceGroup, name, wanted, nil)
		},
		remove: func(ctx context.Context) error {
			_, err := p.deleteNIC(ctx, name, r.machine())
			return err
		},
	})
	return &got.Interface, err
}

func shownNIC(n *armnetwork.Interface) shownPart {
	out := shownPart{tags: n.Tags}
	if n.Properties != nil {
		out.state = string(deref(n.Properties.ProvisioningState))
	}
	return out
}

// otherSubnet says which subnet an interface is in, unless that is the wanted one.
func otherSubnet(n *armnetwork.Interface, wanted string) string {
	got := subnetOf(n)
	if got == "" || strings.EqualFold(got, wanted) {
		return ""
	}
	return "it is in subnet " + got
}

// subnetOf returns the subnet of an interface; "": it shows none.
func subnetOf(n *armnetwork.Interface) string {
	for _, c := range configurations(n) {
		if c.Properties.Subnet != nil {
			return deref(c.Properties.Subnet.ID)
		}
	}
	return ""
}

// A beforeError is one that came before a machine was asked for: there is none.
type beforeError struct{ error }

func (e beforeError) Unwrap() error { return e.error }

func before(err error) error { return beforeError{err} }

func isBefore(err error) bool {
	_, ok := errors.AsType[beforeError](err)
	return ok
}

// vm is the machine, as it is put.
func (r *request) vm(n *network) armcompute.VirtualMachine {
	p := &armcompute.VirtualMachineProperties{
		HardwareProfile:    &armcompute.HardwareProfile{VMSize: new(armcompute.VirtualMachineSizeTypes(r.spec.InstanceType))},
		StorageProfile:     &armcompute.StorageProfile{ImageReference: imageReference(r.spec.Image), OSDisk: r.disk(), DataDisks: r.dataDisks()},
		OSProfile:          r.os(),
		NetworkProfile:     r.network(n),
		DiagnosticsProfile: &armcompute.DiagnosticsProfile{BootDiagnostics: &armcompute.BootDiagnostics{Enabled: new(r.args.Console == nil || *r.args.Console)}},
		Priority:           new(armcompute.VirtualMachinePriorityTypesRegular),
	}
	if r.spec.Market == nstance.Spot {
		p.Priority = new(armcompute.VirtualMachinePriorityTypesSpot)
		p.EvictionPolicy = new(armcompute.VirtualMachineEvictionPolicyTypes(r.args.EvictionPolicy))
		p.BillingProfile = &armcompute.BillingProfile{MaxPrice: &r.max}
	}
	p.AdditionalCapabilities = r.capabilities()
	p.SecurityProfile = r.security()
	r.place(p)
	if d := time.Duration(r.args.TerminateAfter); d > 0 {
		p.ScheduledEventsProfile = &armcompute.ScheduledEventsProfile{TerminateNotificationProfile: &armcompute.TerminateNotificationProfile{
			Enable: new(true), NotBeforeTimeout: new(isoMinutes(d)),
		}}
	}
	out := armcompute.VirtualMachine{Location: new(r.o.Location), Tags: r.tags(), Properties: p}
	if len(n.addresses) > 0 {
		out.Tags[tagAddress] = new(strings.Join(n.addresses, ","))
	}
	if r.zone != "" {
		out.Zones = []*string{&r.zone}
	}
	if plan := r.args.Plan; plan != nil {
		out.Plan = &armcompute.Plan{Name: &plan.Name, Product: &plan.Product, Publisher: &plan.Publisher}
	}
	out.Identity = r.identity()
	return out
}

// network are the interfaces of a machine. Azure deletes them with it, except for one that
// names further parts.
func (r *request) network(n *network) *armcompute.NetworkProfile {
	out := &armcompute.NetworkProfile{}
	for i, nic := range n.nics {
		option := armcompute.DeleteOptionsDelete
		if i == 0 && r.parts().any() {
			option = armcompute.DeleteOptionsDetach
		}
		out.NetworkInterfaces = append(out.NetworkInterfaces, &armcompute.NetworkInterfaceReference{
			ID: nic.ID, Properties: &armcompute.NetworkInterfaceReferenceProperties{Primary: new(i == 0), DeleteOption: &option},
		})
	}
	return out
}

// capabilities returns what the machine has to be able to; nil: nothing special.
func (r *request) capabilities() *armcompute.AdditionalCapabilities {
	out := &armcompute.AdditionalCapabilities{}
	if r.spec.Park == nstance.ParkHibernated {
		out.HibernationEnabled = new(true)
	}
	if r.ultraDisks() {
		out.UltraSSDEnabled = new(true)
	}
	if *out == (armcompute.AdditionalCapabilities{}) {
		return nil
	}
	return out
}

// isoMinutes writes whole minutes as ISO 8601 does.
func isoMinutes(d time.Duration) string {
	return "PT" + strings.TrimSuffix(d.Round(time.Minute).String(), "m0s") + "M"
}

// privateAddresses returns the addresses of an interface, as far as it shows them.
func privateAddresses(nic *armnetwork.Interface) (out []string) {
	for _, c := range configurations(nic) {
		if c.Properties.PrivateIPAddress != nil {
			out = append(out, *c.Properties.PrivateIPAddress)
		}
	}
	return out
}

func (r *request) disk() *armcompute.OSDisk {
	d := r.args.Disk
	out := &armcompute.OSDisk{
		Name: new(string(r.spec.ID)), CreateOption: new(armcompute.DiskCreateOptionTypesFromImage), DeleteOption: new(armcompute.DiskDeleteOptionTypesDelete),
	}
	if d.SizeGB > 0 {
		out.DiskSizeGB = &d.SizeGB
	}
	disk := &armcompute.ManagedDiskParameters{}
	if d.Type != "" {
		disk.StorageAccountType = new(armcompute.StorageAccountTypes(d.Type))
	}
	r.diskSecurity(disk)
	if *disk != (armcompute.ManagedDiskParameters{}) {
		out.ManagedDisk = disk
	}
	if d.Ephemeral {
		out.Caching = new(armcompute.CachingTypesReadOnly)
		out.DiffDiskSettings = &armcompute.DiffDiskSettings{Option: new(armcompute.DiffDiskOptionsLocal)}
	}
	return out
}

func (r *request) os() *armcompute.OSProfile {
	var keys []*armcompute.SSHPublicKey
	for _, key := range slices.Sorted(slices.Values(r.args.SSHPublicKeys)) {
		keys = append(keys, &armcompute.SSHPublicKey{KeyData: new(strings.TrimSpace(key)), Path: new("/home/" + r.args.AdminUsername + "/.ssh/authorized_keys")})
	}
	out := &armcompute.OSProfile{
		ComputerName: new(string(r.spec.ID)), AdminUsername: &r.args.AdminUsername,
		LinuxConfiguration: &armcompute.LinuxConfiguration{DisablePasswordAuthentication: new(true), SSH: &armcompute.SSHConfiguration{PublicKeys: keys}},
	}
	if len(r.spec.UserData) > 0 {
		out.CustomData = new(base64.StdEncoding.EncodeToString(r.spec.UserData))
	}
	return out
}

// imageReference spells an image as the API wants it: by the kind of its name.
func imageReference(image string) *armcompute.ImageReference {
	switch {
	case urn.MatchString(image):
		parts := strings.Split(image, ":")
		return &armcompute.ImageReference{Publisher: &parts[0], Offer: &parts[1], SKU: &parts[2], Version: &parts[3]}
	case strings.HasPrefix(strings.ToLower(image), "/communitygalleries/"):
		return &armcompute.ImageReference{CommunityGalleryImageID: &image}
	case strings.HasPrefix(strings.ToLower(image), "/sharedgalleries/"):
		return &armcompute.ImageReference{SharedGalleryImageID: &image}
	}
	return &armcompute.ImageReference{ID: &image}
}
