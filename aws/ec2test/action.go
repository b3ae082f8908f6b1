package ec2test

// actions are the operations of the APIs that the cloud has.
var actions = map[string]action{
	"AssignPrivateIpAddresses":     operation(compute, (*Cloud).assignPrivateIPAddresses),
	"CancelSpotInstanceRequests":   operation(compute, (*Cloud).cancelSpotInstanceRequests),
	"CreateTags":                   operation(compute, (*Cloud).createTags),
	"DescribeAvailabilityZones":    operation(compute, (*Cloud).describeAvailabilityZones),
	"DescribeImages":               operation(compute, (*Cloud).describeImages),
	"DescribeInstanceTypes":        operation(compute, (*Cloud).describeInstanceTypes),
	"DescribeInstances":            operation(compute, (*Cloud).describeInstances),
	"DescribeNetworkInterfaces":    operation(compute, (*Cloud).describeNetworkInterfaces),
	"DescribeSecurityGroups":       operation(compute, (*Cloud).describeSecurityGroups),
	"DescribeSpotInstanceRequests": operation(compute, (*Cloud).describeSpotInstanceRequests),
	"DescribeSpotPriceHistory":     operation(compute, (*Cloud).describeSpotPriceHistory),
	"DescribeSubnets":              operation(compute, (*Cloud).describeSubnets),
	"GetConsoleOutput":             operation(compute, (*Cloud).getConsoleOutput),
	"GetSpotPlacementScores":       operation(compute, (*Cloud).getSpotPlacementScores),
	"RunInstances":                 operation(compute, (*Cloud).runInstances),
	"StartInstances":               operation(compute, (*Cloud).startInstances),
	"StopInstances":                operation(compute, (*Cloud).stopInstances),
	"TerminateInstances":           operation(compute, (*Cloud).terminateInstances),
	"UnassignPrivateIpAddresses":   operation(compute, (*Cloud).unassignPrivateIPAddresses),

	"DeregisterTargets":    operation(balancing, (*Cloud).deregisterTargets),
	"DescribeTargetGroups": operation(balancing, (*Cloud).describeTargetGroups),
	"DescribeTargetHealth": operation(balancing, (*Cloud).describeTargetHealth),
	"RegisterTargets":      operation(balancing, (*Cloud).registerTargets),

	"GetCallerIdentity": operation(identity, (*Cloud).getCallerIdentity),
}
