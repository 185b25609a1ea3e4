package doctor

import (
	"context"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/checks"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// topoWorker is the program that reports where the cables of a node end.
const topoWorker = "heddle-topo-worker"

// readTopology reads the Node's NodeTopology; nil if it or the
// resource does not exist, or the user may not read it.
func readTopology(ctx context.Context, client rest.Interface, node string) (*v1alpha1.NodeTopology, error) {
	request := client.Get().AbsPath("/apis", v1alpha1.GroupName, v1alpha1.Version, v1alpha1.Plural, node)
	nt, err := cluster.Read[v1alpha1.NodeTopology](ctx, request, "NodeTopology "+node)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil //nolint:nilnil // No object is a state, not an error.
	}
	return nt, err
}

// checkSources explains what the topo-worker cannot see: sources that are silent,
// and what it could not read. A node without a known end of a cable is in no
// group, which is a problem; the others are notes.
func checkSources(l *checks.List, nt *v1alpha1.NodeTopology) {
	known, active := len(nt.Spec.Path) > 0, false
	for i := range nt.Spec.Rails {
		r := &nt.Spec.Rails[i]
		known = known || r.Switch != nil
		active = active || r.Role == "fabric" && r.LinkState == v1alpha1.LinkActive
	}
	for _, s := range nt.Spec.Stale {
		l.Note("source "+string(s.Source), "Cables do not move because a source is silent: what it last reported stands.",
			"is silent since %s: %s", s.Since.UTC().Format(time.RFC3339), s.Reason)
	}
	if !known && active {
		l.Problem(topoWorker, "docs/topology-sources.md lists what each source needs.",
			"knows the switch behind none of the node's active ports: the node is in no group")
	}
	// Eight rails have one reason.
	names, order := map[string][]string{}, []string{}
	for _, s := range nt.Spec.Skipped {
		if names[s.Reason] == nil {
			order = append(order, s.Reason)
		}
		names[s.Reason] = append(names[s.Reason], s.Name)
	}
	for _, reason := range order {
		l.Note(topoWorker, "", "%s: %s", strings.Join(names[reason], ", "), reason)
	}
}
