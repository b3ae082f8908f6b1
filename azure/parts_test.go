package azure_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const (
	putDisk = "DisksClient.BeginCreateOrUpdate"
	putIP   = "PublicIPAddressesClient.BeginCreateOrUpdate"

	own         = "/subscriptions/" + subscription + "/resourceGroups/machines/providers/"
	keys        = own + "Microsoft.Compute/diskEncryptionSets/keys"
	reservation = own + "Microsoft.Compute/capacityReservationGroups/reserved"
	proximity   = own + "Microsoft.Compute/proximityPlacementGroups/near"
	set         = own + "Microsoft.Compute/availabilitySets/set"
	firewall    = own + "Microsoft.Network/networkSecurityGroups/web"
	frontends   = own + "Microsoft.Network/applicationSecurityGroups/frontends"
)

// everything are the arguments for a machine with all kinds of parts.
func everything() map[string]any {
	return map[string]any{
		"zone": "1", "public_ip": true, "ipv6": true, "public_ipv6": true, "network_security_group": firewall,
		"application_security_groups": []string{frontends}, "proximity_placement_group": proximity, "system_assigned_identity": true,
		"interfaces": []map[string]any{{"subnet": subnetB, "network_security_group": firewall, "application_security_groups": []string{frontends}}},
		"data_disks": []map[string]any{
			{"size_gb": 100, "type": "PremiumV2_LRS", "iops": 4000, "throughput_mb": 200, "disk_encryption_set": keys},
			{"size_gb": 64, "type": "Premium_LRS", "caching": "ReadOnly", "disk_encryption_set": keys},
			{"size_gb": 32, "type": "UltraSSD_LRS"},
		},
		"os_disk": map[string]any{"disk_encryption_set": keys}, "encryption_at_host": true,
	}
}

func dual() *armtest.Options { return &armtest.Options{DualStack: []string{subnetA}} }

// A site is a test cloud behind a real socket, and the provider on it.
type site struct {
	t      *testing.T
	cloud  *armtest.Cloud
	server *httptest.Server
	p      *azure.Provider
}

func newSite(t *testing.T, o *armtest.Options) site {
	t.Helper()
	cloud, server := serve(t, o)
	p, err := azure.New(options(t, server))
	require.NoError(t, err)
	return site{t, cloud, server, p}
}

// create makes a machine with arguments that validation accepts too.
func (s site) create(change map[string]any) (nstance.MachineSpec, nstance.Machine) {
	s.t.Helper()
	spec := newSpec(s.t)
	spec.Args = args(s.t, change)
	require.NoError(s.t, azure.Kind().CheckSpec(settings, spec))
	m, err := s.p.Create(s.t.Context(), spec)
	require.NoError(s.t, err)
	return spec, m
}

// read returns a resource of the machines' group as Azure shows it.
func (s site) read(kind, name string) string {
	s.t.Helper()
	return raw(s.t, s.server.Client(), s.server.URL+own+kind+"/"+name+"?api-version=2025-04-01")
}

// put makes a resource in the machines' group.
func (s site) put(path, body string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPut, s.server.URL+own+path+"?api-version=2025-04-01", strings.NewReader(body))
	require.NoError(s.t, err)
	req.Header.Set("Authorization", "Bearer secret")
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.server.Client().Do(req)
	require.NoError(s.t, err)
	require.NoError(s.t, resp.Body.Close())
	require.Contains(s.t, []int{http.StatusCreated, http.StatusOK}, resp.StatusCode)
}

func (s site) machine(m nstance.Machine) string {
	return s.read("Microsoft.Compute/virtualMachines", string(m.ID))
}

