package ec2

// actions are the operations of the APIs that the cloud has.
var actions = map[string]action{
	"CreateTags":         operation(compute, (*Cloud).createTags),
	"DescribeInstances":  operation(compute, (*Cloud).describeInstances),
	"RunInstances":       operation(compute, (*Cloud).runInstances),
	"StartInstances":     operation(compute, (*Cloud).startInstances),
	"StopInstances":      operation(compute, (*Cloud).stopInstances),
	"TerminateInstances": operation(compute, (*Cloud).terminateInstances),
}
