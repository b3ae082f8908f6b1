package nodedrain

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// The annotations of a node that is drained. The last ones say what the drain itself
// did, so that a cancelled drain takes back no more than that.
const (
	annotationPrefix     = "nstance.dev/drain-"
	annotationInstance   = annotationPrefix + "instance"
	annotationGeneration = annotationPrefix + "generation"
	annotationCause      = annotationPrefix + "cause"
	annotationDeadline   = annotationPrefix + "deadline"
	annotationSince      = annotationPrefix + "since" // when the drain was given this deadline
	annotationEventID    = annotationPrefix + "event-id"
	annotationProgress   = annotationPrefix + "progress"
	annotationOverridden = annotationPrefix + "pdb-overridden"
	annotationCordoned   = annotationPrefix + "cordoned"
	annotationExcluded   = annotationPrefix + "excluded"
)

// maxConflicts is how often a node that others change is read again before there is a pause.
const maxConflicts = 4

// A nodePatch is a JSON merge patch of a node. Nil values remove.
type nodePatch struct {
	Metadata struct {
		UID             types.UID      `json:"uid,omitempty"`
		ResourceVersion string         `json:"resourceVersion,omitempty"`
		Annotations     map[string]any `json:"annotations,omitempty"`
		Labels          map[string]any `json:"labels,omitempty"`
	} `json:"metadata"`
	Spec struct {
		Unschedulable *bool `json:"unschedulable,omitempty"`
	} `json:"spec"`
}

func (p *nodePatch) annotate(key string, value any) {
	if p.Metadata.Annotations == nil {
		p.Metadata.Annotations = map[string]any{}
	}
	p.Metadata.Annotations[key] = value
}

// exclude has load balancers leave the node out.
func (p *nodePatch) exclude() {
	p.Metadata.Labels = map[string]any{corev1.LabelNodeExcludeBalancers: ""}
	p.annotate(annotationExcluded, "true")
}

func (p *nodePatch) empty() bool {
	return len(p.Metadata.Annotations) == 0 && len(p.Metadata.Labels) == 0 && p.Spec.Unschedulable == nil
}

// cordonPatch returns what makes a node cordoned and annotated for a drain. It is
// empty for a node that is. It fails when the node has changed since it was read, or
// else the node could have been cordoned for another reason meanwhile.
func cordonPatch(node *corev1.Node, d nstance.Drain) *nodePatch {
	p := &nodePatch{}
	for key, value := range describe(d) {
		switch {
		case node.Annotations[key] == value:
		case value == "":
			p.annotate(key, nil) // of an earlier drain
		default:
			p.annotate(key, value)
		}
	}
	if known := node.Annotations; known[annotationDeadline] != deadlineText(d) || known[annotationGeneration] != generationText(d) {
		p.annotate(annotationSince, time.Now().UTC().Format(time.RFC3339Nano))
	}
	if !node.Spec.Unschedulable {
		yes := true
		p.Spec.Unschedulable = &yes
		p.annotate(annotationCordoned, "true")
	}
	p.Metadata.ResourceVersion = node.ResourceVersion
	return p
}

// describe returns the annotations that say why and until when. Empty ones are left out.
func describe(d nstance.Drain) map[string]string {
	return map[string]string{
		annotationInstance:   string(d.Instance),
		annotationGeneration: generationText(d),
		annotationCause:      causeText(d),
		annotationDeadline:   deadlineText(d),
		annotationEventID:    eventIDs(d),
	}
}

func generationText(d nstance.Drain) string { return strconv.FormatUint(d.Generation, 10) }

// since returns when a drain was given the deadline that its node is annotated with; zero:
// not known.
func since(node *corev1.Node) time.Time {
	t, err := time.Parse(time.RFC3339Nano, node.Annotations[annotationSince])
	if err != nil {
		return time.Time{}
	}
	return t
}

// restorePatch returns what takes a drain back. With uncordon false the node stays
// cordoned and excluded.
func restorePatch(node *corev1.Node, uncordon bool) *nodePatch {
	p := &nodePatch{}
	for key := range node.Annotations {
		if strings.HasPrefix(key, annotationPrefix) {
			p.annotate(key, nil)
		}
	}
	if uncordon && node.Annotations[annotationCordoned] != "" {
		no := false
		p.Spec.Unschedulable = &no
	}
	if uncordon && node.Annotations[annotationExcluded] != "" {
		p.Metadata.Labels = map[string]any{corev1.LabelNodeExcludeBalancers: nil}
	}
	p.Metadata.ResourceVersion = node.ResourceVersion
	return p
}

// patchNode returns the patched node. It runs before all evictions. Fails with NotFound when
// another node has the name.
func (d *Drainer) patchNode(ctx context.Context, of *corev1.Node, p *nodePatch) (*corev1.Node, error) {
	p.Metadata.UID = of.UID
	body, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	var node *corev1.Node
	err = d.slots.do(ctx, time.Time{}, func(ctx context.Context) error {
		node, err = d.client.CoreV1().Nodes().Patch(ctx, of.Name, types.MergePatchType, body, metav1.PatchOptions{})
		return err
	})
	if hasOtherUID(err) {
		err = replaced(of)
	}
	return trimmed(node, err)
}

func (d *Drainer) getNode(ctx context.Context, name string) (*corev1.Node, error) {
	var node *corev1.Node
	err := d.slots.do(ctx, time.Time{}, func(ctx context.Context) (err error) {
		node, err = d.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return trimmed(node, err)
}

func trimmed(node *corev1.Node, err error) (*corev1.Node, error) {
	if err != nil {
		return nil, err
	}
	kept, err := trimNode(node)
	if err != nil {
		return nil, err
	}
	return kept.(*corev1.Node), nil
}

// changeNode applies the patch that change makes of the node, and of the latest one
// when the node has changed meanwhile. It returns the node and whether it sent one. Fails with a
// conflict when others change the node each time.
func (d *Drainer) changeNode(ctx context.Context, node *corev1.Node, change func(*corev1.Node) *nodePatch) (*corev1.Node, bool, error) {
	for tries := 1; ; tries++ {
		p := change(node)
		if p == nil || p.empty() {
			return node, false, nil
		}
		patched, err := d.patchNode(ctx, node, p)
		if !apierrors.IsConflict(err) || tries == maxConflicts {
			return patched, true, err
		}
		latest, err := d.getNode(ctx, node.Name)
		if err != nil {
			return nil, false, err
		}
		if latest.UID != node.UID {
			return nil, false, replaced(node)
		}
		node = latest
	}
}

// causeText says why a drain was requested.
func causeText(d nstance.Drain) string {
	var texts []string
	for _, c := range d.Causes {
		text := string(c.Kind)
		if c.Message != "" {
			text += ": " + c.Message
		}
		texts = append(texts, text)
	}
	if len(texts) == 0 {
		return "requested"
	}
	return clip.Text(strings.Join(texts, "; "), 256)
}

// eventIDs returns the event IDs of the notices among the causes, each once.
func eventIDs(d nstance.Drain) string {
	ids := map[string]bool{}
	for _, c := range d.Causes {
		if c.EventID != "" {
			ids[c.EventID] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(ids)), ",")
}