// gone deletes a machine until it is gone, and requires that nothing is left.
func gone(t *testing.T, cloud *armtest.Cloud, p *azure.Provider, m nstance.Machine) {
	t.Helper()
	pause := 5 * time.Millisecond
	for began := time.Now(); ; <-time.After(pause) {
		pause = min(2*pause, time.Minute)
		err := p.Delete(t.Context(), m)
		if nstance.CodeOf(err) == nstance.NotFound {
			break
		}
		if err != nil {
			require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
		}
		require.Less(t, time.Since(began), time.Hour)
	}
	require.Empty(t, cloud.Left())
}

// TestDataDisks: disks come with the machine, those with a speed of their own before it, and
// all go with it.
func TestDataDisks(t *testing.T) {
	s := newSite(t, nil)
	spec, m := s.create(map[string]any{"zone": "2", "data_disks": []map[string]any{
		{"size_gb": 128, "type": "Premium_LRS", "caching": "ReadOnly"},
		{"size_gb": 512, "type": "PremiumV2_LRS", "iops": 8000, "throughput_mb": 400},
		{"size_gb": 64, "type": "UltraSSD_LRS"},
		{"size_gb": 8192, "type": "StandardSSD_LRS"},
	}})
	var vm struct {
		Properties struct {
			AdditionalCapabilities struct {
				UltraSSDEnabled bool `json:"ultraSSDEnabled"`
			} `json:"additionalCapabilities"`
			StorageProfile struct {
				DataDisks []struct {
					Lun          int    `json:"lun"`
					Name         string `json:"name"`
					CreateOption string `json:"createOption"`
					DeleteOption string `json:"deleteOption"`
					Caching      string `json:"caching"`
					Size         int    `json:"diskSizeGB"`
					ManagedDisk  struct {
						ID   string `json:"id"`
						Type string `json:"storageAccountType"`
					} `json:"managedDisk"`
				} `json:"dataDisks"`
			} `json:"storageProfile"`
		} `json:"properties"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.machine(m)), &vm))
	require.True(t, vm.Properties.AdditionalCapabilities.UltraSSDEnabled)
	var got []string
	for _, d := range vm.Properties.StorageProfile.DataDisks {
		require.Equal(t, fmt.Sprintf("%s-data-%d", spec.ID, d.Lun), d.Name)
		require.Equal(t, "Delete", d.DeleteOption)
		got = append(got, fmt.Sprint(d.Lun, " ", d.CreateOption, " ", d.Size, " ", d.ManagedDisk.Type, " ", d.Caching))
		require.Equal(t, d.CreateOption == "Attach", d.ManagedDisk.ID != "")
	}
	require.Equal(t, []string{"0 Empty 128 Premium_LRS ReadOnly", "1 Attach 0  None", "2 Empty 64 UltraSSD_LRS None", "3 Empty 8192 StandardSSD_LRS None"}, got)

	disk := s.read("Microsoft.Compute/disks", string(spec.ID)+"-data-1")
	for _, want := range []string{`"diskIOPSReadWrite":8000`, `"diskMBpsReadWrite":400`, `"zones":["2"]`, `"PremiumV2_LRS"`, `"diskSizeGB":512`, `"nstance-instance-id":"` + string(spec.ID) + `"`} {
		require.Contains(t, disk, want)
	}
	gone(t, s.cloud, s.p, m)
	s.create(nil)
	require.Equal(t, 1, s.cloud.Faults.Calls()[putDisk], "other disks come with their machine")
}

// TestPublicAddresses: an address of each kind, which the machine shows.
func TestPublicAddresses(t *testing.T) {
	s := newSite(t, dual())
	spec, m := s.create(map[string]any{"public_ip": true, "ipv6": true, "public_ipv6": true})
	var all []string
	for _, a := range m.Addresses {
		all = append(all, a.String())
	}
	require.Len(t, all, 4)
	require.True(t, strings.HasPrefix(all[0], "10.1.") && strings.HasPrefix(all[1], "fd00:1:") && strings.HasPrefix(all[2], "203.0.113.") && strings.HasPrefix(all[3], "2001:db8:ffff:"), "%v", all)
	got, err := s.p.Get(t.Context(), spec.ID)
	require.NoError(t, err)
	require.Equal(t, m.Addresses, got.Addresses)
	nic := s.read("Microsoft.Network/networkInterfaces", string(spec.ID))
	require.Contains(t, nic, `"privateIPAddressVersion":"IPv6"`)
	for _, version := range []string{"ipv4", "ipv6"} {
		require.Contains(t, nic, own+"Microsoft.Network/publicIPAddresses/"+string(spec.ID)+"-"+version)
		require.Contains(t, s.read("Microsoft.Network/publicIPAddresses", string(spec.ID)+"-"+version), `"Standard"`)
	}
	gone(t, s.cloud, s.p, m)

	_, m = s.create(map[string]any{"ipv6": true})
	require.Len(t, m.Addresses, 2)
	require.Contains(t, s.machine(m), `"deleteOption":"Delete"`)
	require.NotContains(t, s.machine(m), `"deleteOption":"Detach"`, "a machine without parts keeps nothing")
	gone(t, s.cloud, s.p, m)

	spec = newSpec(t)
	spec.Subnet, spec.Args = subnetB, args(t, map[string]any{"ipv6": true})
	_, err = s.p.Create(t.Context(), spec)
	code(t, nstance.Invalid, err)
	require.ErrorContains(t, err, "IPv6")
}

// TestInterfaces: the first interface is the primary one, and each has its own settings.
func TestInterfaces(t *testing.T) {
	s := newSite(t, nil)
	spec, m := s.create(map[string]any{
		"network_security_group": firewall, "application_security_groups": []string{frontends},
		"interfaces": []map[string]any{{"subnet": subnetB, "application_security_groups": []string{frontends}, "ip_forwarding": true}, {"subnet": subnetA, "accelerated_networking": true}},
	})
	vm := s.machine(m)
	for i, name := range []string{"", "-nic-1", "-nic-2"} {
		require.Contains(t, vm, own+"Microsoft.Network/networkInterfaces/"+string(spec.ID)+name+`"`)
		nic := s.read("Microsoft.Network/networkInterfaces", string(spec.ID)+name)
		require.Equal(t, i < 2, strings.Contains(nic, frontends), "%s", nic)
		require.Equal(t, i == 0, strings.Contains(nic, firewall))
		require.Equal(t, i == 1, strings.Contains(nic, subnetB))
		require.Equal(t, i == 1, strings.Contains(nic, `"enableIPForwarding":true`))
		require.Equal(t, i == 2, strings.Contains(nic, `"enableAcceleratedNetworking":true`))
	}
	require.Equal(t, 1, strings.Count(vm, `"primary":true`))
	gone(t, s.cloud, s.p, m)
}

