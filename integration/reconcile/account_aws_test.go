//go:build servers

package reconcile_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/provider/testcloud"
)

var otherCredential = ec2test.Credential{AccessKeyID: "AKIAI44QH8DHBEXAMPLE", SecretAccessKey: "je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY"}

// twoAccounts is an AWS endpoint that serves two accounts. Tests read the first.
type twoAccounts struct {
	*ec2test.Cloud
	other *ec2test.Cloud
}

func (c twoAccounts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ec2test.Accounts(c.Cloud, c.other).ServeHTTP(w, r)
}

func (c twoAccounts) Close() error {
	_ = c.other.Close()
	return c.Cloud.Close()
}

// TestServersOtherAccount: the next leader has credentials of another account,
// where every machine is definitely not found.
func TestServersOtherAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		other := ec2test.New(&ec2test.Options{Account: "210987654321", Credentials: []ec2test.Credential{otherCredential}})
		var reopen func(ec2test.Credential) nstance.Provider
		overHTTP(func(h testcloud.Hypervisor) *site {
			s := ec2Site(h)
			s.cloud = twoAccounts{s.cloud.(*ec2test.Cloud), other}
			s.provider = func(url string, client *http.Client) nstance.Provider {
				reopen = func(k ec2test.Credential) nstance.Provider { return openEC2(url, client, k) }
				return reopen(ec2test.DefaultCredential)
			}
			return s
		})(w)
		o := w.outside.(*wireCloud)
		w.wrap = func(to *leaderEnv) { to.provider = o }
		defer w.close()
		w.startLeader(webGroup(3))
		w.advance(5 * time.Minute)
		w.requireMembers(3)
		before := w.outside.Machines()

		w.stopLeader()
		o.provider = reopen(otherCredential)
		w.startLeader(webGroup(3))
		w.advance(time.Hour)
		require.Empty(t, other.Machines(), "nothing is created in the other account")
		require.ElementsMatch(t, before, w.outside.Machines())
		require.Zero(t, w.count(nstance.EventMachineGone, ""))

		w.stopLeader()
		require.ErrorContains(t, w.runError, "shard.provider: ")
		require.ErrorContains(t, w.runError, "210987654321/us-east-1")
		require.ErrorContains(t, w.runError, "123456789012/us-east-1")
		o.provider = reopen(ec2test.DefaultCredential)
		w.startLeader(webGroup(3))
		w.advance(time.Hour)
		w.requireMembers(3)
		require.ElementsMatch(t, before, w.outside.Machines(), "with the original credentials it continues")
	})
}
