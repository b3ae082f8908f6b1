package armtest

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
)

// A vmChecks refuses what Azure refuses of a new machine.
type vmChecks struct {
	*call
	disks   diskCalls
	nics    *nicSet
	catalog catalogCalls
}

// check refuses what Azure refuses of a new machine, and returns its size.
func (k vmChecks) check(name string, m *armcompute.VirtualMachine) (Size, *Refusal) {
	p := m.Properties
	switch {
	case m.Location == nil:
		return Size{}, refuse(http.StatusBadRequest, "LocationRequired", "The location property is required for this definition.")
	case !strings.EqualFold(*m.Location, k.o.Location):
		return Size{}, refuse(http.StatusBadRequest, "NoRegisteredProviderFound", "No registered resource provider found for location '%s'.", *m.Location)
	case len(name) > 64:
		return Size{}, refuse(http.StatusBadRequest, "InvalidResourceName", "The resource name is longer than 64 characters.")
	case p == nil || p.HardwareProfile == nil || p.HardwareProfile.VMSize == nil:
		return Size{}, badParameter("vmSize", "Required parameter is missing (null).")
	case p.StorageProfile == nil || p.StorageProfile.OSDisk == nil || p.StorageProfile.ImageReference == nil:
		return Size{}, badParameter("storageProfile", "Required parameter is missing (null).")
	case p.NetworkProfile == nil || len(p.NetworkProfile.NetworkInterfaces) == 0:
		return Size{}, badParameter("networkProfile", "The virtual machine needs at least one network interface.")
	}
	for _, check := range []func(*armcompute.VirtualMachine) *Refusal{
		func(m *armcompute.VirtualMachine) *Refusal { return checkTags(m.Tags) },
		checkMarket, checkOS, checkDisk, k.disks.checkDataDisks, checkSecurity, k.checkKeys, k.checkPlacement, k.checkNICs, k.catalog.checkImage,
		func(*armcompute.VirtualMachine) *Refusal {
			return k.linked(compute+"disks/write", k.id("Microsoft.Compute/virtualMachines", name))
		},
		k.checkIdentities,
	} {
		if err := check(m); err != nil {
			return Size{}, err
		}
	}
	return k.catalog.checkSize(m)
}

// checkTags: 50 tags, names up to 512 characters without < > % & \ ? /, values up
// to 256 ("Use tags to organize your Azure resources").
func checkTags(tags map[string]*string) *Refusal {
	seen := map[string]bool{}
	for name, value := range tags {
		lower := strings.ToLower(name)
		switch {
		case seen[lower]:
			return refuse(http.StatusBadRequest, "InvalidTagNames", "The tag '%s' is there twice.", name)
		case len(tags) > 50:
			return refuse(http.StatusBadRequest, "InvalidNumberOfTags", "The number of tags exceeds 50.")
		case name == "" || len(name) > 512 || strings.ContainsAny(name, `<>%&\?/`):
			return refuse(http.StatusBadRequest, "InvalidTagNameCharacters", "The tag name '%s' has reserved characters.", name)
		case value == nil || len(*value) > 256:
			return refuse(http.StatusBadRequest, "InvalidTagValueLength", "The tag value of '%s' exceeds 256 characters.", name)
		}
		seen[lower] = true
	}
	return nil
}

// checkMarket: "Error codes for Azure Spot Virtual Machines".
func checkMarket(m *armcompute.VirtualMachine) *Refusal {
	p := m.Properties
	spot := p.Priority != nil && *p.Priority == armcompute.VirtualMachinePriorityTypesSpot
	switch {
	case !spot && p.EvictionPolicy != nil:
		return refuse(http.StatusConflict, "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", "Eviction policy can be set only on Azure Spot virtual machines.")
	case !spot && p.BillingProfile != nil && p.BillingProfile.MaxPrice != nil:
		return refuse(http.StatusConflict, "MaxPriceCanBeSetOnlyOnAzureSpotVirtualMachines", "Max price can be set only on Azure Spot virtual machines.")
	case p.BillingProfile != nil && p.BillingProfile.MaxPrice != nil && *p.BillingProfile.MaxPrice != -1 && *p.BillingProfile.MaxPrice <= 0:
		return refuse(http.StatusBadRequest, "MaxPriceValueInvalid", "Max price must be -1 or greater than 0.")
	case spot && p.AdditionalCapabilities != nil && p.AdditionalCapabilities.HibernationEnabled != nil && *p.AdditionalCapabilities.HibernationEnabled:
		return refuse(http.StatusBadRequest, "OperationNotAllowed", "Hibernation is not supported on Azure Spot virtual machines.")
	}
	return nil
}

