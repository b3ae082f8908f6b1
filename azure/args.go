package azure

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// Args are a template's provider-specific arguments.
type Args struct {
	AdminUsername  string      `json:"admin_username" doc:"user that Azure creates for the keys" default:"nstance"`
	SSHPublicKeys  []string    `json:"ssh_public_keys" doc:"public keys of that user in OpenSSH's format; Azure creates no Linux machine without one" required:"true"`
	Zone           string      `json:"zone" doc:"availability zone 1, 2 or 3; none: without one" default:"that of the subnet's entry in subnet_pools, else shard.provider.zone"`
	Disk           Disk        `json:"os_disk" doc:"the disk that the machine boots from"`
	DataDisks      []DataDisk  `json:"data_disks" doc:"empty disks beside it, deleted with the machine; the first is LUN 0"`
	EvictionPolicy string      `json:"eviction_policy" doc:"what Azure does with evicted spot machines until the server deletes them" default:"Deallocate" enum:"Deallocate|Delete"`
	SecurityGroup  string      `json:"network_security_group" doc:"ARM ID of the network security group of the interface"`
	Groups         []string    `json:"application_security_groups" doc:"ARM IDs of the application security groups of the interface"`
	Accelerated    bool        `json:"accelerated_networking" doc:"give the interface direct access to the host's hardware" default:"false"`
	Forwarding     bool        `json:"ip_forwarding" doc:"let the interface forward packets for other addresses" default:"false"`
	PublicIP       bool        `json:"public_ip" doc:"give the interface a public IPv4 address of the kind Standard; only a network security group opens it" default:"false"`
	IPv6           bool        `json:"ipv6" doc:"give the interface an IPv6 address of its subnet, which needs an IPv6 range" default:"false"`
	PublicIPv6     bool        `json:"public_ipv6" doc:"give that a public address too" default:"false"`
	Interfaces     []Interface `json:"interfaces" doc:"network interfaces behind the first one"`
	SystemIdentity bool        `json:"system_assigned_identity" doc:"give the machine a managed identity of its own, which is deleted with it" default:"false"`
	Identities     []string    `json:"user_assigned_identities" doc:"ARM IDs of managed identities that the machine can use"`
	Console        *bool       `json:"boot_diagnostics" doc:"keep the output of the machine's serial console, in storage that Azure manages" default:"true"`
	Security       string      `json:"security_type" doc:"security of the machine; it must fit the image, and ConfidentialVM the size" default:"Azure's choice" enum:"Standard|TrustedLaunch|ConfidentialVM"`
	SecureBoot     *bool       `json:"secure_boot" doc:"boot signed software only, with TrustedLaunch and ConfidentialVM" default:"true"`
	VTPM           *bool       `json:"vtpm" doc:"give the machine a virtual TPM, with TrustedLaunch; confidential machines always have one" default:"true"`
	HostEncryption bool        `json:"encryption_at_host" doc:"encrypt temporary disks and caches on the host; the subscription must have the feature EncryptionAtHost" default:"false"`

	Reservation     string `json:"capacity_reservation_group" doc:"ARM ID of the capacity reservation group; on-demand only"`
	Proximity       string `json:"proximity_placement_group" doc:"ARM ID of the proximity placement group"`
	AvailabilitySet string `json:"availability_set" doc:"ARM ID of the availability set, in the resource group of the machines; on-demand and without zone only"`

	TerminateAfter provider.Duration `json:"terminate_notice" doc:"how long before deleting the machine Azure notifies it, 5m to 15m; 0s: without notification" default:"0s"`
	Plan           *Plan             `json:"plan" doc:"purchase plan of a marketplace image"`
	Tags           map[string]string `json:"tags" doc:"more tags of the machine and its interface"`
}

// Disk describes the disk that a machine boots from.
type Disk struct {
	SizeGB        int32  `json:"size_gb" doc:"size in GiB" default:"the image's" min:"1" max:"4095"`
	Type          string `json:"type" doc:"kind of storage" default:"Azure's choice" enum:"Standard_LRS|StandardSSD_LRS|StandardSSD_ZRS|Premium_LRS|Premium_ZRS"`
	EncryptionSet string `json:"disk_encryption_set" doc:"ARM ID of the disk encryption set whose key encrypts it" default:"a key of Azure's"`
	Encryption    string `json:"security_encryption" doc:"what of it a confidential machine encrypts itself" default:"VMGuestStateOnly, with ConfidentialVM" enum:"VMGuestStateOnly|DiskWithVMGuestState|NonPersistedTPM"`
	Ephemeral     bool   `json:"ephemeral" doc:"keep it on the host only; it cannot be stopped, and spot machines need the eviction policy Delete" default:"false"`
}

