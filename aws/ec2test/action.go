package ec2test

// actions are the operations of the APIs that the cloud has.
func (c *Cloud) actions(inventory *inventory, network *network, balancer *balancer) map[string]action {
	tags := &tagger{fleet: c.fleet}
	return map[string]action{
		"AssignPrivateIpAddresses":     operation(compute, network.assign),
		"CancelSpotInstanceRequests":   operation(compute, c.spot.cancel),
		"CreateTags":                   operation(compute, tags.createTags),
		"DescribeAvailabilityZones":    operation(compute, inventory.describeAvailabilityZones),
		"DescribeImages":               operation(compute, inventory.describeImages),
		"DescribeInstanceTypes":        operation(compute, inventory.describeInstanceTypes),
		"DescribeInstances":            operation(compute, c.fleet.describeInstances),
		"DescribeNetworkInterfaces":    operation(compute, network.describe),
		"DescribeSecurityGroups":       operation(compute, inventory.describeSecurityGroups),
		"DescribeSpotInstanceRequests": operation(compute, c.spot.describe),
		"DescribeSpotPriceHistory":     operation(compute, c.spot.describePrices),
		"DescribeSubnets":              operation(compute, inventory.describeSubnets),
		"GetConsoleOutput":             operation(compute, c.fleet.getConsoleOutput),
		"GetSpotPlacementScores":       operation(compute, c.scores.get),
		"RunInstances":                 operation(compute, c.launcher.runInstances),
		"StartInstances":               operation(compute, c.fleet.startInstances),
		"StopInstances":                operation(compute, c.fleet.stopInstances),
		"TerminateInstances":           operation(compute, c.fleet.terminateInstances),
		"UnassignPrivateIpAddresses":   operation(compute, network.unassignPrivateIPAddresses),

		"DeregisterTargets":    operation(balancing, balancer.deregister),
		"DescribeTargetGroups": operation(balancing, balancer.describeTargetGroups),
		"DescribeTargetHealth": operation(balancing, balancer.describeTargetHealth),
		"RegisterTargets":      operation(balancing, balancer.registerAll),

		"GetCallerIdentity": operation(identity, inventory.getCallerIdentity),
	}
}
