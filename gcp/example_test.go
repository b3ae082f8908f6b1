package gcp_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/provider"
)

func ExampleNew() {
	// Credentials are found as Google's libraries find them, unless HTTP is set.
	p, err := gcp.New(context.Background(), "us-central1-a", &gcp.Options{Project: "my-project", HTTP: http.DefaultClient})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.ParkModes())
	// Output: [stopped hibernated]
}

func ExampleKind() {
	spec := nstance.MachineSpec{
		ID: "tst06dx9xy919t3v9kzd2xdsyzb3g", Owner: nstance.Owner{Installation: "0123", Cluster: "prod", Shard: "a", Tenant: "default"},
		Image: "projects/debian-cloud/global/images/family/debian-12", InstanceType: "e2-small", Token: "1",
		Market: nstance.Spot, Args: []byte(`{"termination_acton": "STOP"}`),
	}
	settings := provider.Settings{Zone: "us-central1-a", Options: []byte(`{"project": "my-project"}`)}
	fmt.Println(gcp.Kind().CheckSpec(settings, spec))
	// Output: args.termination_acton: no such argument (did you mean "termination_action"?)
}