// TestEncryption: the key of an encryption set, for each disk, and encryption at the host.
func TestEncryption(t *testing.T) {
	s := newSite(t, nil)
	spec, m := s.create(map[string]any{
		"zone": "1", "encryption_at_host": true, "os_disk": map[string]any{"disk_encryption_set": keys},
		"data_disks": []map[string]any{{"size_gb": 32, "disk_encryption_set": keys}, {"size_gb": 32, "type": "PremiumV2_LRS", "iops": 3000, "disk_encryption_set": keys}},
	})
	vm := s.machine(m)
	require.Contains(t, vm, `"encryptionAtHost":true`)
	require.Equal(t, 2, strings.Count(vm, `"diskEncryptionSet":{"id":"`+keys+`"}`))
	disk := s.read("Microsoft.Compute/disks", string(spec.ID)+"-data-1")
	require.Contains(t, disk, `"diskEncryptionSetId":"`+keys+`"`)
	require.Contains(t, disk, `"EncryptionAtRestWithCustomerKey"`)
}

// TestConfidentialDisk: a disk that the machine encrypts itself, with a key of the user's.
func TestConfidentialDisk(t *testing.T) {
	s := newSite(t, nil)
	spec := newSpec(t)
	spec.InstanceType = "Standard_EC4as_v5"
	spec.Args = args(t, map[string]any{"security_type": "ConfidentialVM", "os_disk": map[string]any{"security_encryption": "DiskWithVMGuestState", "disk_encryption_set": keys}})
	require.NoError(t, azure.Kind().CheckSpec(settings, spec))
	m, err := s.p.Create(t.Context(), spec)
	require.NoError(t, err)
	vm := s.machine(m)
	for _, want := range []string{`"securityEncryptionType":"DiskWithVMGuestState"`, `"secureBootEnabled":true`, `"vTpmEnabled":true`} {
		require.Contains(t, vm, want)
	}
	require.Regexp(t, `"securityProfile":\{"diskEncryptionSet":\{"id":"`+keys+`"\}`, vm)

	spec = newSpec(t)
	spec.Args = args(t, map[string]any{"security_type": "TrustedLaunch", "secure_boot": false, "vtpm": true})
	m, err = s.p.Create(t.Context(), spec)
	require.NoError(t, err)
	require.Contains(t, s.machine(m), `"uefiSettings":{"secureBootEnabled":false,"vTpmEnabled":true}`)
}