func checkOS(m *armcompute.VirtualMachine) *Refusal {
	os := m.Properties.OSProfile
	switch {
	case os == nil || os.ComputerName == nil || *os.ComputerName == "" || len(*os.ComputerName) > 64:
		return badParameter("computerName", "A Linux computer name has 1 to 64 characters.")
	case os.AdminUsername == nil || *os.AdminUsername == "" || slices.Contains([]string{"root", "admin", "administrator"}, *os.AdminUsername):
		return badParameter("adminUsername", "The admin user name is missing or reserved.")
	case os.AdminPassword == nil && (os.LinuxConfiguration == nil || os.LinuxConfiguration.SSH == nil || len(os.LinuxConfiguration.SSH.PublicKeys) == 0):
		return badParameter("linuxConfiguration", "Authentication using either SSH or by user name and password must be enabled in Linux profile.")
	}
	if l := os.LinuxConfiguration; l != nil && l.SSH != nil {
		for _, key := range l.SSH.PublicKeys {
			if key.KeyData == nil || key.Path == nil || *key.Path != "/home/"+*os.AdminUsername+"/.ssh/authorized_keys" {
				return badParameter("linuxConfiguration.ssh.publicKeys.path", "The only permitted path is /home/%s/.ssh/authorized_keys.", *os.AdminUsername)
			}
		}
	}
	return nil
}

// checkDisk: "Ephemeral OS disks for Azure VMs", "Use Azure Spot VMs".
func checkDisk(m *armcompute.VirtualMachine) *Refusal {
	p, d := m.Properties, m.Properties.StorageProfile.OSDisk
	if d.CreateOption == nil || *d.CreateOption != armcompute.DiskCreateOptionTypesFromImage {
		return badParameter("osDisk.createOption", "An image needs FromImage.")
	}
	if m := d.ManagedDisk; m != nil && m.StorageAccountType != nil && strings.HasPrefix(string(*m.StorageAccountType), "Premium_") && !premium(string(*p.HardwareProfile.VMSize)) {
		return badParameter("osDisk.managedDisk.storageAccountType", "Requested operation cannot be performed because the VM size %s does not support the storage account type %s of disk.",
			*p.HardwareProfile.VMSize, *m.StorageAccountType)
	}
	if d.DiffDiskSettings == nil {
		return nil
	}
	switch {
	case d.DiskSizeGB != nil && *d.DiskSizeGB > 2040:
		return badParameter("osDisk.diskSizeGB", "OS disk of Ephemeral VM with size greater than 2040 GB is not allowed for VM size %s when the DiffDiskPlacement is CacheDisk.", *p.HardwareProfile.VMSize)
	case d.Caching == nil || *d.Caching != armcompute.CachingTypesReadOnly:
		return badParameter("osDisk.caching", "Ephemeral disks need ReadOnly.")
	case p.EvictionPolicy != nil && *p.EvictionPolicy == armcompute.VirtualMachineEvictionPolicyTypesDeallocate:
		return badParameter("evictionPolicy", "Ephemeral disks need the eviction policy Delete.")
	}
	return nil
}

// sizeName is how sizes are named, with the letters for what they can do ("Azure virtual
// machine sizes naming conventions").
var sizeName = regexp.MustCompile(`^(?i)(Standard|Basic)_([A-Z]+)([0-9]+)(-[0-9]+)?([a-z]*)(_[A-Za-z0-9]+)*$`)

// premium reports whether a size takes premium storage.
func premium(size string) bool {
	parts := sizeName.FindStringSubmatch(size)
	return parts == nil || strings.ContainsAny(parts[5], "sS") || strings.HasSuffix(parts[2], "S")
}

