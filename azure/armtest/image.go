package armtest

import (
	"cmp"
	"net/http"
	"regexp"
	"slices"
	"strings"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
)

// versionID is the ID of an image version in a gallery.
var versionID = regexp.MustCompile(`(?i)^(/subscriptions/[^/]+/resourceGroups/([^/]+)/providers/Microsoft\.Compute/galleries/([^/]+)/images/([^/]+))/versions/([^/]+)$`)

// A catalogCalls answers calls for the sizes and images that the location offers.
type catalogCalls struct{ *call }

// checkImage refuses an image that is not there. Without Options.Images there are
// all.
func (k catalogCalls) checkImage(m *armcompute.VirtualMachine) *Refusal {
	ref := m.Properties.StorageProfile.ImageReference
	name := deref(ref.ID)
	if name == "" {
		name = strings.Join([]string{deref(ref.Publisher), deref(ref.Offer), deref(ref.SKU), deref(ref.Version)}, ":")
	}
	if len(k.o.Images) == 0 {
		return checkDiskSize(m, Image{})
	}
	i := slices.IndexFunc(k.o.Images, func(i Image) bool { return strings.EqualFold(i.ID, name) && !i.Unavailable })
	if i < 0 {
		return refuse(http.StatusNotFound, "ImageNotFound", "The platform image '%s' is not available.", name)
	}
	if err := checkDiskSize(m, k.o.Images[i]); err != nil {
		return err
	}
	return k.checkArch(m, k.o.Images[i])
}

// checkDiskSize refuses a disk that the image does not fit into.
func checkDiskSize(m *armcompute.VirtualMachine, image Image) *Refusal {
	size, least := m.Properties.StorageProfile.OSDisk.DiskSizeGB, cmp.Or(image.SizeGB, 30)
	if size != nil && int(*size) < least {
		return badParameter("osDisk.diskSizeGB", "The specified disk size %d GB is smaller than the size of the corresponding disk in the VM image: %d GB. This is not allowed. "+
			"Please choose equal or greater size or do not specify an explicit size.", *size, least)
	}
	return nil
}

// checkArch refuses an image for other processors.
func (k catalogCalls) checkArch(m *armcompute.VirtualMachine, image Image) *Refusal {
	for _, s := range k.o.Sizes {
		if strings.EqualFold(s.Name, string(deref(m.Properties.HardwareProfile.VMSize))) && cmp.Or(s.Arch, "x64") != cmp.Or(image.Arch, "x64") {
			return badParameter("vmSize", "Cannot create a VM of size '%s' because this VM size only supports a CPU Architecture of '%s', but an image or disk given has CPU Architecture '%s'.",
				s.Name, cmp.Or(s.Arch, "x64"), cmp.Or(image.Arch, "x64"))
		}
	}
	return nil
}

// inGallery returns the image versions of the gallery that the call names.
func (k catalogCalls) inGallery() (out [][]string, arch map[string]string, of map[string]Image) {
	arch, of = map[string]string{}, map[string]Image{}
	for _, i := range k.o.Images {
		m := versionID.FindStringSubmatch(i.ID)
		if m != nil && strings.EqualFold(m[2], k.path["group"]) && strings.EqualFold(m[3], k.path["gallery"]) {
			out = append(out, m)
			arch[m[4]], of[i.ID] = cmp.Or(i.Arch, "x64"), i
		}
	}
	return out, arch, of
}

func (k catalogCalls) listImages(_, gallery string, _ *armcompute.GalleryImagesClientListByGalleryOptions) (p azfake.PagerResponder[armcompute.GalleryImagesClientListByGalleryResponse]) {
	versions, arch, _ := k.inGallery()
	if len(versions) == 0 {
		p.AddError(resourceNotFound("Microsoft.Compute/galleries/" + gallery))
		return p
	}
	out := armcompute.GalleryImagesClientListByGalleryResponse{}
	seen := map[string]bool{}
	for _, m := range versions {
		if !seen[m[4]] {
			seen[m[4]] = true
			out.Value = append(out.Value, &armcompute.GalleryImage{ID: new(m[1]), Name: new(m[4]), Location: new(k.o.Location),
				Properties: &armcompute.GalleryImageProperties{Architecture: new(armcompute.Architecture(arch[m[4]]))}})
		}
	}
	p.AddPage(http.StatusOK, out, nil)
	return p
}

