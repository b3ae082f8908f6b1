//go:build servers && linux

package tutorial_test

import (
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/internal/imds"
)

// onGCP returns a project with the page's subnet and image. The account of the server's machine
// has the page's role.
func onGCP(w *world) (*site, error) {
	const project, token, domain, addr = "my-project", "ya29.token", "storage.googleapis.com", "127.0.0.1:7070"
	text, err := w.read("gcp-role.yaml")
	if err != nil {
		return nil, err
	}
	var role struct {
		Permissions []string `json:"includedPermissions"`
	}
	if err := yaml.Unmarshal(text, &role); err != nil {
		return nil, err
	}
	c := gcetest.New(&gcetest.Options{
		Project: project, Token: token, Permissions: role.Permissions, Delays: delays, Hypervisor: w.hypervisor,
		Types:   []gcetest.MachineType{{Name: "e2-standard-2", Arch: nstance.AMD64}, {Name: "n2-standard-2", Arch: nstance.AMD64}},
		Images:  []gcetest.Image{{Project: project, Name: "nstance-worker-1", Family: "nstance-worker", Arch: nstance.AMD64, Created: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}},
		Subnets: []gcetest.Subnet{{Name: "nstance", Network: "nstance", Region: "us-central1", Range: netip.MustParsePrefix("10.0.0.0/20")}},
	})
	store, err := w.runStore("fake-gcs-server", addr, "-backend", "filesystem", "-filesystem-root", filepath.Join(w.dir, "buckets"), "-scheme", "http",
		"-host", "127.0.0.1", "-port", "7070", "-public-host", domain, "-external-url", "https://"+domain, "-log-level", "error")
	if err != nil {
		return nil, err
	}
	metadata := imds.New(&imds.Options{Protocol: imds.GCP})
	metadata.SetRaw("computeMetadata/v1/instance/service-accounts/default/token", bearer(token))
	return &site{
		Cloud: c, port: "443", metadata: metadata, hosts: []string{"compute.googleapis.com", domain}, api: byHost(domain, store, c),
		commands: commands{
			prepared: []string{
				"gcloud iam roles create nstance --project=my-project --file=gcp-role.yaml",
				"gcloud iam service-accounts create nstance-server --project=my-project",
				"gcloud projects add-iam-policy-binding my-project --role=projects/my-project/roles/nstance --member=serviceAccount:nstance-server@my-project.iam.gserviceaccount.com",
				"gcloud compute networks create nstance --project=my-project --subnet-mode=custom",
				"gcloud compute networks subnets create nstance --project=my-project --network=nstance --region=us-central1 --range=10.0.0.0/20",
				"gcloud compute firewall-rules create nstance-server --project=my-project --network=nstance --allow=tcp:8992,tcp:8994 --source-ranges=10.0.0.0/20 --target-tags=nstance-server",
			},
			acts: map[string]func(string) (string, error){
				"gcloud storage buckets create gs://my-project-nstance --project=my-project --location=us-central1": func(string) (string, error) {
					return "", call(store, http.MethodPost, "http://"+domain+"/storage/v1/b?project="+project, token, `{"name": "my-project-nstance"}`)
				},
				"gcloud compute instances list --project=my-project --filter=labels.nstance-managed=true": nameOfRunning(c),
				"gcloud compute instances delete ": func(rest string) (string, error) {
					name, where, _ := strings.Cut(rest, " ")
					if where != "--project=my-project --zone=us-central1-a --quiet" {
						return "", errNoStandIn
					}
					return "", call(c, http.MethodDelete, "https://compute.googleapis.com/compute/v1/projects/my-project/zones/us-central1-a/instances/"+name, token, "")
				},
			},
		},
	}, nil
}