// TestPlacement: reservations, placement groups, availability sets and identities arrive.
func TestPlacement(t *testing.T) {
	user := own + "Microsoft.ManagedIdentity/userAssignedIdentities/app"
	for want, change := range map[string]map[string]any{
		`"capacityReservation":{"capacityReservationGroup":{"id":"` + reservation + `"}}`: {"capacity_reservation_group": reservation, "zone": "1"},
		`"proximityPlacementGroup":{"id":"` + proximity + `"}`:                            {"proximity_placement_group": proximity},
		`"availabilitySet":{"id":"` + set + `"}`:                                          {"availability_set": set, "proximity_placement_group": proximity},
		`"type":"SystemAssigned"`:                                                         {"system_assigned_identity": true},
		`"type":"SystemAssigned, UserAssigned"`:                                           {"system_assigned_identity": true, "user_assigned_identities": []string{user}},
	} {
		s := newSite(t, nil)
		_, m := s.create(change)
		require.Contains(t, s.machine(m), want)
		gone(t, s.cloud, s.p, m)
	}
}

// TestNoZone: a template without zone, in a shard with one.
func TestNoZone(t *testing.T) {
	_, server := serve(t, nil)
	o := options(t, server)
	o.Zone = "2"
	p, err := azure.New(o)
	require.NoError(t, err)
	for zone, want := range map[string]string{"": "2", "1": "1", "none": ""} {
		s := newSpec(t)
		s.Args = args(t, map[string]any{"zone": zone})
		m, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, want, m.Zone)
	}
}

