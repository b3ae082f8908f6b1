package gcetest

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// A MachineType is a machine type that every zone has.
type MachineType struct {
	Name string
	Arch nstance.Arch // empty: not reported by the cloud
}

// The families of machine types, by what their names begin with, and what their machines
// have or lack ("Machine families resource and comparison guide", "GPU machine types",
// "Live migration process", "About nested virtualization", "Choose the number of threads
// per core", "Specify a minimum CPU platform" and "About Hyperdisk" of the Compute Engine
// documentation).
var (
	withAccelerators = []string{"a2-", "a3-", "a4-", "a4x-", "g2-", "g4-", "ct5lp-", "ct6e-", "tpu7x-"} // built in
	withoutMigration = []string{"h3-", "h4d-", "z3-highmem-176", "z3-highmem-88"}
	attachable       = []string{"n1-"} // the only ones that accelerators are attached to
	sharedCore       = []string{"e2-micro", "e2-small", "e2-medium", "f1-micro", "g1-small"}
	oneThread        = []string{"t2a-", "t2d-", "c4a-", "n4a-", "h3-", "h4d-", "axion-"} // a core has one thread
	withoutNested    = []string{"e2-", "t2a-", "t2d-", "c4a-", "n4a-", "n2d-", "c2d-", "c3d-", "h3-", "m1-"}
	withoutHyperdisk = []string{"e2-", "f1-", "g1-", "t2a-", "t2d-", "c2-", "c2d-", "n2d-", "n1-"}
	onlyHyperdisk    = []string{"c4-", "c4a-", "c4d-", "n4-", "n4a-", "n4d-", "x4-", "m4-", "h4d-"}
	withoutPlatform  = []string{"e2-", "t2a-", "t2d-", "c4a-", "n4a-", "f1-", "g1-"}
)

func inFamily(name string, families []string) bool {
	return slices.ContainsFunc(families, func(f string) bool { return strings.HasPrefix(name, f) })
}

// What there is in every zone.
var (
	diskTypes = []string{"pd-standard", "pd-balanced", "pd-ssd", "pd-extreme", "hyperdisk-balanced", "hyperdisk-balanced-high-availability",
		"hyperdisk-extreme", "hyperdisk-throughput", "hyperdisk-ml"}
	acceleratorTypes = []string{"nvidia-tesla-t4", "nvidia-tesla-p4", "nvidia-tesla-v100", "nvidia-tesla-p100"}
	cpuPlatforms     = []string{"Intel Sandy Bridge", "Intel Ivy Bridge", "Intel Haswell", "Intel Broadwell", "Intel Skylake", "Intel Cascade Lake",
		"Intel Ice Lake", "Intel Sapphire Rapids", "Intel Emerald Rapids", "AMD Rome", "AMD Milan", "AMD Genoa", "AMD Turin", "Ampere Altra", "Google Axion"}
)

// A catalog is the machine types and images that the project sees.
type catalog struct{ o *Options }

// checkFeatures refuses what a machine's type cannot have.
func (c *catalog) checkFeatures(m *machine) *apiError {
	name := lastPart(m.MachineType)
	bad := func(format string, args ...any) *apiError {
		return refuse(http.StatusBadRequest, "invalid", format, args...)
	}
	for _, a := range m.GuestAccelerators {
		kind := lastPart(a.AcceleratorType)
		switch {
		case !slices.Contains(acceleratorTypes, kind):
			return invalidField("resource.guestAccelerators[0].acceleratorType", a.AcceleratorType, "The referenced resource does not exist.")
		case !inFamily(name, attachable):
			return bad("[%s, %s] features are not compatible for creating instance.", name, kind)
		case !slices.Contains([]int{1, 2, 4, 8}, a.AcceleratorCount):
			return bad("The number of GPUs requested %d is not valid for %s.", a.AcceleratorCount, kind)
		}
	}
	if p := m.MinCPUPlatform; p != "" {
		switch {
		case inFamily(name, withoutPlatform):
			return bad("Setting minimum CPU platform is not supported for the selected machine type %s.", name)
		case !slices.Contains(cpuPlatforms, p):
			return invalidField("resource.minCpuPlatform", p, "CPU platform is not available in the zone.")
		}
	}
	if f := m.AdvancedMachineFeatures; f != nil {
		switch {
		case f.EnableNestedVirtualization && inFamily(name, withoutNested):
			return bad("Nested virtualization is not supported for the machine type %s.", name)
		case f.ThreadsPerCore != 0 && (inFamily(name, sharedCore) || f.ThreadsPerCore == 2 && inFamily(name, oneThread)):
			return bad("Setting the number of threads per core is not supported for the machine type %s.", name)
		}
	}
	for _, a := range m.ServiceAccounts {
		if !c.hasAccount(a.Email) {
			return bad("The user does not have access to service account '%s'. User: 'test'. Ask a project owner to grant you the iam.serviceAccountUser role on the service account.", a.Email)
		}
	}
	return nil
}

// hasAccount reports whether a service account is the project's: its default one, or one
// with an address in its domain.
func (c *catalog) hasAccount(email string) bool {
	return email == "default" || email == c.o.Account || strings.HasSuffix(email, "-compute@developer.gserviceaccount.com") ||
		strings.HasSuffix(email, "@"+c.o.Project+".iam.gserviceaccount.com")
}

// An Image is a disk image.
type Image struct {
	Project    string // test-project
	Name       string
	Family     string
	Arch       nstance.Arch // empty: not reported by the cloud
	Created    time.Time
	Deprecated string // DEPRECATED, OBSOLETE or DELETED
	DiskSizeGB int64  // 10

	Features []string // guest OS features, such as SEV_CAPABLE
}

