package operator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
	infrav1 "github.com/nstance-go/nstance/kubernetes/api/v1beta1"
	"github.com/nstance-go/nstance/kubernetes/internal/protection"
)

const (
	// claimDuration is how long a machine is claimed for, and maxClaim the longest.
	claimDuration = time.Hour
	maxClaim      = 24 * time.Hour

	// maxClaims bounds the claims of one SpotProtection that have not ended.
	maxClaims = 64

	// releasedReplaced is the message of a claim that ended because of a new node.
	releasedReplaced = "there is another node in its place"
)

// A claimClient is what claims need of a shard.
type claimClient interface {
	ClaimStandby(context.Context, *apiv1.ClaimStandbyRequest, ...grpc.CallOption) (*apiv1.ClaimStandbyResponse, error)
	ReleaseStandby(context.Context, *apiv1.ReleaseStandbyRequest, ...grpc.CallOption) (*apiv1.ReleaseStandbyResponse, error)
}

// claimsOf returns the claims of a claim's shard. Fails with Unavailable while the shard, or one
// that may have the group, is not connected, with Invalid when there is none.
func (c *protectionController) claimsOf(s *survey, claim *infrav1.StandbyClaim) (claimClient, error) {
	if claim.Shard == "" {
		if err := c.chooseShard(s, claim); err != nil {
			return nil, err
		}
	}
	_, api, err := c.fleets.shardOf(s.cluster, nstance.ShardID(claim.Shard))
	return api, err
}

// chooseShard has a claim name the shard that is asked, one that has the group: several may,
// and each release goes where its claim went. One goes first where a machine is parked that no
// other claim of the SpotProtection is about to take, else one with a warm pool.
func (c *protectionController) chooseShard(s *survey, claim *infrav1.StandbyClaim) error {
	claim.Shard = c.fleets.shardWithBest(s.cluster, nstance.GroupID(claim.Group), standbyRank(s.sp.Status.Claims, claim.Group))
	if claim.Shard != "" {
		return nil
	}
	if err := s.fleet.checkSynced(); err != nil {
		return err
	}
	return nstance.FieldError("spec.standby.group", "name a group with a warm pool, or add it to a shard's configuration", "no shard of the cluster has group %s", claim.Group)
}

// standbyRank ranks shards for another claim of a group's machines.
func standbyRank(claims []infrav1.StandbyClaim, group string) func(shard string, g *apiv1.Group) int {
	taken := map[string]int32{}
	for i := range claims {
		if o := &claims[i]; o.Group == group && o.Until.IsZero() && o.Released.IsZero() {
			taken[o.Shard]++
		}
	}
	return func(shard string, g *apiv1.Group) int {
		switch {
		case g.GetParked() > taken[shard]:
			return 2
		case g.GetWarmPool().GetSize() > 0:
			return 1
		}
		return 0
	}
}

// chooseShards chooses for the claims that are to be asked for, so that the choice is saved
// before.
func (c *protectionController) chooseShards(s *survey) error {
	var errs []error
	for i := range s.sp.Status.Claims {
		claim := &s.sp.Status.Claims[i]
		if !claim.Until.IsZero() || !claim.Released.IsZero() {
			continue
		}
		if claim.Shard != "" {
			if _, _, err := c.fleets.shardOf(s.cluster, nstance.ShardID(claim.Shard)); !errors.Is(err, nstance.Invalid) {
				continue // the cluster has it
			}
		}
		errs = append(errs, c.chooseShard(s, claim))
	}
	return errors.Join(errs...)
}

// claim has stand-by machines run in place of nodes of others that are lost, and releases
// those that are not needed any more. What the shard's own nodes lose is bridged by the
// shard.
func (c *protectionController) claim(ctx context.Context, s *survey) error {
	lost := s.lostNodes()
	s.noteInterruptions(lost)
	errs := []error{s.recordClaims(lost), c.chooseShards(s)}
	if err := c.saveClaims(ctx, s); err != nil {
		return err
	}
	for i := range s.sp.Status.Claims {
		errs = append(errs, c.review(ctx, s, &s.sp.Status.Claims[i]))
	}
	s.forgetClaims()
	return errors.Join(errs...)
}