// TestNothingLeftOfParts: another server, which knows the ID alone, finds everything that a
// create has made when it ended at any of its writes, or that Azure left behind.
func TestNothingLeftOfParts(t *testing.T) {
	type write struct {
		op string
		n  int
	}
	for _, w := range []write{{putNIC, 1}, {putNIC, 2}, {putNIC, 3}, {putIP, 1}, {putIP, 2}, {putDisk, 1}, {putVM, 1}} {
		for _, lost := range []testcloud.Lost{testcloud.LostRequest, testcloud.LostAnswer} {
			t.Run(fmt.Sprintf("%s %d %s", w.op, w.n, lost), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := dual()
					o.Network, o.Delays = time.Second, testcloud.Delays{Start: time.Second, Delete: 10 * time.Second}
					cloud, connect := within(t, o)
					cloud.Faults.Next(w.op, append(slices.Repeat([]testcloud.Fault{{}}, w.n-1), testcloud.Fault{Lost: lost})...)
					s := newSpec(t)
					s.Args = args(t, everything())
					_, err := connect("secret", "").Create(t.Context(), s)
					require.Error(t, err)
					gone(t, cloud, connect("secret", ""), nstance.Machine{ID: s.ID, Owner: s.Owner})
				})
			})
		}
	}
	for name, end := range map[string]func(*testing.T, *armtest.Cloud, nstance.Machine){
		"deleted": func(*testing.T, *armtest.Cloud, nstance.Machine) {},
		"evicted": func(t *testing.T, cloud *armtest.Cloud, m nstance.Machine) {
			require.NoError(t, cloud.Reclaim(m.ProviderID, 0))
			<-time.After(time.Minute)
			require.Empty(t, cloud.Machines())
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := dual()
				o.Network = time.Second
				cloud, connect := within(t, o)
				s := newSpec(t)
				change := everything()
				change["eviction_policy"] = "Delete"
				s.Market, s.Args = nstance.Spot, args(t, change)
				m, err := connect("secret", "").Create(t.Context(), s)
				require.NoError(t, err)
				end(t, cloud, m)
				gone(t, cloud, connect("secret", ""), m)
			})
		})
	}
	t.Run("failed late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cloud, connect := within(t, dual())
			cloud.FailCreates(1, "InternalExecutionError", "no")
			s := newSpec(t)
			s.Args = args(t, everything())
			m, err := connect("secret", "").Create(t.Context(), s)
			require.NoError(t, err)
			gone(t, cloud, connect("secret", ""), m)
		})
	})
}

// TestPartsOnce: a create that another server repeats after any lost answer makes each part
// once.
func TestPartsOnce(t *testing.T) {
	for _, op := range []string{putNIC, putIP, putDisk} {
		synctest.Test(t, func(t *testing.T) {
			cloud, connect := within(t, dual())
			cloud.Faults.Next(op, testcloud.Fault{Lost: testcloud.LostAnswer})
			s := newSpec(t)
			s.Args = args(t, everything())
			_, err := connect("secret", "").Create(t.Context(), s)
			code(t, nstance.Unavailable, err)
			m, err := connect("secret", "").Create(t.Context(), s)
			require.NoError(t, err)
			require.Len(t, m.Addresses, 4)
			require.Len(t, cloud.Left(), 1+2+2+4, "%v", cloud.Left())
		})
	}
}

// TestForeignParts: what has the name of a part and other marks is neither used nor deleted.
func TestForeignParts(t *testing.T) {
	s := newSite(t, nil)
	spec := newSpec(t)
	spec.Args = args(t, map[string]any{"public_ip": true})
	body := `{"location": "westeurope", "sku": {"name": "Standard"}, "tags": {"nstance-instance-id": "` + string(spec.ID) + `"}, "properties": {"publicIPAllocationMethod": "Static"}}`
	s.put("Microsoft.Network/publicIPAddresses/"+string(spec.ID)+"-ipv4", body)

	_, err := s.p.Create(t.Context(), spec)
	code(t, nstance.Conflict, err)
	code(t, nstance.Conflict, s.p.Delete(t.Context(), nstance.Machine{ID: spec.ID, Owner: spec.Owner}))
	require.Contains(t, s.cloud.Left(), "address "+string(spec.ID)+"-ipv4")
}

// TestForeignDisk: a disk of our name with the marks of another owner is not deleted.
func TestForeignDisk(t *testing.T) {
	s := newSite(t, nil)
	spec := newSpec(t)
	s.put("Microsoft.Compute/disks/"+string(spec.ID), `{"location": "westeurope", "sku": {"name": "Premium_LRS"}, "tags": {"nstance-instance-id": "`+string(spec.ID)+`", "nstance-shard": "other"}, "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 8}}`)
	code(t, nstance.Conflict, s.p.Delete(t.Context(), nstance.Machine{ID: spec.ID, Owner: spec.Owner}))
	require.Contains(t, s.cloud.Left(), "disk "+string(spec.ID))
}

