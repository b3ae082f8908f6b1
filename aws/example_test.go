package aws_test

import (
	"fmt"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws"
	"github.com/nstance-go/nstance/provider"
)

func ExampleKind() {
	kind := aws.Kind()
	fmt.Println(kind.Check(provider.Settings{Region: "frankfurt"}))
	spec := nstance.MachineSpec{
		ID: "tst06dx9xy919t3v9kzd2xdsyzb3g", Owner: nstance.Owner{Installation: "i1", Cluster: "c", Shard: "a", Tenant: "default"},
		Image: "ami-0123456789abcdef0", InstanceType: "m7g.large", Token: "t", Args: []byte(`{"securty_group_ids": ["sg-1"]}`),
	}
	fmt.Println(kind.CheckSpec(provider.Settings{Region: "eu-central-1"}, spec))
	// Output:
	// region: "frankfurt" is not a region of AWS (name a region such as eu-central-1)
	// args.securty_group_ids: no such argument (did you mean "security_group_ids"?)
}
