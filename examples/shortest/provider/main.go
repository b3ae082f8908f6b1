// Command provider creates a machine at the shortest provider that keeps the whole
// contract, as its test shows: machines in memory.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/nstance-go/nstance"
)

func main() {
	var machines nstance.Provider = &shelf{machines: map[nstance.InstanceID]item{}}
	m, err := machines.Create(context.Background(), nstance.MachineSpec{
		ID: "web06dx9xy919t3v9kzd2xdsyzb3g", Owner: nstance.Owner{Installation: "example", Cluster: "demo", Shard: "a", Tenant: nstance.DefaultTenant},
		Group: "web", InstanceType: "small", Token: "first",
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.ProviderID, m.Status)
}
