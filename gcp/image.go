package gcp

import (
	"cmp"
	"context"
	"regexp"
	"strings"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

var imageName = regexp.MustCompile(`^(family/)?[a-z0-9*-]{1,63}$`)

// architectures are the cloud's words for them.
var architectures = map[string]nstance.Arch{"X86_64": nstance.AMD64, "ARM64": nstance.ARM64}

// ResolveImage implements [nstance.ImageResolver]. The query's owner is the
// project that published the image, by default the provider's own; its name is a
// pattern of names, or family/ and a pattern of image families. Deprecated
// images do not fit, nor do those whose architecture the cloud does not say when
// the query names one.
func (p *Provider) ResolveImage(ctx context.Context, q nstance.ImageQuery) (string, error) {
	if !imageName.MatchString(q.Name) {
		return "", nstance.FieldError("image.name", "write a pattern such as debian-12-*, or family/debian-12", "%.80q is no pattern of image names", q.Name)
	}
	project := cmp.Or(q.Owner, p.o.Project)
	if !projectPattern.MatchString(project) {
		return "", nstance.FieldError("image.owner", "write the ID of a project, such as debian-cloud", "%.64q is no project ID", q.Owner)
	}
	field, pattern := "name", q.Name
	if family, ok := strings.CutPrefix(q.Name, "family/"); ok {
		field, pattern = "family", family
	}
	client, err := compute.NewImagesRESTClient(ctx, p.bound(ctx)...)
	if err != nil {
		return "", err
	}
	filter := field + ` eq "` + strings.ReplaceAll(pattern, "*", ".*") + `"` // other characters of names mean themselves in RE2
	it := client.List(ctx, &computepb.ListImagesRequest{Project: project, Filter: proto.String(filter)})
	var found *computepb.Image
	err = eachPage(ctx, "images", it.InternalFetch, func() any { return it.Response }, func(page []*computepb.Image) bool {
		for _, i := range page {
			if fits(i, q.Arch) && (found == nil || newer(i, found)) {
				found = i
			}
		}
		return true
	})
	switch {
	case err != nil:
		return "", err
	case found == nil:
		return "", nstance.Errorf(nstance.NotFound, "no image of project %s fits %s", project, q.Name)
	}
	return "projects/" + project + "/global/images/" + found.GetName(), nil
}

func fits(i *computepb.Image, arch nstance.Arch) bool {
	return i.GetDeprecated().GetState() == "" && i.GetStatus() == "READY" && (arch == "" || architectures[i.GetArchitecture()] == arch)
}

// newer compares by time, then by name. Timestamps of one project have one form.
func newer(a, b *computepb.Image) bool {
	return cmp.Or(cmp.Compare(a.GetCreationTimestamp(), b.GetCreationTimestamp()), cmp.Compare(a.GetName(), b.GetName())) > 0
}
