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
	nic, err := p.ensureNIC(ctx, r)
	if err != nil {
		return nstance.Machine{}, err
	}
	vm, err := p.put(ctx, r, nic)
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
func (p *Provider) put(ctx context.Context, r *request, nic *armnetwork.Interface) (*armcompute.VirtualMachine, error) {
	var resp *http.Response
	_, err := p.vms.BeginCreateOrUpdate(policy.WithCaptureResponse(ctx, &resp), p.o.ResourceGroup, string(r.spec.ID), r.vm(nic),
		&armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions{IfNoneMatch: new("*")})
	if err != nil {
		return nil, err
	}
	vm := &armcompute.VirtualMachine{}
	return vm, runtime.UnmarshalAsJSON(resp, vm)
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

// ensureNIC returns the machine's interface, and makes it if there is none. One
// that is there is left as it is: it may have joined load balancers.
func (p *Provider) ensureNIC(ctx context.Context, r *request) (*armnetwork.Interface, error) {
	name := string(r.spec.ID)
	got, err := p.nics.Get(ctx, p.o.ResourceGroup, name, nil)
	if isGone(err) {
		// Whether Network honours the condition is not documented; the read before
		// is what counts.
		header := http.Header{"If-None-Match": {"*"}}
		_, err = p.nics.BeginCreateOrUpdate(policy.WithHTTPHeader(ctx, header), p.o.ResourceGroup, name, r.nic(), nil)
		if err != nil && !exists(err) {
			return nil, createError(before(err))
		}
		got, err = p.nics.Get(ctx, p.o.ResourceGroup, name, nil)
	}
	for err == nil && !settled(&got.Interface) {
		if !sleep.For(ctx, nicPause) {
			return nil, createError(before(ctx.Err()))
		}
		got, err = p.nics.Get(ctx, p.o.ResourceGroup, name, nil)
	}
	if err != nil {
		return nil, createError(before(err))
	}
	if m := readMarks(got.Tags); m.owner() != r.spec.Owner || m[tagID] != name {
		return nil, nstance.Errorf(nstance.Conflict, "network interface %s belongs to %+v", name, m.owner())
	}
	return &got.Interface, nil
}

// settled reports whether machines can use an interface.
func settled(n *armnetwork.Interface) bool {
	return n.Properties != nil && n.Properties.ProvisioningState != nil && *n.Properties.ProvisioningState == armnetwork.ProvisioningStateSucceeded
}

// A beforeError is one that came before a machine was asked for: there is none.
type beforeError struct{ error }

func (e beforeError) Unwrap() error { return e.error }

func before(err error) error { return beforeError{err} }

func isBefore(err error) bool {
	_, ok := errors.AsType[beforeError](err)
	return ok
}

// nic is the interface of a machine.
func (r *request) nic() armnetwork.Interface {
	p := &armnetwork.InterfacePropertiesFormat{
		EnableAcceleratedNetworking: &r.args.Accelerated, EnableIPForwarding: &r.args.Forwarding,
		IPConfigurations: []*armnetwork.InterfaceIPConfiguration{{
			Name: new(primaryConfiguration),
			Properties: &armnetwork.InterfaceIPConfigurationPropertiesFormat{
				Primary: new(true), Subnet: &armnetwork.Subnet{ID: new(r.spec.Subnet)},
				PrivateIPAllocationMethod: new(armnetwork.IPAllocationMethodDynamic),
			},
		}},
	}
	if r.args.SecurityGroup != "" {
		p.NetworkSecurityGroup = &armnetwork.SecurityGroup{ID: new(r.args.SecurityGroup)}
	}
	return armnetwork.Interface{Location: new(r.o.Location), Tags: r.tags(), Properties: p}
}

// primaryConfiguration is the name of an interface's first IP configuration.
const primaryConfiguration = "primary"

// vm is the machine, as it is put.
func (r *request) vm(nic *armnetwork.Interface) armcompute.VirtualMachine {
	p := &armcompute.VirtualMachineProperties{
		HardwareProfile: &armcompute.HardwareProfile{VMSize: new(armcompute.VirtualMachineSizeTypes(r.spec.InstanceType))},
		StorageProfile:  &armcompute.StorageProfile{ImageReference: imageReference(r.spec.Image), OSDisk: r.disk()},
		OSProfile:       r.os(),
		NetworkProfile: &armcompute.NetworkProfile{NetworkInterfaces: []*armcompute.NetworkInterfaceReference{{
			ID:         nic.ID,
			Properties: &armcompute.NetworkInterfaceReferenceProperties{Primary: new(true), DeleteOption: new(armcompute.DeleteOptionsDelete)},
		}}},
		DiagnosticsProfile: &armcompute.DiagnosticsProfile{BootDiagnostics: &armcompute.BootDiagnostics{Enabled: new(r.args.Console == nil || *r.args.Console)}},
		Priority:           new(armcompute.VirtualMachinePriorityTypesRegular),
	}
	if r.spec.Market == nstance.Spot {
		p.Priority = new(armcompute.VirtualMachinePriorityTypesSpot)
		p.EvictionPolicy = new(armcompute.VirtualMachineEvictionPolicyTypes(r.args.EvictionPolicy))
		p.BillingProfile = &armcompute.BillingProfile{MaxPrice: &r.max}
	}
	if r.spec.Park == nstance.ParkHibernated {
		p.AdditionalCapabilities = &armcompute.AdditionalCapabilities{HibernationEnabled: new(true)}
	}
	if r.args.Security != "" {
		p.SecurityProfile = security(r.args.Security)
	}
	if d := time.Duration(r.args.TerminateAfter); d > 0 {
		p.ScheduledEventsProfile = &armcompute.ScheduledEventsProfile{TerminateNotificationProfile: &armcompute.TerminateNotificationProfile{
			Enable: new(true), NotBeforeTimeout: new(isoMinutes(d)),
		}}
	}
	out := armcompute.VirtualMachine{Location: new(r.o.Location), Tags: r.tags(), Properties: p}
	if a := privateAddress(nic); a != "" {
		out.Tags[tagAddress] = &a
	}
	if r.args.Zone != "" {
		out.Zones = []*string{&r.args.Zone}
	}
	if plan := r.args.Plan; plan != nil {
		out.Plan = &armcompute.Plan{Name: &plan.Name, Product: &plan.Product, Publisher: &plan.Publisher}
	}
	if len(r.args.Identities) > 0 {
		out.Identity = &armcompute.VirtualMachineIdentity{Type: new(armcompute.ResourceIdentityTypeUserAssigned), UserAssignedIdentities: map[string]*armcompute.UserAssignedIdentitiesValue{}}
		for _, id := range r.args.Identities {
			out.Identity.UserAssignedIdentities[id] = &armcompute.UserAssignedIdentitiesValue{}
		}
	}
	return out
}

// isoMinutes writes whole minutes as ISO 8601 does.
func isoMinutes(d time.Duration) string {
	return "PT" + strings.TrimSuffix(d.Round(time.Minute).String(), "m0s") + "M"
}

// confidential is the security type of machines whose memory the host cannot read.
const confidential = "ConfidentialVM"

func security(kind string) *armcompute.SecurityProfile {
	out := &armcompute.SecurityProfile{SecurityType: new(armcompute.SecurityTypes(kind))}
	if kind != "Standard" {
		out.UefiSettings = &armcompute.UefiSettings{SecureBootEnabled: new(true), VTpmEnabled: new(true)}
	}
	return out
}

// privateAddress returns the first address of an interface.
func privateAddress(nic *armnetwork.Interface) string {
	if nic.Properties == nil {
		return ""
	}
	for _, c := range nic.Properties.IPConfigurations {
		if c.Properties != nil && c.Properties.PrivateIPAddress != nil {
			return *c.Properties.PrivateIPAddress
		}
	}
	return ""
}

func (r *request) disk() *armcompute.OSDisk {
	d := r.args.Disk
	out := &armcompute.OSDisk{
		Name: new(string(r.spec.ID)), CreateOption: new(armcompute.DiskCreateOptionTypesFromImage), DeleteOption: new(armcompute.DiskDeleteOptionTypesDelete),
	}
	if d.SizeGB > 0 {
		out.DiskSizeGB = &d.SizeGB
	}
	if d.Type != "" {
		out.ManagedDisk = &armcompute.ManagedDiskParameters{StorageAccountType: new(armcompute.StorageAccountTypes(d.Type))}
	}
	if r.args.Security == confidential {
		// The state of the firmware is encrypted, the disk itself by the platform as any
		// other. Azure refuses a confidential machine that does not say which
		// (VMDiskSecurityProfile.securityEncryptionType, Compute REST API).
		if out.ManagedDisk == nil {
			out.ManagedDisk = &armcompute.ManagedDiskParameters{}
		}
		out.ManagedDisk.SecurityProfile = &armcompute.VMDiskSecurityProfile{SecurityEncryptionType: new(armcompute.SecurityEncryptionTypesVMGuestStateOnly)}
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