// TestOrderOfDeletion: the first interface, which names the parts, is deleted after them, also where
// one is being deleted for long.
func TestOrderOfDeletion(t *testing.T) {
	s := newSite(t, nil)
	spec := newSpec(t)
	spec.Args = args(t, map[string]any{"public_ip": true})
	m := nstance.Machine{ID: spec.ID, Owner: spec.Owner}
	s.cloud.Faults.Next(putVM, testcloud.Fault{Answer: (&armtest.Refusal{Status: http.StatusConflict, Code: "SkuNotAvailable", Message: "no"}).ServeHTTP})
	_, err := s.p.Create(t.Context(), spec)
	code(t, nstance.Capacity, err)
	name := string(spec.ID) + "-ipv4"
	shown := strings.Replace(s.read("Microsoft.Network/publicIPAddresses", name), `"provisioningState":"Succeeded"`, `"provisioningState":"Deleting"`, 1)
	require.Contains(t, shown, "Deleting")
	s.cloud.Faults.Next("PublicIPAddressesClient.Get", testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(shown))
	}})
	require.NoError(t, s.p.Delete(t.Context(), m))
	require.Zero(t, s.cloud.Faults.Calls()[deleteNIC])
	gone(t, s.cloud, s.p, m)
}

// A wire remembers the requests that change something.
type wire struct {
	base http.RoundTripper
	mu   sync.Mutex
	sent []*http.Request
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	if r.Method == http.MethodPut || r.Method == http.MethodDelete {
		w.sent = append(w.sent, r)
	}
	w.mu.Unlock()
	return w.base.RoundTrip(r)
}

// TestConditionsOfWrites: a machine is put where there is none, and deleted without time to shut
// down: it has been drained.
func TestConditionsOfWrites(t *testing.T) {
	_, server := serve(t, nil)
	o := options(t, server)
	w := &wire{base: server.Client().Transport}
	o.Transport = &http.Client{Transport: w}
	p, err := azure.New(o)
	require.NoError(t, err)
	m, err := p.Create(t.Context(), newSpec(t))
	require.NoError(t, err)
	require.NoError(t, p.Delete(t.Context(), m))
	seen := map[string]int{}
	for _, r := range w.sent {
		switch vm := strings.Contains(r.URL.Path, "/virtualMachines/"); {
		case vm && r.Method == http.MethodPut:
			seen["machine put"]++
			require.Equal(t, "*", r.Header.Get("If-None-Match"))
		case vm:
			seen["machine deleted"]++
			require.Equal(t, "true", r.URL.Query().Get("forceDeletion"))
		}
	}
	require.Equal(t, map[string]int{"machine put": 1, "machine deleted": 1}, seen)
}

