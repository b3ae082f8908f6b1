package ec2test

import (
	"slices"
	"strings"
)

// listInput is how resources that are named by ID are listed.
type listInput struct {
	dryRun
	pageInput
	Filters []filterInput `q:"Filter"`
}

// An entry is one resource of a listing.
type entry struct {
	id   string
	has  filterable
	tags map[string]string
}

// A listing is what one operation lists.
type listing struct {
	filters     []string
	asked       []string // IDs; one that is not there is refused with notFound
	notFound    func(id string) error
	least, most int // of MaxResults
}

// list returns the resources that a call requests, one page of them.
func (c *Cloud) list(in listInput, l listing, all []entry) (ids []string, next string, err error) {
	if err := checkFilters(in.Filters, append(l.filters, "tag-key")); err != nil {
		return nil, "", err
	}
	if len(l.asked) > 0 && in.MaxResults != nil {
		return nil, "", badCombination("MaxResults cannot be used with a list of IDs")
	}
	known := map[string]bool{}
	for _, e := range all {
		known[e.id] = true
		if (len(l.asked) == 0 || slices.Contains(l.asked, e.id)) && fits(in.Filters, e.has, e.tags) {
			ids = append(ids, e.id)
		}
	}
	for _, id := range l.asked {
		if !known[id] {
			return nil, "", l.notFound(id)
		}
	}
	return c.page(in.pageInput, ids, l.least, l.most)
}

type subnetsInput struct {
	listInput
	SubnetIds []string `q:"SubnetId"`
}

type subnetsOutput struct {
	Subnets   []subnetItem `xml:"subnetSet>item"`
	NextToken string       `xml:"nextToken,omitempty"`
}

type subnetItem struct {
	ID      string `xml:"subnetId"`
	ARN     string `xml:"subnetArn"`
	State   string `xml:"state"`
	Owner   string `xml:"ownerId"`
	VPC     string `xml:"vpcId"`
	Prefix  string `xml:"cidrBlock"`
	Free    int    `xml:"availableIpAddressCount"`
	Zone    string `xml:"availabilityZone"`
	Default bool   `xml:"defaultForAz"`
	Public  bool   `xml:"mapPublicIpOnLaunch"`

	Tags []tagItem `xml:"tagSet>item"`
}

func (c *Cloud) describeSubnets(_ call, in *subnetsInput) (*subnetsOutput, error) {
	var all []entry
	for _, s := range c.o.Catalog.Subnets {
		all = append(all, entry{s.ID, filterable{
			"subnet-id": {s.ID}, "availability-zone": {s.Zone}, "vpc-id": {c.o.Catalog.VPC}, "cidr-block": {s.Prefix.String()}, "state": {"available"},
		}, c.o.Catalog.Tags[s.ID]})
	}
	ids, next, err := c.list(in.listInput, listing{
		filters: []string{"subnet-id", "availability-zone", "vpc-id", "cidr-block", "state"}, asked: in.SubnetIds,
		notFound: func(id string) error {
			return refuse("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", id)
		},
		least: minPage, most: maxPage,
	}, all)
	if err != nil {
		return nil, err
	}
	out := &subnetsOutput{NextToken: next}
	for _, s := range c.o.Catalog.Subnets {
		if slices.Contains(ids, s.ID) {
			out.Subnets = append(out.Subnets, subnetItem{
				ID: s.ID, ARN: "arn:aws:ec2:" + c.o.Region + ":" + c.o.Account + ":subnet/" + s.ID, State: "available", Owner: c.o.Account,
				VPC: c.o.Catalog.VPC, Prefix: s.Prefix.String(), Free: c.freeCount(s), Zone: s.Zone, Default: true, Public: true,
				Tags: tagItems(c.o.Catalog.Tags[s.ID]),
			})
		}
	}
	return out, nil
}

type imagesInput struct {
	listInput
	ImageIds          []string `q:"ImageId"`
	Owners            []string `q:"Owner"`
	ExecutableUsers   []string `q:"ExecutableBy"`
	IncludeDeprecated bool
	IncludeDisabled   bool
}

type imagesOutput struct {
	Images    []imageItem `xml:"imagesSet>item"`
	NextToken string      `xml:"nextToken,omitempty"`
}

type imageItem struct {
	ID             string `xml:"imageId"`
	Location       string `xml:"imageLocation"`
	State          string `xml:"imageState"`
	Owner          string `xml:"imageOwnerId"`
	Created        string `xml:"creationDate"`
	Public         bool   `xml:"isPublic"`
	Arch           string `xml:"architecture"`
	Kind           string `xml:"imageType"`
	Name           string `xml:"name"`
	RootType       string `xml:"rootDeviceType"`
	RootName       string `xml:"rootDeviceName"`
	Virtualization string `xml:"virtualizationType"`
	Hypervisor     string `xml:"hypervisor"`
	ENA            bool   `xml:"enaSupport"`
}

// describeImages lists the images in no order that means anything, as EC2 does.
func (c *Cloud) describeImages(_ call, in *imagesInput) (*imagesOutput, error) {
	for _, o := range in.Owners {
		if !slices.Contains([]string{"self", "amazon", "aws-marketplace", "aws-backup-vault"}, o) && (len(o) != 12 || strings.Trim(o, "0123456789") != "") {
			return nil, refuse("InvalidUserID.Malformed", `Invalid user id: "%s"`, o)
		}
	}
	byID, all := map[string]Image{}, []entry{}
	for _, i := range c.o.Catalog.Images {
		if byID[i.ID] = i; len(in.Owners) > 0 && !slices.Contains(in.Owners, i.Owner) && (i.Owner != c.o.Account || !slices.Contains(in.Owners, "self")) {
			continue
		}
		all = append(all, entry{i.ID, filterable{
			"image-id": {i.ID}, "owner-id": {i.Owner}, "name": {i.Name}, "architecture": {i.Arch}, "state": {orElse(i.State, "available")},
			"creation-date": {stamp(i.Created)}, "is-public": {"true"}, "root-device-type": {"ebs"}, "virtualization-type": {"hvm"}, "image-type": {"machine"},
		}, c.o.Catalog.Tags[i.ID]})
	}
	ids, next, err := c.list(in.listInput, listing{
		filters: []string{
			"image-id", "owner-id", "name", "architecture", "state", "creation-date", "is-public", "root-device-type", "virtualization-type", "image-type",
		},
		asked: in.ImageIds, notFound: func(id string) error {
			return refuse("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
		},
		least: 1, most: maxPage,
	}, all)
	if err != nil {
		return nil, err
	}
	out := &imagesOutput{NextToken: next}
	for _, id := range ids {
		i := byID[id]
		out.Images = append(out.Images, imageItem{
			ID: id, Location: i.Owner + "/" + i.Name, State: orElse(i.State, "available"), Owner: i.Owner, Created: stamp(i.Created), Public: true,
			Arch: i.Arch, Kind: "machine", Name: i.Name, RootType: "ebs", RootName: rootDevice, Virtualization: "hvm", Hypervisor: "xen", ENA: true,
		})
	}
	return out, nil
}
