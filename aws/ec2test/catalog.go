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
type entry[I any] struct {
	id   string
	has  filterable
	tags map[string]string
	item I // in the answer
}

// A listing is what one operation lists.
type listing struct {
	filters     []string
	asked       []string // IDs; one that is not there is refused with notFound
	notFound    func(id string) error
	least, most int // of MaxResults
}

// list returns the resources that a call requests, one page of them in the order of
// their IDs.
func list[I any](o *Options, in listInput, l listing, all []entry[I]) (items []I, next string, err error) {
	if err := checkFilters(in.Filters, append(l.filters, "tag-key")); err != nil {
		return nil, "", err
	}
	if len(l.asked) > 0 && in.MaxResults != nil {
		return nil, "", badCombination("MaxResults cannot be used with a list of IDs")
	}
	var ids []string
	known := map[string]I{}
	for _, e := range all {
		known[e.id] = e.item
		if (len(l.asked) == 0 || slices.Contains(l.asked, e.id)) && fits(in.Filters, e.has, e.tags) {
			ids = append(ids, e.id)
		}
	}
	for _, id := range l.asked {
		if _, ok := known[id]; !ok {
			return nil, "", l.notFound(id)
		}
	}
	ids, next, err = o.page(in.pageInput, ids, l.least, l.most)
	for _, id := range ids {
		items = append(items, known[id])
	}
	return items, next, err
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

func (v *inventory) describeSubnets(_ call, in *subnetsInput) (*subnetsOutput, error) {
	var all []entry[subnetItem]
	for _, s := range v.o.Catalog.Subnets {
		tags := v.o.Catalog.Tags[s.ID]
		all = append(all, entry[subnetItem]{s.ID, filterable{
			"subnet-id": {s.ID}, "availability-zone": {s.Zone}, "vpc-id": {v.o.Catalog.VPC}, "cidr-block": {s.Prefix.String()}, "state": {"available"},
		}, tags, subnetItem{
			ID: s.ID, ARN: "arn:aws:ec2:" + v.o.Region + ":" + v.o.Account + ":subnet/" + s.ID, State: "available", Owner: v.o.Account,
			VPC: v.o.Catalog.VPC, Prefix: s.Prefix.String(), Free: v.network.freeCount(s), Zone: s.Zone, Default: true, Public: true, Tags: tagItems(tags),
		}})
	}
	items, next, err := list(v.o, in.listInput, listing{
		filters: []string{"subnet-id", "availability-zone", "vpc-id", "cidr-block", "state"}, asked: in.SubnetIds, notFound: unknownSubnet, least: minPage, most: maxPage,
	}, all)
	return &subnetsOutput{items, next}, err
}

func unknownSubnet(id string) error {
	return refuse("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", id)
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
func (v *inventory) describeImages(_ call, in *imagesInput) (*imagesOutput, error) {
	for _, o := range in.Owners {
		if !slices.Contains([]string{"self", "amazon", "aws-marketplace", "aws-backup-vault"}, o) && (len(o) != 12 || strings.Trim(o, "0123456789") != "") {
			return nil, refuse("InvalidUserID.Malformed", `Invalid user id: "%s"`, o)
		}
	}
	var all []entry[imageItem]
	for _, i := range v.o.Catalog.Images {
		if len(in.Owners) > 0 && !slices.Contains(in.Owners, i.Owner) && (i.Owner != v.o.Account || !slices.Contains(in.Owners, "self")) {
			continue
		}
		all = append(all, entry[imageItem]{i.ID, filterable{
			"image-id": {i.ID}, "owner-id": {i.Owner}, "name": {i.Name}, "architecture": {i.Arch}, "state": {orElse(i.State, "available")},
			"creation-date": {stamp(i.Created)}, "is-public": {"true"}, "root-device-type": {"ebs"}, "virtualization-type": {"hvm"}, "image-type": {"machine"},
		}, v.o.Catalog.Tags[i.ID], imageItem{
			ID: i.ID, Location: i.Owner + "/" + i.Name, State: orElse(i.State, "available"), Owner: i.Owner, Created: stamp(i.Created), Public: true,
			Arch: i.Arch, Kind: "machine", Name: i.Name, RootType: "ebs", RootName: rootDevice, Virtualization: "hvm", Hypervisor: "xen", ENA: true,
		}})
	}
	items, next, err := list(v.o, in.listInput, listing{
		filters: []string{
			"image-id", "owner-id", "name", "architecture", "state", "creation-date", "is-public", "root-device-type", "virtualization-type", "image-type",
		},
		asked: in.ImageIds, notFound: unknownImage, least: 1, most: maxPage,
	}, all)
	return &imagesOutput{items, next}, err
}

func unknownImage(id string) error {
	return refuse("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", id)
}
