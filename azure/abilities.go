package azure

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
)

var (
	_ nstance.AccountNamer  = (*Provider)(nil)
	_ nstance.NodeNamer     = (*Provider)(nil)
	_ nstance.ImageResolver = (*Provider)(nil)
	_ nstance.SubnetCounter = (*Provider)(nil)
	_ nstance.SubnetLocator = (*Provider)(nil)
	_ nstance.TypeLister    = (*Provider)(nil)
	_ nstance.Balancer      = (*Provider)(nil)
	_ nstance.AddressMover  = (*Provider)(nil)
	_ nstance.Parker        = (*Provider)(nil)
	_ nstance.ConsoleReader = (*Provider)(nil)
)

// ResolveImage implements [nstance.ImageResolver] for the galleries of the
// subscription: the owner is resource-group/gallery, the name that of an image
// definition. Of one definition the highest version counts, as Azure itself counts
// "latest"; of several definitions that fit, the version published last.
func (p *Provider) ResolveImage(ctx context.Context, q nstance.ImageQuery) (string, error) {
	group, gallery, ok := strings.Cut(q.Owner, "/")
	if !ok || group == "" || gallery == "" || strings.Contains(gallery, "/") {
		return "", nstance.FieldError("image.owner", "write resource-group/gallery, or give the image by its id", "%q is no gallery", q.Owner)
	}
	if _, err := path.Match(q.Name, ""); err != nil {
		return "", nstance.FieldError("image.name", "use letters, digits and *", "%q is no pattern", q.Name)
	}
	var best *armcompute.GalleryImageVersion
	pager := p.images.NewListByGalleryPager(group, gallery, nil)
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return "", readError(err)
		}
		for _, image := range page.Value {
			if !fits(image, q) {
				continue
			}
			v, err := p.newest(ctx, group, gallery, deref(image.Name))
			if err != nil {
				return "", err
			}
			if v != nil && (best == nil || published(v).After(published(best))) {
				best = v
			}
		}
	}
	if best == nil {
		return "", nstance.Errorf(nstance.NotFound, "no image in gallery %s fits %q", q.Owner, q.Name)
	}
	return deref(best.ID), nil
}

// fits reports whether an image definition is asked for. One without an
// architecture is for x64 ("Azure Compute Gallery").
func fits(image *armcompute.GalleryImage, q nstance.ImageQuery) bool {
	if ok, err := path.Match(cmp.Or(q.Name, "*"), deref(image.Name)); err != nil || !ok {
		return false
	}
	arch := armcompute.ArchitectureX64
	if image.Properties != nil && image.Properties.Architecture != nil {
		arch = *image.Properties.Architecture
	}
	return q.Arch == "" || archOf(string(arch)) == q.Arch
}

// newest returns the highest version that machines can be made from, or nil.
func (p *Provider) newest(ctx context.Context, group, gallery, image string) (best *armcompute.GalleryImageVersion, err error) {
	pager := p.versions.NewListByGalleryImagePager(group, gallery, image, nil)
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, readError(err)
		}
		for _, v := range page.Value {
			if usable(v) && (best == nil || compareVersions(deref(v.Name), deref(best.Name)) > 0) {
				best = v
			}
		}
	}
	return best, nil
}

func usable(v *armcompute.GalleryImageVersion) bool {
	p := v.Properties
	return p != nil && deref(p.ProvisioningState) == armcompute.GalleryProvisioningStateSucceeded &&
		(p.PublishingProfile == nil || !deref(p.PublishingProfile.ExcludeFromLatest))
}

func published(v *armcompute.GalleryImageVersion) time.Time {
	if v.Properties == nil || v.Properties.PublishingProfile == nil {
		return time.Time{}
	}
	return deref(v.Properties.PublishingProfile.PublishedDate)
}

// compareVersions compares versions of three numbers.
func compareVersions(a, b string) int {
	return slices.Compare(numbers(a), numbers(b))
}

func numbers(version string) (out []int) {
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			n = -1
		}
		out = append(out, n)
	}
	return out
}

