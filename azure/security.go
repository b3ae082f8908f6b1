package azure

import (
	"regexp"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
)

// The security types. Confidential is that of machines whose memory the host cannot read.
const (
	trustedLaunch = string(armcompute.SecurityTypesTrustedLaunch)
	confidential  = string(armcompute.SecurityTypesConfidentialVM)
)

// What of a confidential machine's disk is encrypted by the machine
// (VMDiskSecurityProfile.securityEncryptionType, Compute REST API).
const (
	firmwareOnly = string(armcompute.SecurityEncryptionTypesVMGuestStateOnly)
	wholeDisk    = string(armcompute.SecurityEncryptionTypesDiskWithVMGuestState)
	nothingKept  = string(armcompute.SecurityEncryptionTypesNonPersistedTPM)
)

// checkSecurity: "Trusted Launch for Azure virtual machines", "About Azure confidential
// VMs", "Encryption at host".
func (r *request) checkSecurity() error {
	a := r.args
	firmware := a.Security == trustedLaunch || a.Security == confidential
	switch {
	case !slices.Contains([]string{"", "Standard", trustedLaunch, confidential}, a.Security):
		return nstance.FieldError("args.security_type", "use Standard, TrustedLaunch or ConfidentialVM", "%q is not known", a.Security)
	case a.SecureBoot != nil && !firmware:
		return nstance.FieldError("args.secure_boot", "set args.security_type to TrustedLaunch or ConfidentialVM", "needs one of these types")
	case a.VTPM != nil && !firmware:
		return nstance.FieldError("args.vtpm", "set args.security_type to TrustedLaunch or ConfidentialVM", "needs one of these types")
	case a.Security == confidential:
		return r.checkConfidential()
	case a.Disk.Encryption != "":
		return nstance.FieldError("args.os_disk.security_encryption", "set args.security_type to ConfidentialVM, or leave it out", "only confidential machines have it")
	}
	return nil
}

func (r *request) checkConfidential() error {
	a := r.args
	switch {
	case a.VTPM != nil && !*a.VTPM:
		return nstance.FieldError("args.vtpm", "leave it out", "confidential machines always have one")
	case !slices.Contains([]string{"", firmwareOnly, wholeDisk, nothingKept}, a.Disk.Encryption):
		return nstance.FieldError("args.os_disk.security_encryption", "use VMGuestStateOnly, DiskWithVMGuestState or NonPersistedTPM", "%q is not known", a.Disk.Encryption)
	case a.Disk.Encryption == wholeDisk && a.SecureBoot != nil && !*a.SecureBoot:
		return nstance.FieldError("args.secure_boot", "leave it out", "a disk encrypted by the machine needs it")
	case a.Disk.Encryption == wholeDisk && a.HostEncryption:
		return nstance.FieldError("args.encryption_at_host", "leave it out", "the machine encrypts its disk itself")
	case !confidentialSize(r.spec.InstanceType):
		return nstance.FieldError("instance_type", "use a confidential size such as Standard_DC2as_v5 or Standard_EC4as_v5", "%s cannot be confidential", r.spec.InstanceType)
	case r.spec.Park == nstance.ParkHibernated:
		return nstance.FieldError("warm_pool.mode", "use stopped", "confidential machines cannot hibernate")
	}
	return nil
}

// confidentialSize reports whether the name of a size permits confidential machines: those
// of DC, EC and NCC with an a or e for their processor. The other DC sizes have enclaves
// ("Azure confidential VM options", "Sizes naming conventions").
func confidentialSize(size string) bool {
	parts := sizeFeatures.FindStringSubmatch(size)
	return parts == nil || slices.Contains([]string{"DC", "EC", "NCC"}, parts[1]) && strings.ContainsAny(parts[3], "ae")
}

// security is what the machine's PUT says of it; nil: nothing.
func (r *request) security() *armcompute.SecurityProfile {
	a, out := r.args, &armcompute.SecurityProfile{}
	if a.HostEncryption {
		out.EncryptionAtHost = new(true)
	}
	if a.Security != "" {
		out.SecurityType = new(armcompute.SecurityTypes(a.Security))
	}
	if a.Security == trustedLaunch || a.Security == confidential {
		out.UefiSettings = &armcompute.UefiSettings{SecureBootEnabled: new(a.SecureBoot == nil || *a.SecureBoot), VTpmEnabled: new(a.VTPM == nil || *a.VTPM)}
	}
	if *out == (armcompute.SecurityProfile{}) {
		return nil
	}
	return out
}

// diskSecurity says of a confidential machine's disk what it encrypts: Azure refuses one
// that does not. Its own key is that of the encryption set only if that is the whole disk
// (VMDiskSecurityProfile.diskEncryptionSet, Compute REST API).
func (r *request) diskSecurity(disk *armcompute.ManagedDiskParameters) {
	key := encryptionSet(r.args.Disk.EncryptionSet)
	if r.args.Security != confidential {
		disk.DiskEncryptionSet = key
		return
	}
	kind := firmwareOnly
	if r.args.Disk.Encryption != "" {
		kind = r.args.Disk.Encryption
	}
	disk.SecurityProfile = &armcompute.VMDiskSecurityProfile{SecurityEncryptionType: new(armcompute.SecurityEncryptionTypes(kind))}
	if kind == wholeDisk {
		disk.SecurityProfile.DiskEncryptionSet = key
	} else {
		disk.DiskEncryptionSet = key
	}
}

// encryptionSets is the type of disk encryption sets.
const encryptionSets = "Microsoft.Compute/diskEncryptionSets"

func encryptionSet(id string) *armcompute.DiskEncryptionSetParameters {
	if id == "" {
		return nil
	}
	return &armcompute.DiskEncryptionSetParameters{ID: &id}
}

// typedID is the ARM ID of a resource that is in a resource group and in nothing else.
var typedID = regexp.MustCompile(`(?i)^/subscriptions/[^/]+/resourceGroups/([^/]+)/providers/([^/]+/[^/]+)/[^/]+$`)

// checkID accepts an empty ID and the ARM ID of a resource of that type.
func checkID(field, kind, id string) error {
	if m := typedID.FindStringSubmatch(id); id != "" && (m == nil || !strings.EqualFold(m[2], kind)) {
		return nstance.FieldError(field, "use an ARM ID such as /subscriptions/…/resourceGroups/…/providers/"+kind+"/…", "%.200q is no such ID", id)
	}
	return nil
}