// TestCheckParts refuses offline what Azure would refuse, by the name of the argument.
func TestCheckParts(t *testing.T) {
	disks := func(d map[string]any) map[string]any { return map[string]any{"data_disks": []map[string]any{d}} }
	with := func(m map[string]any, name string, v any) map[string]any { m[name] = v; return m }
	many := slices.Repeat([]map[string]any{{"size_gb": 1}}, 65)
	for name, c := range map[string]struct {
		change map[string]any
		field  string
		spec   func(*nstance.MachineSpec)
	}{
		"many disks":         {map[string]any{"data_disks": many}, "args.data_disks", nil},
		"no size":            {disks(map[string]any{"type": "Premium_LRS"}), "args.data_disks[0].size_gb", nil},
		"large":              {disks(map[string]any{"size_gb": 40000}), "args.data_disks[0].size_gb", nil},
		"kind":               {disks(map[string]any{"size_gb": 8, "type": "fast"}), "args.data_disks[0].type", nil},
		"caching":            {disks(map[string]any{"size_gb": 8, "caching": "all"}), "args.data_disks[0].caching", nil},
		"cached ultra":       {with(disks(map[string]any{"size_gb": 8, "type": "UltraSSD_LRS", "caching": "ReadOnly"}), "zone", "1"), "args.data_disks[0].caching", nil},
		"cached large":       {disks(map[string]any{"size_gb": 4096, "caching": "ReadOnly"}), "args.data_disks[0].caching", nil},
		"speed of premium":   {disks(map[string]any{"size_gb": 8, "type": "Premium_LRS", "iops": 500}), "args.data_disks[0].iops", nil},
		"rate of premium":    {disks(map[string]any{"size_gb": 8, "type": "Premium_LRS", "throughput_mb": 500}), "args.data_disks[0].throughput_mb", nil},
		"slow":               {with(disks(map[string]any{"size_gb": 8, "type": "UltraSSD_LRS", "iops": 1}), "zone", "1"), "args.data_disks[0].iops", nil},
		"zone":               {disks(map[string]any{"size_gb": 8, "type": "PremiumV2_LRS"}), "args.zone", nil},
		"size without s":     {disks(map[string]any{"size_gb": 8, "type": "Premium_LRS"}), "args.data_disks[0].type", func(s *nstance.MachineSpec) { s.InstanceType = "Standard_D2_v5" }},
		"encryption set":     {disks(map[string]any{"size_gb": 8, "disk_encryption_set": proximity}), "args.data_disks[0].disk_encryption_set", nil},
		"key of the OS disk": {map[string]any{"os_disk": map[string]any{"disk_encryption_set": "keys"}}, "args.os_disk.disk_encryption_set", nil},

		"firmware":            {map[string]any{"vtpm": true}, "args.vtpm", nil},
		"boot":                {map[string]any{"security_type": "Standard", "secure_boot": true}, "args.secure_boot", nil},
		"encrypted by itself": {map[string]any{"security_type": "TrustedLaunch", "os_disk": map[string]any{"security_encryption": "VMGuestStateOnly"}}, "args.os_disk.security_encryption", nil},
		"confidential size":   {map[string]any{"security_type": "ConfidentialVM"}, "instance_type", nil},
		"enclaves":            {map[string]any{"security_type": "ConfidentialVM"}, "instance_type", func(s *nstance.MachineSpec) { s.InstanceType = "Standard_DC2s_v3" }},
		"no TPM":              {map[string]any{"security_type": "ConfidentialVM", "vtpm": false}, "args.vtpm", nil},
		"no secure boot":      {map[string]any{"security_type": "ConfidentialVM", "secure_boot": false, "os_disk": map[string]any{"security_encryption": "DiskWithVMGuestState"}}, "args.secure_boot", nil},
		"twice encrypted":     {map[string]any{"security_type": "ConfidentialVM", "encryption_at_host": true, "os_disk": map[string]any{"security_encryption": "DiskWithVMGuestState"}}, "args.encryption_at_host", nil},
		"confidential sleep":  {map[string]any{"security_type": "ConfidentialVM"}, "warm_pool.mode", func(s *nstance.MachineSpec) { s.InstanceType, s.Park = "Standard_DC2as_v5", nstance.ParkHibernated }},

		"public IPv6 alone":  {map[string]any{"public_ipv6": true}, "args.public_ipv6", nil},
		"subnet":             {map[string]any{"interfaces": []map[string]any{{"subnet": "b"}}}, "args.interfaces[0].subnet", nil},
		"other network":      {map[string]any{"interfaces": []map[string]any{{"subnet": strings.Replace(subnetB, "main", "other", 1)}}}, "args.interfaces[0].subnet", nil},
		"many interfaces":    {map[string]any{"interfaces": slices.Repeat([]map[string]any{{"subnet": subnetB}}, 8)}, "args.interfaces", nil},
		"application group":  {map[string]any{"application_security_groups": []string{firewall}}, "args.application_security_groups[0]", nil},
		"interface's groups": {map[string]any{"interfaces": []map[string]any{{"subnet": subnetB, "application_security_groups": []string{""}}}}, "args.interfaces[0].application_security_groups[0]", nil},

		"reserved spot":      {map[string]any{"capacity_reservation_group": reservation}, "args.capacity_reservation_group", func(s *nstance.MachineSpec) { s.Market = nstance.Spot }},
		"reserved and near":  {map[string]any{"capacity_reservation_group": reservation, "proximity_placement_group": proximity}, "args.capacity_reservation_group", nil},
		"reserved in a set":  {map[string]any{"capacity_reservation_group": reservation, "availability_set": set}, "args.capacity_reservation_group", nil},
		"reserved ultra":     {with(with(disks(map[string]any{"size_gb": 8, "type": "UltraSSD_LRS"}), "zone", "1"), "capacity_reservation_group", reservation), "args.capacity_reservation_group", nil},
		"reserved sleep":     {map[string]any{"capacity_reservation_group": reservation}, "args.capacity_reservation_group", func(s *nstance.MachineSpec) { s.Park = nstance.ParkHibernated }},
		"no reservation":     {map[string]any{"capacity_reservation_group": proximity}, "args.capacity_reservation_group", nil},
		"no placement group": {map[string]any{"proximity_placement_group": set}, "args.proximity_placement_group", nil},
		"set in a zone":      {map[string]any{"availability_set": set, "zone": "1"}, "args.availability_set", nil},
		"set elsewhere":      {map[string]any{"availability_set": strings.Replace(set, "machines", "net", 1)}, "args.availability_set", nil},
		"spot in a set":      {map[string]any{"availability_set": set}, "args.availability_set", func(s *nstance.MachineSpec) { s.Market = nstance.Spot }},
		"fast disk in a set": {with(with(disks(map[string]any{"size_gb": 8, "type": "PremiumV2_LRS"}), "zone", "none"), "availability_set", set), "args.availability_set", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpec(t)
			s.Args = args(t, c.change)
			if c.spec != nil {
				c.spec(&s)
			}
			err := azure.Kind().CheckSpec(settings, s)
			code(t, nstance.Invalid, err)
			var e *nstance.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.field, e.Field)
			require.NotEmpty(t, e.Remedy)
		})
	}
}