func archOf(azure string) nstance.Arch {
	switch strings.ToLower(azure) {
	case "x64":
		return nstance.AMD64
	case "arm64":
		return nstance.ARM64
	}
	return ""
}

// FreeAddresses implements [nstance.SubnetCounter], with one question for each
// virtual network. Azure's limit has its own five addresses subtracted already, and
// is negative for subnets of gateways.
func (p *Provider) FreeAddresses(ctx context.Context, subnets []string) (map[string]int, error) {
	type network struct{ group, name string }
	asked := map[network][]string{}
	for _, id := range subnets {
		if m := subnetID.FindStringSubmatch(id); m != nil {
			n := network{strings.ToLower(m[2]), strings.ToLower(m[3])}
			asked[n] = append(asked[n], id)
		}
	}
	free := map[string]int{}
	for n, ids := range asked {
		pager := p.networks.NewListUsagePager(n.group, n.name, nil)
		for pager.More() {
			page, err := pager.NextPage(ctx)
			if isGone(err) {
				break
			}
			if err != nil {
				return nil, readError(err)
			}
			for _, usage := range page.Value {
				for _, id := range ids {
					if strings.EqualFold(subnetID.FindStringSubmatch(id)[1], deref(usage.ID)) && deref(usage.Limit) >= 0 {
						free[id] = max(0, int(deref(usage.Limit)-deref(usage.CurrentValue)))
					}
				}
			}
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, readError(err)
	}
	return free, nil
}

// SubnetZones implements [nstance.SubnetLocator]. Azure's subnets are in all zones: it is
// their entry in the pool that says in which one its machines are. It asks Azure nothing.
func (*Provider) SubnetZones(ctx context.Context, subnets []string) (map[string]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, readError(err)
	}
	zones := map[string]string{}
	for _, id := range subnets {
		if m := subnetID.FindStringSubmatch(id); m != nil && m[4] != "" {
			zones[id] = m[4]
		}
	}
	return zones, nil
}

// typesAge is how long the sizes of the location are remembered: their list is
// many pages long.
const typesAge = time.Hour

// A typeCache remembers the sizes of the location.
type typeCache struct {
	turn  chan struct{} // holds one value while the rest is read or asked for
	at    time.Time
	archs map[string]nstance.Arch // by lower-case name
}

// TypeArchs implements [nstance.TypeLister].
func (p *Provider) TypeArchs(ctx context.Context, names []string) (map[string][]nstance.Arch, error) {
	if err := ctx.Err(); err != nil {
		return nil, readError(err)
	}
	select {
	case p.types.turn <- struct{}{}:
		defer func() { <-p.types.turn }()
	case <-ctx.Done():
		return nil, readError(ctx.Err())
	}
	if p.types.archs == nil || time.Since(p.types.at) > typesAge {
		archs, err := p.listTypes(ctx)
		if err != nil {
			return nil, err
		}
		p.types.at, p.types.archs = time.Now(), archs
	}
	out := map[string][]nstance.Arch{}
	for _, name := range names {
		if arch, ok := p.types.archs[strings.ToLower(name)]; ok {
			out[name] = []nstance.Arch{arch}
		}
	}
	return out, nil
}

func (p *Provider) listTypes(ctx context.Context) (map[string]nstance.Arch, error) {
	archs := map[string]nstance.Arch{}
	pager := p.sizes.NewListPager(&armcompute.ResourceSKUsClientListOptions{Filter: new("location eq '" + p.o.Location + "'")})
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return nil, readError(err)
		}
		for _, s := range page.Value {
			if deref(s.ResourceType) != "virtualMachines" {
				continue
			}
			arch := nstance.AMD64 // sizes older than the capability
			for _, c := range s.Capabilities {
				if deref(c.Name) == "CpuArchitectureType" {
					arch = archOf(deref(c.Value))
				}
			}
			if arch != "" {
				archs[strings.ToLower(deref(s.Name))] = arch
			}
		}
	}
	return archs, nil
}
