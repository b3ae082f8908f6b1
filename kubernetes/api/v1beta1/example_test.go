package v1beta1_test

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
)

// A program adds the resources to its scheme, and then knows their kinds.
func Example() {
	scheme := runtime.NewScheme()
	if err := infrav1.AddToScheme(scheme); err != nil {
		fmt.Println(err)
		return
	}
	pool := &infrav1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "workers"},
		Spec: infrav1.NstanceMachinePoolSpec{
			Shards: []string{"zone-a", "zone-b"},
			Shape:  infrav1.Shape{InstanceType: "m7g.large", Spot: &infrav1.SpotOptions{MaxPrice: "0.05"}},
		},
	}
	kinds, _, err := scheme.ObjectKinds(pool)
	fmt.Println(kinds, err)
	// Output: [infrastructure.cluster.x-k8s.io/v1beta1, Kind=NstanceMachinePool] <nil>
}
