package ec2test

type securityGroupsInput struct {
	listInput
	GroupIds   []string `q:"GroupId"`
	GroupNames []string `q:"GroupName"`
}

type securityGroupsOutput struct {
	Groups    []securityGroupItem `xml:"securityGroupInfo>item"`
	NextToken string              `xml:"nextToken,omitempty"`
}

// securityGroupItem is the type SecurityGroup of the API.
type securityGroupItem struct {
	Owner       string    `xml:"ownerId"`
	ID          string    `xml:"groupId"`
	Name        string    `xml:"groupName"`
	Description string    `xml:"groupDescription"`
	VPC         string    `xml:"vpcId"`
	Tags        []tagItem `xml:"tagSet>item"`
}

// foreignVPC is another VPC than the catalog's.
const foreignVPC = "vpc-0f0e0d0c0b0a09080"

// describeSecurityGroups lists the groups of the catalog's VPC, and those of another one.
func (v *inventory) describeSecurityGroups(_ call, in *securityGroupsInput) (*securityGroupsOutput, error) {
	if len(in.GroupNames) > 0 {
		return nil, refuse("VPCIdNotSpecified", "No default VPC for this user")
	}
	var all []entry[securityGroupItem]
	add := func(vpc string, ids []string) {
		for _, id := range ids {
			tags := v.o.Catalog.Tags[id]
			has := filterable{"group-id": {id}, "group-name": {id}, "owner-id": {v.o.Account}, "vpc-id": {vpc}, "description": {id}}
			all = append(all, entry[securityGroupItem]{id, has, tags, securityGroupItem{v.o.Account, id, id, id, vpc, tagItems(tags)}})
		}
	}
	add(v.o.Catalog.VPC, v.o.Catalog.SecurityGroups)
	add(foreignVPC, v.o.Catalog.ForeignGroups)
	items, next, err := list(v.o, in.listInput, listing{
		filters: []string{"group-id", "group-name", "owner-id", "vpc-id", "description"}, asked: in.GroupIds, notFound: unknownGroup, least: minPage, most: maxPage,
	}, all)
	return &securityGroupsOutput{items, next}, err
}

func unknownGroup(id string) error {
	return refuse("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
}