// TestRefusedParts: what does not show offline, Azure refuses, and the test cloud as well.
func TestRefusedParts(t *testing.T) {
	for name, change := range map[string]map[string]any{
		"encryption set":             {"os_disk": map[string]any{"disk_encryption_set": keys}},
		"key of a disk":              {"zone": "1", "data_disks": []map[string]any{{"size_gb": 8, "type": "PremiumV2_LRS", "iops": 3000, "disk_encryption_set": keys}}},
		"reservation":                {"capacity_reservation_group": reservation},
		"placement group":            {"proximity_placement_group": proximity},
		"availability set":           {"availability_set": set},
		"application security group": {"application_security_groups": []string{frontends}},
		"no zone here":               {"zone": "none", "data_disks": []map[string]any{{"size_gb": 8, "type": "UltraSSD_LRS"}}},
		"too fast for its size":      {"zone": "1", "data_disks": []map[string]any{{"size_gb": 8, "type": "PremiumV2_LRS", "iops": 9000}}},
		"too much for its speed":     {"zone": "1", "data_disks": []map[string]any{{"size_gb": 800, "type": "PremiumV2_LRS", "iops": 3000, "throughput_mb": 1000}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, &armtest.Options{Resources: []string{firewall}})
			spec := newSpec(t)
			spec.Args = args(t, change)
			require.NoError(t, azure.Kind().CheckSpec(settings, spec))
			_, err := s.p.Create(t.Context(), spec)
			code(t, nstance.Invalid, err)
			require.Empty(t, s.cloud.Machines())
			gone(t, s.cloud, s.p, nstance.Machine{ID: spec.ID, Owner: spec.Owner})
		})
	}
	s := newSite(t, &armtest.Options{NoZones: true})
	s.create(map[string]any{"zone": "none", "data_disks": []map[string]any{{"size_gb": 8, "type": "PremiumV2_LRS", "iops": 3000}}})
}