// checkSecurity: "Deploy a confidential VM", "Trusted Launch for Azure virtual machines".
func checkSecurity(m *armcompute.VirtualMachine) *Refusal {
	p := m.Properties
	kind, encryption := armcompute.SecurityTypes(""), armcompute.SecurityEncryptionTypes("")
	if p.SecurityProfile != nil {
		kind = deref(p.SecurityProfile.SecurityType)
	}
	if d := p.StorageProfile.OSDisk.ManagedDisk; d != nil && d.SecurityProfile != nil {
		encryption = deref(d.SecurityProfile.SecurityEncryptionType)
	}
	var uefi armcompute.UefiSettings
	if p.SecurityProfile != nil && p.SecurityProfile.UefiSettings != nil {
		uefi = *p.SecurityProfile.UefiSettings
	}
	size := sizeName.FindStringSubmatch(string(*p.HardwareProfile.VMSize))
	switch {
	case kind != armcompute.SecurityTypesConfidentialVM && kind != armcompute.SecurityTypesTrustedLaunch && p.SecurityProfile != nil && p.SecurityProfile.UefiSettings != nil:
		return badParameter("securityProfile.uefiSettings", "UefiSettings need the security type TrustedLaunch or ConfidentialVM.")
	case kind != armcompute.SecurityTypesConfidentialVM && encryption != "":
		return badParameter("osDisk.managedDisk.securityProfile", "securityEncryptionType can be set only for Confidential VMs.")
	case kind != armcompute.SecurityTypesConfidentialVM:
		return nil
	case encryption == "":
		return badParameter("osDisk.managedDisk.securityProfile.securityEncryptionType", "Required parameter is missing (null) for a Confidential VM.")
	case !deref(uefi.VTpmEnabled):
		return badParameter("securityProfile.uefiSettings.vTpmEnabled", "It must be true for a Confidential VM.")
	case encryption == armcompute.SecurityEncryptionTypesDiskWithVMGuestState && !deref(uefi.SecureBootEnabled):
		return badParameter("securityProfile.uefiSettings.secureBootEnabled", "It must be true if the disk is encrypted with the guest's state.")
	case encryption == armcompute.SecurityEncryptionTypesDiskWithVMGuestState && deref(p.SecurityProfile.EncryptionAtHost):
		return badParameter("securityProfile.encryptionAtHost", "It cannot be true if the disk is encrypted with the guest's state.")
	case encryption != armcompute.SecurityEncryptionTypesDiskWithVMGuestState && p.StorageProfile.OSDisk.ManagedDisk.SecurityProfile.DiskEncryptionSet != nil:
		return badParameter("osDisk.managedDisk.securityProfile.diskEncryptionSet", "It needs the securityEncryptionType DiskWithVMGuestState.")
	case size != nil && (!slices.Contains([]string{"DC", "EC", "NCC"}, strings.ToUpper(size[2])) || !strings.ContainsAny(size[5], "ae")):
		return badParameter("vmSize", "The VM size '%s' is not supported for creation of VMs and Virtual Machine Scale Set with '%s' security type.", size[0], kind)
	case p.AdditionalCapabilities != nil && deref(p.AdditionalCapabilities.HibernationEnabled):
		return refuse(http.StatusBadRequest, "OperationNotAllowed", "Hibernation is not supported on Confidential VMs.")
	}
	return nil
}

func (k vmChecks) checkNICs(m *armcompute.VirtualMachine) *Refusal {
	if err := k.checkPrimary(m.Properties.NetworkProfile.NetworkInterfaces); err != nil {
		return err
	}
	for _, ref := range m.Properties.NetworkProfile.NetworkInterfaces {
		n := k.nics.byID(ref.ID)
		switch {
		case n == nil:
			return refuse(http.StatusBadRequest, "InvalidResourceReference", "Resource %s referenced by resource was not found.", deref(ref.ID))
		case n.state != succeeded:
			return &Refusal{Status: http.StatusTooManyRequests, Code: "RetryableError", Message: "A retryable error occurred.",
				Details: []Detail{{"ReferencedResourceNotProvisioned", "Cannot proceed with operation because resource is not in Succeeded state."}}}
		case n.vm != nil:
			return refuse(http.StatusBadRequest, "NicInUse", "Network interface %s is used by an existing VM.", n.id)
		case time.Now().Before(n.reserved):
			return refuse(http.StatusBadRequest, "NicReservedForAnotherVm", "Nic is reserved for another virtual machine for 180 seconds.")
		}
		if err := k.linked(network+"networkInterfaces/join/action", n.id); err != nil {
			return err
		}
	}
	return nil
}

// checkPrimary refuses several interfaces of which not one is the primary one, or which are
// in several virtual networks ("Create a Linux virtual machine with multiple NICs").
func (k vmChecks) checkPrimary(refs []*armcompute.NetworkInterfaceReference) *Refusal {
	primary, networks := 0, map[string]bool{}
	for _, ref := range refs {
		if ref.Properties != nil && deref(ref.Properties.Primary) {
			primary++
		}
		if n := k.nics.byID(ref.ID); n != nil {
			before, _, _ := strings.Cut(strings.ToLower(deref(n.model.Properties.IPConfigurations[0].Properties.Subnet.ID)), "/subnets/")
			networks[before] = true
		}
	}
	switch {
	case len(refs) > 1 && primary != 1:
		return refuse(http.StatusBadRequest, "VirtualMachineMustHaveOneNetworkInterfaceAsPrimary", "Virtual machine must have one network interface set as the primary.")
	case len(networks) > 1:
		return refuse(http.StatusBadRequest, "MultipleNetworkInterfacesInDifferentVnets", "The network interfaces of a virtual machine must be in one virtual network.")
	}
	return nil
}

func (k vmChecks) checkIdentities(m *armcompute.VirtualMachine) *Refusal {
	if m.Identity == nil {
		return nil
	}
	kind, users := string(deref(m.Identity.Type)), len(m.Identity.UserAssignedIdentities)
	if kind == "" || strings.Contains(kind, "UserAssigned") != (users > 0) {
		return refuse(http.StatusBadRequest, "InvalidIdentityType", "The identity type '%s' does not fit the %d user assigned identities.", kind, users)
	}
	for id := range m.Identity.UserAssignedIdentities {
		if err := k.linked("Microsoft.ManagedIdentity/userAssignedIdentities/assign/action", id); err != nil {
			return err
		}
		if !k.o.exists(id) {
			return refuse(http.StatusBadRequest, "FailedIdentityOperation", "Identity operation for resource failed with error: resource '%s' was not found.", id)
		}
	}
	return nil
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
