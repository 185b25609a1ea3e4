package topo

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/topo/scheduler/explain"
)

// NewWhyCommand returns `heddle why`.
func NewWhyCommand() *cobra.Command {
	m := &master{}
	c := &cobra.Command{
		Use: "why POD|GANG", Short: "Explain why a pod, or the pods of a gang, have no node", Args: cobra.ExactArgs(1),
		Long: `Explain why a pod, or the pods of a gang, have no node.

It counts as heddle-scheduler counts, on what the API server and topo-master answer: the reasons against
nodes, how many pods each group would take, who has the rest and until when, and what there is room for now.
It works for the pods of any scheduler. Without topo-master the nodes count as in no group. Rules that need a
scheduler's own state (volumes, affinity between pods, GPU by GPU for shares) are not counted: what the
scheduler wrote is repeated first.`,
		Example: `heddle why -n team train-0
heddle why -n team train -o json`,
	}
	m.registerServer(c)
	namespace := c.Flags().StringP("namespace", "n", "default", "`namespace` of the pod or gang")
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		known, err := m.known(c)
		if err != nil {
			return err
		}
		answer, err := explain.Of(known, *namespace, args[0], time.Now())
		if err != nil {
			return fmt.Errorf("%w: heddle topo gangs lists gangs, kubectl get pods -n %s pods", err, *namespace)
		}
		return output.Print(c, answer, whyText(answer, len(known.Groups) > 0))
	}
	return c
}

// known asks the API server, and topo-master if there is one.
func (m *master) known(c *cobra.Command) (*explain.Cluster, error) {
	api, err := m.cluster.Client()
	if err != nil {
		return nil, err
	}
	nodes, err := cluster.Read[corev1.NodeList](c.Context(), api.Get().Resource("nodes"), "Nodes")
	if err != nil {
		return nil, err
	}
	pods, err := cluster.Read[corev1.PodList](c.Context(), api.Get().Resource("pods"), "pods")
	if err != nil {
		return nil, err
	}
	known := &explain.Cluster{Nodes: nodes.Items, Pods: pods.Items}
	groups, err := read[[]v1alpha1.Group](c, m, "/node_group")
	switch {
	case err == nil:
		known.Groups = *groups
	case m.server != "":
		return nil, err
	}
	return known, nil
}

// whyText is the answer for people.
func whyText(a *explain.Answer, grouped bool) string {
	var b strings.Builder
	what := "Pod"
	if a.Gang {
		what = "Gang"
	}
	wait := a.Pods - a.Bound
	switch {
	case wait == 0:
		fmt.Fprintf(&b, "%s %s/%s waits for no node: every pod has one.\n", what, a.Namespace, a.Name)
		return b.String()
	case a.Gang:
		fmt.Fprintf(&b, "%s %s/%s: %d of %s have a node; %d must before any starts.\n",
			what, a.Namespace, a.Name, a.Bound, cli.Count(a.Pods, "pod"), a.MinMember)
		if a.Pods < a.MinMember {
			fmt.Fprintf(&b, "Its controller has not made %s of them.\n", cli.Count(a.MinMember-a.Pods, "pod"))
		}
	default:
		fmt.Fprintf(&b, "%s %s/%s has no node.\n", what, a.Namespace, a.Name)
	}
	for _, ask := range a.Asks {
		each := "each of " + cli.Count(ask.Pods, "pod")
		if a.Pods == 1 {
			each = "it"
		}
		fmt.Fprintf(&b, "Asked for by %s: %s.\n", each, explain.Requests(ask.Requests))
	}
	for _, text := range a.Reported {
		fmt.Fprintf(&b, "Reported: %s\n", cli.Printable(text))
	}
	if len(a.Nodes) > 0 {
		rows := [][]string{{"NODES", "WHY NOT", "WHICH"}}
		for _, r := range a.Nodes {
			rows = append(rows, []string{fmt.Sprint(len(r.Nodes)), r.Reason, nodes(r.Nodes, false)})
		}
		b.WriteString("\n" + cli.Table(rows))
	}
	if len(a.Groups) > 0 && a.Pods > 1 {
		rows := [][]string{{"GROUP", "KIND", "WOULD TAKE", "HELD BY"}}
		for i := range a.Groups[:min(len(a.Groups), maxRooms)] {
			g := &a.Groups[i]
			rows = append(rows, []string{g.Name, g.Kind, fmt.Sprintf("%d of %d", g.Fit, g.Of), holders(g.Holders)})
		}
		b.WriteString("\n" + cli.Table(rows))
		if more := len(a.Groups) - maxRooms; more > 0 {
			fmt.Fprintf(&b, "and %s with less room\n", cli.Count(more, "group"))
		}
	}
	b.WriteString("\nRoom now:\n")
	for _, text := range a.Fits {
		fmt.Fprintf(&b, "  %s\n", text)
	}
	if len(a.Fits) == 0 {
		b.WriteString("  for none of these pods, on any node\n")
	}
	if !grouped {
		b.WriteString("topo-master did not answer: groups are unknown, and every node counts alone.\n")
	}
	return b.String()
}

// maxRooms is how many groups a table has.
const maxRooms = 8

func holders(all []explain.Holder) string {
	parts := make([]string, len(all))
	for i := range all {
		h := &all[i]
		parts[i] = fmt.Sprintf("%s: %d %s", h.Name, h.Amount, h.Resource)
		if !h.Until.IsZero() {
			parts[i] += " until " + at(h.Until)
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}