func (k catalogCalls) listVersions(_, _, image string, _ *armcompute.GalleryImageVersionsClientListByGalleryImageOptions) (p azfake.PagerResponder[armcompute.GalleryImageVersionsClientListByGalleryImageResponse]) {
	versions, _, of := k.inGallery()
	out := armcompute.GalleryImageVersionsClientListByGalleryImageResponse{}
	for _, m := range versions {
		if !strings.EqualFold(m[4], image) {
			continue
		}
		i := of[m[0]]
		state := armcompute.GalleryProvisioningStateSucceeded
		if i.Unavailable {
			state = armcompute.GalleryProvisioningStateFailed
		}
		out.Value = append(out.Value, &armcompute.GalleryImageVersion{ID: new(m[0]), Name: new(m[5]), Location: new(k.o.Location),
			Properties: &armcompute.GalleryImageVersionProperties{ProvisioningState: &state, PublishingProfile: &armcompute.GalleryImageVersionPublishingProfile{ExcludeFromLatest: new(i.Unlisted)}}})
	}
	p.AddPage(http.StatusOK, out, nil)
	return p
}

func (k catalogCalls) checkSize(m *armcompute.VirtualMachine) (Size, *Refusal) {
	name := string(*m.Properties.HardwareProfile.VMSize)
	spot := m.Properties.Priority != nil && *m.Properties.Priority == armcompute.VirtualMachinePriorityTypesSpot
	i := slices.IndexFunc(k.o.Sizes, func(s Size) bool { return strings.EqualFold(s.Name, name) })
	if i < 0 && len(k.o.Sizes) == 0 && sizeName.MatchString(name) {
		return Size{Name: name, Cores: 2}, nil
	}
	if i < 0 {
		return Size{}, badParameter("vmSize", "The value %s provided for the VM size is not valid.", name)
	}
	size := k.o.Sizes[i]
	switch {
	case size.Restricted:
		return Size{}, refuse(http.StatusConflict, "SkuNotAvailable", "The requested size %s is not available in location '%s' for this subscription.", name, k.o.Location)
	case spot && size.NoSpot:
		return Size{}, refuse(http.StatusConflict, "AzureSpotIsNotSupportedForThisVMSize", "Azure Spot is not supported for the VM size %s.", name)
	case len(m.Zones) > 0 && !slices.Contains(size.Zones, *m.Zones[0]):
		return Size{}, badParameter("zones", "The size %s is not offered in zone %s.", name, *m.Zones[0])
	}
	return size, nil
}

func (k catalogCalls) listSizes(o *armcompute.ResourceSKUsClientListOptions) (p azfake.PagerResponder[armcompute.ResourceSKUsClientListResponse]) {
	if o != nil && o.Filter != nil && *o.Filter != "location eq '"+k.o.Location+"'" {
		p.AddError(refuse(http.StatusBadRequest, "InvalidFilterInQueryString", "Only location is supported in the filter."))
		return p
	}
	type numbered struct {
		Size
		n int
	}
	var all []numbered
	for i, s := range k.o.Sizes {
		all = append(all, numbered{s, i})
	}
	page, next := cut(k.call, all, func(s numbered) int { return s.n })
	out := armcompute.ResourceSKUsClientListResponse{ResourceSKUsResult: armcompute.ResourceSKUsResult{NextLink: next}}
	for _, s := range page {
		out.Value = append(out.Value, s.sku(k.o.Location))
	}
	p.AddPage(http.StatusOK, out, nil)
	return p
}

func (s Size) sku(location string) *armcompute.ResourceSKU {
	out := &armcompute.ResourceSKU{
		Name: new(s.Name), ResourceType: new("virtualMachines"), Locations: []*string{&location},
		Capabilities: []*armcompute.ResourceSKUCapabilities{{Name: new("CpuArchitectureType"), Value: new(cmp.Or(s.Arch, "x64"))}},
	}
	if s.Restricted {
		out.Restrictions = []*armcompute.ResourceSKURestrictions{{
			Type: new(armcompute.ResourceSKURestrictionsTypeLocation), Values: []*string{&location},
			ReasonCode: new(armcompute.ResourceSKURestrictionsReasonCodeNotAvailableForSubscription),
		}}
	}
	return out
}