// lostNodes returns the nodes with protected pods that are about to end, in the order of
// names.
func (s *survey) lostNodes() (out []*surveyedNode) {
	with := map[string]bool{}
	for _, w := range s.admitted() {
		for i := range w.pods {
			with[w.pods[i].Spec.NodeName] = true
		}
	}
	for name, n := range s.nodes {
		if with[name] && n.lost() {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *surveyedNode) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// noteInterruptions has the status of workloads say which node they lose.
func (s *survey) noteInterruptions(lost []*surveyedNode) {
	for _, n := range lost {
		i := s.interruption(n)
		for _, w := range s.admitted() {
			if last := w.status.LastInterruption; last.Node == i.Node && last.EventID == i.EventID {
				continue
			}
			if slices.ContainsFunc(w.pods, func(p corev1.Pod) bool { return p.Spec.NodeName == n.Name }) {
				w.status.LastInterruption = i
			}
		}
	}
}

// interruption says what happens to a node.
func (s *survey) interruption(n *surveyedNode) infrav1.Interruption {
	i := infrav1.Interruption{Node: n.Name, Time: metav1.NewTime(s.now)}
	if cause := reclaimOf(n.instance.GetDrain()); cause != nil {
		i.EventID, i.Reason = clip.Text(cause.GetEventId(), 256), clip.Text(cause.GetMessage(), 1024)
	}
	if n.signal != nil {
		i.EventID, i.Reason = clip.Text(n.signal.EventID, 256), clip.Text(n.signal.Reason, 1024)
	}
	return i
}

// recordClaims has the status say what is about to be claimed: a machine for each node, once for
// each interruption.
func (s *survey) recordClaims(lost []*surveyedNode) error {
	live := 0
	for i := range s.sp.Status.Claims {
		if s.sp.Status.Claims[i].Released.IsZero() {
			live++
		}
	}
	for _, n := range lost {
		i := s.interruption(n)
		if n.instance != nil || s.sp.Spec.Standby.Group == "" || s.claimed(i) {
			continue
		}
		if live >= maxClaims {
			return nstance.Errorf(nstance.Quota, "%d machines are claimed: node %s has to wait for the end of a claim", live, n.Name)
		}
		live++
		claim := infrav1.StandbyClaim{Interruption: i, Group: s.sp.Spec.Standby.Group}
		for _, w := range s.admitted() {
			if s.onNode(w, n.Name) {
				claim.Workloads = append(claim.Workloads, w.key())
			}
		}
		s.sp.Status.Claims = slices.Insert(s.sp.Status.Claims, 0, claim)
	}
	return nil
}

// claimed reports whether there is a claim for an interruption, or one of an earlier
// interruption of the node that has not ended: a node needs one stand-by machine.
func (s *survey) claimed(i infrav1.Interruption) bool {
	return slices.ContainsFunc(s.sp.Status.Claims, func(known infrav1.StandbyClaim) bool {
		return known.Node == i.Node && known.Group == s.sp.Spec.Standby.Group && (known.EventID == i.EventID || known.Released.IsZero())
	})
}

// saveClaims writes the claims that no shard has been asked for, so that whatever ends this
// operator, the next one knows what to release.
func (c *protectionController) saveClaims(ctx context.Context, s *survey) error {
	s.forgetClaims()
	if !slices.ContainsFunc(s.sp.Status.Claims, func(claim infrav1.StandbyClaim) bool { return claim.Until.IsZero() && claim.Released.IsZero() }) {
		return nil
	}
	saved := s.sp.DeepCopy()
	before := saved.DeepCopy()
	before.Status.Claims = nil
	return c.Status().Patch(ctx, saved, client.MergeFrom(before))
}

// ask claims a machine.
func (c *protectionController) ask(ctx context.Context, s *survey, claim *infrav1.StandbyClaim) error {
	if claim.Shard == "" {
		return nil // why was said when it was to be chosen
	}
	claims, err := c.claimsOf(s, claim)
	if err != nil {
		return err
	}
	err = s.askAt(ctx, claims, claim)
	if errors.Is(err, nstance.NotFound) {
		claim.Shard = "" // it has lost the group, another may have it
	}
	return err
}

// askAt claims a machine at a shard.
func (s *survey) askAt(ctx context.Context, claims claimClient, claim *infrav1.StandbyClaim) error {
	duration := s.claimDuration()
	resp, err := claims.ClaimStandby(ctx, &apiv1.ClaimStandbyRequest{
		Group: claim.Group, Node: claim.Node, EventId: claim.EventID, Reason: claim.Reason, Duration: durationpb.New(duration),
	})
	if err != nil {
		return err
	}
	claim.Until = metav1.NewTime(s.now.Add(duration))
	if until := resp.GetClaim().GetUntil(); until != nil {
		claim.Until = metav1.NewTime(until.AsTime())
	}
	if resp.GetParked() == 0 && !resp.GetUnchanged() {
		claim.Message = "no stand-by machine is parked: the claim waits for one"
	}
	return nil
}

func (s *survey) claimDuration() time.Duration {
	if d := s.sp.Spec.Standby.Duration; d != nil && d.Duration > 0 {
		return min(d.Duration, maxClaim)
	}
	return claimDuration
}

// review asks for what is claimed, and releases it once it is not needed any more.
func (c *protectionController) review(ctx context.Context, s *survey, claim *infrav1.StandbyClaim) error {
	if !claim.Released.IsZero() {
		return nil
	}
	s.busy = true
	why := s.dispensable(claim)
	if why == "" && claim.Until.IsZero() {
		return c.ask(ctx, s, claim)
	}
	if why == "" {
		return nil
	}
	first, later, err := c.sharers(ctx, s, claim)
	if err != nil {
		return err
	}
	if first != "" {
		claim.Message = "not needed any more: waits for SpotProtection " + first + ", which has claimed the same stand-by machine"
		return nil
	}
	if !later {
		if err := c.release(ctx, s, claim); err != nil {
			return err
		}
	}
	claim.Released, claim.Message = metav1.NewTime(s.now), why
	return nil
}

// sharers looks for claims of other SpotProtections that have not ended, for the same node,
// group and shard: to the shard they are one. They end in the order of the names of their SpotProtections,
// so that two that end at once do not leave the release to each other. first is one that ends
// before this one, and later says that there is one that ends after it, and releases for both.
func (c *protectionController) sharers(ctx context.Context, s *survey, claim *infrav1.StandbyClaim) (first string, later bool, err error) {
	others, err := c.others(ctx, s)
	for i := range others {
		if !holds(&others[i], claim) {
			continue
		}
		if others[i].Name < s.sp.Name {
			first = others[i].Name
		} else {
			later = true
		}
	}
	return first, later, err
}

// holds reports whether a SpotProtection has a claim for the same node, group and shard that has
// not ended.
func holds(sp *infrav1.SpotProtection, claim *infrav1.StandbyClaim) bool {
	return slices.ContainsFunc(sp.Status.Claims, func(c infrav1.StandbyClaim) bool {
		return c.Released.IsZero() && c.Node == claim.Node && c.Group == claim.Group && (c.Shard == claim.Shard || c.Shard == "")
	})
}

// dispensable says why a claim is not needed any more; empty: it is. It is needed until the
// node has no protected pods, and those run elsewhere. Where they are not handed off they
// stay on the stand-by machine: then another node in place of the lost one will do, and the
// shard's drain moves them.
func (s *survey) dispensable(claim *infrav1.StandbyClaim) string {
	if !claim.Until.IsZero() && !s.now.Before(claim.Until.Time) {
		return "its time is over"
	}
	if claim.Group != s.sp.Spec.Standby.Group {
		return "another group is to stand by"
	}
	if n := s.nodes[claim.Node]; n != nil && !n.lost() {
		return "the node stays"
	}
	settled, handedOff := true, false
	for _, w := range s.admitted() {
		if s.onNode(w, claim.Node) {
			return ""
		}
		if !slices.Contains(claim.Workloads, w.key()) {
			continue
		}
		p := s.progress(w)
		if p.onBridges > 0 || p.Settled < int(w.Replicas-protection.Surged(&w.Workload)) {
			settled = false
			handedOff = handedOff || w.HandOff() && p.onBridges > 0
		}
	}
	switch {
	case settled:
		return "its pods are ready on other nodes"
	case !handedOff && s.replaced(claim):
		return releasedReplaced
	}
	return ""
}

func (s *survey) onNode(w *surveyedWorkload, node string) bool {
	return slices.ContainsFunc(w.pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node && protection.Lives(&p) })
}

// replaced reports whether a node has come in the place of the one that is lost: a lasting
// node stands in for one claim only, the oldest that it came after.
func (s *survey) replaced(claim *infrav1.StandbyClaim) bool {
	if s.nodes[claim.Node] != nil {
		return false
	}
	came := s.readySince()
	for i := len(s.sp.Status.Claims) - 1; i >= 0; i-- { // the latest come first
		other := &s.sp.Status.Claims[i]
		if other != claim && !needsNode(other, claim.Time.Time) {
			continue
		}
		first := slices.IndexFunc(came, other.Time.Time.Before)
		switch {
		case other == claim:
			return first >= 0
		case first >= 0:
			came = slices.Delete(came, first, first+1)
		}
	}
	return false
}

// needsNode reports whether a claim needs a node of its own, or has had one since: a claim
// that ended for another reason never did.
func needsNode(claim *infrav1.StandbyClaim, since time.Time) bool {
	return claim.Released.IsZero() || claim.Message == releasedReplaced && !claim.Released.Time.Before(since)
}

// readySince returns since when there are the ready nodes that pods may stay on, the oldest
// first.
func (s *survey) readySince() (out []time.Time) {
	for _, n := range s.nodes {
		if n.lasting() && !n.Spec.Unschedulable && isReady(n.Node) {
			out = append(out, n.CreationTimestamp.Time)
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// release ends a claim at the shard.
func (c *protectionController) release(ctx context.Context, s *survey, claim *infrav1.StandbyClaim) error {
	claims, err := c.claimsOf(s, claim)
	if errors.Is(err, nstance.Invalid) {
		return nil // the group is gone, and its claims with it
	}
	if err != nil {
		return err
	}
	return releaseAt(ctx, claims, claim)
}

// releaseAt ends a claim at a shard. One of a group that was removed meanwhile has ended.
func releaseAt(ctx context.Context, claims claimClient, claim *infrav1.StandbyClaim) error {
	_, err := claims.ReleaseStandby(ctx, &apiv1.ReleaseStandbyRequest{Group: claim.Group, Node: claim.Node})
	if errors.Is(err, nstance.NotFound) {
		return nil
	}
	return err
}

// forgetClaims drops claims that have ended, once their nodes are gone or stay. Until then
// they say which nodes are taken by claims that have ended.
func (s *survey) forgetClaims() {
	kept := max(claimDuration, s.claimDuration())
	s.sp.Status.Claims = slices.DeleteFunc(s.sp.Status.Claims, func(claim infrav1.StandbyClaim) bool {
		n := s.nodes[claim.Node]
		return !claim.Released.IsZero() && (n == nil && s.now.Sub(claim.Released.Time) > kept || n != nil && !n.lost())
	})
	for i := len(s.sp.Status.Claims) - 1; i >= 0 && len(s.sp.Status.Claims) > maxClaims; i-- { // the latest come first
		if !s.sp.Status.Claims[i].Released.IsZero() {
			s.sp.Status.Claims = slices.Delete(s.sp.Status.Claims, i, i+1)
		}
	}
}

// releaseAll ends all claims. Those that another SpotProtection has too are left to that.
func (c *protectionController) releaseAll(ctx context.Context, s *survey) error {
	var errs []error
	for i := range s.sp.Status.Claims {
		if claim := &s.sp.Status.Claims[i]; claim.Released.IsZero() {
			first, later, err := c.sharers(ctx, s, claim)
			if err == nil && first == "" && !later {
				err = c.release(ctx, s, claim)
			}
			if err == nil {
				claim.Released = metav1.NewTime(s.now)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// instance returns the copy of the instance that has changed; nil: none.
func (f *fleets) instance(ch change) *apiv1.Instance {
	f.mu.Lock()
	fl := f.byCluster[ch.cluster]
	f.mu.Unlock()
	if fl == nil {
		return nil
	}
	fl.mu.Lock()
	defer fl.mu.Unlock()
	if c := fl.shards[string(ch.shard)]; c != nil {
		i, _ := c.Instance(ch.instance)
		return i
	}
	return nil
}