func region(zone string) string {
	i := strings.LastIndexByte(zone, '-')
	return zone[:max(i, 0)]
}

func (o *Options) fillCatalog() {
	if o.Types == nil {
		o.Types = []MachineType{{"e2-small", nstance.AMD64}, {"e2-standard-2", nstance.AMD64}, {"t2a-standard-1", nstance.ARM64}}
	}
	if o.Images == nil {
		published := time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
		o.Images = []Image{
			{Project: "debian-cloud", Name: "debian-12-bookworm-v20261001", Family: "debian-12", Arch: nstance.AMD64, Created: published},
			{Project: "debian-cloud", Name: "debian-12-bookworm-v20261101", Family: "debian-12", Arch: nstance.AMD64, Created: published.AddDate(0, 1, 0)},
		}
	}
	if o.Subnets == nil {
		for _, z := range o.Zones {
			o.Subnets = append(o.Subnets, Subnet{Name: "default", Region: region(z), Range: netip.MustParsePrefix("10.0.0.0/20")})
		}
	}
}

// archWord is the API's word for an architecture.
var archWord = map[nstance.Arch]string{nstance.AMD64: "X86_64", nstance.ARM64: "ARM64"}

func (c *catalog) getType(q *call) (any, *apiError) {
	path := "projects/" + c.o.Project + "/zones/" + q.zone + "/machineTypes/" + q.name
	for _, t := range c.o.Types {
		if t.Name == q.name {
			out := map[string]any{
				"kind": "compute#machineType", "id": "1000", "name": t.Name, "zone": q.zone, "guestCpus": 2, "memoryMb": 4096,
				"selfLink": base + path,
			}
			if t.Arch != "" {
				out["architecture"] = archWord[t.Arch]
			}
			if inFamily(t.Name, withAccelerators) {
				out["accelerators"] = []map[string]any{{"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 1}}
			}
			return out, nil
		}
	}
	return nil, notFound(path)
}

// checkType refuses a machine type that the zone does not have.
func (c *catalog) checkType(m *machine) *apiError {
	name := lastPart(m.MachineType)
	if !strings.HasSuffix(m.MachineType, "zones/"+m.zone+"/machineTypes/"+name) {
		return invalidField("resource.machineType", m.MachineType, "The URL is malformed.")
	}
	for _, t := range c.o.Types {
		if t.Name == name {
			m.arch = t.Arch
			return nil
		}
	}
	return invalidField("resource.machineType", m.MachineType, "Machine type with name '%s' does not exist in zone '%s'.", name, m.zone)
}

// image finds the image that a path names.
func (c *catalog) image(path string) (Image, *apiError) {
	project := c.o.Project
	if _, rest, ok := strings.Cut(path, "projects/"); ok {
		project, _, _ = strings.Cut(rest, "/")
	}
	name := lastPart(path)
	for _, i := range c.imagesOf(project) {
		if i.Name == name {
			return i, nil
		}
	}
	if strings.Contains(path, "/family/") {
		if i, ok := newest(c.imagesOf(project), name); ok {
			return i, nil
		}
	}
	return Image{}, notFound("projects/" + project + "/global/images/" + name)
}

func (c *catalog) imagesOf(project string) []Image {
	var out []Image
	for _, i := range c.o.Images {
		if i.Project == "" {
			i.Project = c.o.Project
		}
		if i.Project == project {
			out = append(out, i)
		}
	}
	return out
}

// sharedImages reports whether a method reads the images of another project.
func (c *catalog) sharedImages(project string, m *route) bool {
	return strings.HasPrefix(m.method, "images.") && len(c.imagesOf(project)) > 0
}

func newest(images []Image, family string) (Image, bool) {
	var out Image
	for _, i := range images {
		if i.Family == family && i.Deprecated == "" && (out.Name == "" || i.Created.After(out.Created)) {
			out = i
		}
	}
	return out, out.Name != ""
}

// imageView is an image as the API shows it.
type imageView struct {
	Kind              string            `json:"kind"`
	ID                string            `json:"id"`
	Name              string            `json:"name"`
	Family            string            `json:"family,omitempty"`
	Status            string            `json:"status"`
	CreationTimestamp string            `json:"creationTimestamp"`
	Architecture      string            `json:"architecture,omitempty"`
	SelfLink          string            `json:"selfLink"`
	Deprecated        map[string]string `json:"deprecated,omitempty"`
}

func viewImage(i Image) *imageView {
	out := &imageView{
		Kind: "compute#image", ID: "2000", Name: i.Name, Family: i.Family, Status: "READY", CreationTimestamp: stamp(i.Created),
		Architecture: archWord[i.Arch], SelfLink: base + "projects/" + i.Project + "/global/images/" + i.Name,
	}
	if i.Deprecated != "" {
		out.Deprecated = map[string]string{"state": i.Deprecated}
	}
	return out
}

func (v *imageView) listName() string { return v.Name }

func (v *imageView) field(path string) (string, bool) {
	fields := map[string]string{"name": v.Name, "family": v.Family, "architecture": v.Architecture, "status": v.Status}
	value, known := fields[path]
	return value, known
}

func (c *catalog) listImages(q *call) (any, *apiError) {
	var all []resource
	for _, i := range c.imagesOf(q.r.PathValue("project")) {
		all = append(all, viewImage(i))
	}
	return c.o.list(q, "compute#imageList", all)
}
