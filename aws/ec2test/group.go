package ec2test

import "slices"

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
func (c *Cloud) describeSecurityGroups(_ call, in *securityGroupsInput) (*securityGroupsOutput, error) {
	if len(in.GroupNames) > 0 {
		return nil, refuse("VPCIdNotSpecified", "No default VPC for this user")
	}
	byID, all := map[string]securityGroupItem{}, []entry{}
	add := func(id, vpc string) {
		tags := c.o.Catalog.Tags[id]
		byID[id] = securityGroupItem{c.o.Account, id, id, id, vpc, tagItems(tags)}
		all = append(all, entry{id, filterable{"group-id": {id}, "group-name": {id}, "owner-id": {c.o.Account}, "vpc-id": {vpc}, "description": {id}}, tags})
	}
	for _, id := range c.o.Catalog.SecurityGroups {
		add(id, c.o.Catalog.VPC)
	}
	for _, id := range c.o.Catalog.ForeignGroups {
		add(id, foreignVPC)
	}
	ids, next, err := c.list(in.listInput, listing{
		filters: []string{"group-id", "group-name", "owner-id", "vpc-id", "description"}, asked: in.GroupIds,
		notFound: func(id string) error {
			return refuse("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
		},
		least: minPage, most: maxPage,
	}, all)
	if err != nil {
		return nil, err
	}
	out := &securityGroupsOutput{NextToken: next}
	for _, e := range all {
		if slices.Contains(ids, e.id) {
			out.Groups = append(out.Groups, byID[e.id])
		}
	}
	return out, nil
}