// Plan is a purchase plan.
type Plan struct {
	Name      string `json:"name" doc:"name of the plan" required:"true"`
	Product   string `json:"product" doc:"offer of the image" required:"true"`
	Publisher string `json:"publisher" doc:"publisher of the image" required:"true"`
}

// managed are arguments that the system sets.
var managed = provider.Managed{
	"name": "machines are named by their instance IDs", "computer_name": "machines are named by their instance IDs",
	"location": "set shard.provider.region", "resource_group": "set shard.provider.options.resource_group",
	"vm_size": "set instance_type", "instance_type": "set the template's instance_type", "image_id": "set the template's image", "image": "set the template's image",
	"custom_data": "set the template's userdata", "user_data": "set the template's userdata", "subnet": "set subnet_pool", "subnet_id": "set subnet_pool",
	"priority": "set market.type", "spot": "set market.type", "max_price": "set market.max_price", "hibernation": "set warm_pool.mode",
}

// maxUserData is the longest custom data in bytes, before base64 (OSProfile,
// Compute REST API).
const maxUserData = 65535

// maxSpareTags are what is left of Azure's 50.
const maxSpareTags = 50 - 14

var (
	subnetParts = regexp.MustCompile(`(?i)^/subscriptions/[^/]+/resourceGroups/([^/]+)/providers/Microsoft\.Network/virtualNetworks/([^/]+)/subnets/([^/]+)$`)
	subnetID    = regexp.MustCompile(`(?i)^(/subscriptions/[^/]+/resourceGroups/([^/]+)/providers/Microsoft\.Network/virtualNetworks/([^/]+)/subnets/[^/?]+)(?:\?zone=([1-9]))?$`)
	resourceID  = regexp.MustCompile(`(?i)^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/[^/]+(/[^/]+/[^/]+)+$`)
	sharedID    = regexp.MustCompile(`(?i)^/(CommunityGalleries|SharedGalleries)/[^/]+/images/[^/]+/versions/[^/]+$`)
	urn         = regexp.MustCompile(`^[^/:]+:[^/:]+:[^/:]+:[^/:]+$`)
	sizeName    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{1,79}$`)
	userName    = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	sshKey      = regexp.MustCompile(`^(ssh-rsa|ssh-ed25519) [A-Za-z0-9+/]+=*( .*)?$`)
)

// A request is a spec that has been checked.
type request struct {
	o    Options
	spec nstance.MachineSpec
	args Args

	subnet string  // its ARM ID
	zone   string  // empty: none
	max    float64 // price of spot capacity; -1: never too high
}

// request checks a spec offline.
func (o Options) request(s nstance.MachineSpec) (*request, error) {
	if err := provider.ValidateSpec(s, maxUserData); err != nil {
		return nil, err
	}
	r := &request{o: o, spec: s, max: -1}
	if err := provider.DecodeArgs(s.Args, &r.args, managed); err != nil {
		return nil, err
	}
	for _, check := range []func() error{r.checkShape, r.checkSize, r.checkMarket, r.checkAccess, r.checkDisk, r.checkDataDisks, r.checkSecurity, r.checkNetwork, r.checkPlacement, r.checkReferences, r.checkTags} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// machine is what the parts of the machine are marked as.
func (r *request) machine() nstance.Machine {
	return nstance.Machine{ID: r.spec.ID, Owner: r.spec.Owner}
}

func (r *request) checkShape() error {
	s := r.spec
	switch {
	case !sizeName.MatchString(s.InstanceType):
		return nstance.FieldError("instance_type", "use a size such as Standard_D2s_v5", "%q is no size of Azure", s.InstanceType)
	case !subnetID.MatchString(s.Subnet):
		return nstance.FieldError("subnet_pool", "list ARM IDs of subnets: /subscriptions/…/virtualNetworks/…/subnets/…, each with ?zone=1, 2 or 3 if its machines are to be in that zone", "%q is no ID of a subnet", s.Subnet)
	case !resourceID.MatchString(s.Image) && !sharedID.MatchString(s.Image) && !urn.MatchString(s.Image):
		return nstance.FieldError("image", "use an ARM ID of an image or image version, or publisher:offer:sku:version", "%q is no image", s.Image)
	}
	return r.checkZone()
}

// noZone is the zone of machines that have none, although the shard has one.
const noZone = "none"

// checkZone takes the zone from the subnet's place in its pool, the arguments or the shard.
func (r *request) checkZone() error {
	place := subnetID.FindStringSubmatch(r.spec.Subnet)
	r.subnet = place[1]
	if place[4] != "" && r.args.Zone != "" && r.args.Zone != place[4] {
		return nstance.FieldError("args.zone", "leave it out", "is %s, and subnet_pool says zone %s", r.args.Zone, place[4])
	}
	r.zone = cmp.Or(place[4], r.args.Zone, r.o.Zone)
	if r.zone == noZone {
		r.zone = ""
	}
	if r.zone != "" && !zoneName.MatchString(r.zone) {
		return nstance.FieldError("args.zone", "use 1, 2, 3 or none", "%q is no zone of Azure", r.zone)
	}
	return nil
}

// maxEphemeral is the largest ephemeral disk in GiB ("Ephemeral OS disks for Azure VMs").
const maxEphemeral = 2040

// sizeFeatures splits the name of a size: family, number of processors, and the letters for
// features, of which s says that it takes premium storage ("Azure virtual machine sizes
// naming conventions").
var sizeFeatures = regexp.MustCompile(`^(?:Standard|Basic)_([A-Z]+)([0-9]+)(?:-[0-9]+)?([a-z]*)`)

// checkSize refuses what the name of a size excludes.
func (r *request) checkSize() error {
	parts := sizeFeatures.FindStringSubmatch(r.spec.InstanceType)
	if parts == nil {
		return nil // Azure knows it, or not
	}
	family, name := parts[1], r.spec.InstanceType
	switch {
	case strings.HasPrefix(r.args.Disk.Type, "Premium_") && premiumless(name):
		return nstance.FieldError("args.os_disk.type", "use StandardSSD_LRS, or a size with an s in its name such as Standard_D2s_v5", "%s takes no premium storage", name)
	case r.args.Accelerated && family == "A":
		return nstance.FieldError("args.accelerated_networking", "remove it, or use another size", "%s cannot have it", name)
	case r.args.Disk.Ephemeral && r.args.Disk.SizeGB > maxEphemeral:
		return nstance.FieldError("args.os_disk.size_gb", "use at most "+strconv.Itoa(maxEphemeral), "no size keeps a disk of %d GiB on its host", r.args.Disk.SizeGB)
	}
	return nil
}

// premiumless reports whether the name of a size says that it takes no premium storage.
func premiumless(size string) bool {
	parts := sizeFeatures.FindStringSubmatch(size)
	return parts != nil && !strings.Contains(parts[3], "s") && !strings.HasSuffix(parts[1], "S")
}

// checkMarket: the price is in US dollars with up to five decimals, and 0 is none
// ("Error codes for Azure Spot Virtual Machines").
func (r *request) checkMarket() error {
	if r.args.EvictionPolicy == "" {
		r.args.EvictionPolicy = string(armcompute.VirtualMachineEvictionPolicyTypesDeallocate)
	}
	if !slices.Contains([]string{"Deallocate", "Delete"}, r.args.EvictionPolicy) {
		return nstance.FieldError("args.eviction_policy", "use Deallocate or Delete", "%q is neither", r.args.EvictionPolicy)
	}
	if r.spec.Market != nstance.Spot || r.spec.MaxPrice == "" {
		return nil
	}
	_, decimals, _ := strings.Cut(r.spec.MaxPrice, ".")
	price, err := strconv.ParseFloat(r.spec.MaxPrice, 64)
	if err != nil || price <= 0 || len(decimals) > 5 {
		return nstance.FieldError("market.max_price", "use US dollars above 0 with up to five decimals, or leave it out", "%q is no price that Azure accepts", r.spec.MaxPrice)
	}
	r.max = price
	return nil
}

func (r *request) checkAccess() error {
	a := &r.args
	if a.AdminUsername == "" {
		a.AdminUsername = "nstance"
	}
	if !userName.MatchString(a.AdminUsername) || slices.Contains([]string{"root", "admin", "administrator", "user", "test", "guest", "owner"}, a.AdminUsername) {
		return nstance.FieldError("args.admin_username", "use up to 32 lower-case letters, digits, - and _, and none of root, admin, user, test, guest", "Azure refuses %q", a.AdminUsername)
	}
	if len(a.SSHPublicKeys) == 0 {
		return nstance.FieldError("args.ssh_public_keys", "give at least one public key", "is empty: Azure creates no Linux machine without one")
	}
	for i, key := range a.SSHPublicKeys {
		if !sshKey.MatchString(strings.TrimSpace(key)) {
			return nstance.FieldError("args.ssh_public_keys["+strconv.Itoa(i)+"]", "use a line such as ssh-ed25519 AAAA… name", "%.40q is no public key that Azure accepts", key)
		}
	}
	return nil
}

// checkDisk: "Ephemeral OS disks for Azure VMs".
func (r *request) checkDisk() error {
	d := r.args.Disk
	kinds := []string{"", "Standard_LRS", "StandardSSD_LRS", "StandardSSD_ZRS", "Premium_LRS", "Premium_ZRS"}
	switch {
	case d.SizeGB < 0 || d.SizeGB > 4095:
		return nstance.FieldError("args.os_disk.size_gb", "use 1 to 4095", "%d is no size", d.SizeGB)
	case !slices.Contains(kinds, d.Type):
		return nstance.FieldError("args.os_disk.type", "use one of "+strings.Join(kinds[1:], ", "), "%q is not known", d.Type)
	case d.Ephemeral && d.Type != "" && d.Type != "Standard_LRS":
		return nstance.FieldError("args.os_disk.type", "leave it out", "an ephemeral disk is no storage of its own")
	case d.Ephemeral && r.spec.Park != "":
		return nstance.FieldError("args.os_disk.ephemeral", "use a disk that is kept", "a machine with an ephemeral disk cannot be parked")
	case d.Ephemeral && r.spec.Market == nstance.Spot && r.args.EvictionPolicy != "Delete":
		return nstance.FieldError("args.eviction_policy", "set it to Delete", "spot machines with an ephemeral disk need the policy Delete")
	}
	return checkID("args.os_disk.disk_encryption_set", encryptionSets, d.EncryptionSet)
}

func (r *request) checkReferences() error {
	a := r.args
	for _, id := range a.Identities {
		if !resourceID.MatchString(id) {
			return nstance.FieldError("args.user_assigned_identities", "use ARM IDs", "%q is no ARM ID", id)
		}
	}
	if n := a.TerminateAfter; n != 0 && (n < minTerminate || n > maxTerminate) {
		return nstance.FieldError("args.terminate_notice", "use 5m to 15m, or 0s", "Azure gives no such notice")
	}
	if p := a.Plan; p != nil && (p.Name == "" || p.Product == "" || p.Publisher == "") {
		return nstance.FieldError("args.plan", "give name, product and publisher, as az vm image show prints them", "is not complete")
	}
	return nil
}

// checkTags: names up to 512 characters, values up to 256 ("Use tags to organize
// your Azure resources").
func (r *request) checkTags() error {
	if n := len(r.args.Tags); n > maxSpareTags {
		return nstance.FieldError("args.tags", "use up to "+strconv.Itoa(maxSpareTags), "%d tags are too many", n)
	}
	for name, value := range r.args.Tags {
		field := "args.tags." + name
		switch {
		case strings.HasPrefix(strings.ToLower(name), tagPrefix):
			return nstance.FieldError(field, "use another name", "names that begin with %s are the system's", tagPrefix)
		case name == "" || len(name) > 512 || strings.ContainsAny(name, `<>%&\?/`):
			return nstance.FieldError(field, `use up to 512 characters without < > % & \ ? /`, "Azure refuses this name")
		case len(value) > 256:
			return nstance.FieldError(field, "use up to 256 characters", "the value has %d", len(value))
		}
	}
	return nil
}
