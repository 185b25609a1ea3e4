package topo

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// NewWhyCommand returns `heddle why`.
func NewWhyCommand() *cobra.Command {
	m := &Master{}
	c := &cobra.Command{
		Use: "why POD|GANG", Short: "Explain why a pod, or the pods of a gang, have no node", Args: cobra.ExactArgs(1),
		Long: `Explain why a pod, or the pods of a gang, have no node.

It counts as heddle-scheduler does, from what the API server and topo-master
answer: the reasons against nodes, how many pods each group would take, who
holds the rest and until when, and what there is room for now. It works for the
pods of any scheduler. Without topo-master, nodes count as in no group.

It counts hard rules between the pods (topologySpreadConstraints, required
anti-affinity), and names what preemption would evict. It does not count what
only a scheduler knows: volumes, affinity to other pods, single GPUs of shares,
plans of other gangs, and NVLink domains across groups. What the scheduler wrote
comes first.`,
		Example: `  heddle why -n team train-0
  heddle why -n team train -o json`,
	}
	m.Register(c)
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		namespace, err := m.Cluster.Namespace()
		if err != nil {
			return err
		}
		lister, groups, err := m.lister(c)
		if err != nil {
			return err
		}
		answer, err := lister.Explain(c.Context(), groups, namespace, args[0])
		if errors.Is(err, explain.ErrUnknown) {
			return fmt.Errorf("%w: heddle topo gangs lists gangs, kubectl get pods -n %s pods", err, namespace)
		}
		if err != nil {
			return err
		}
		if answer.API != "" { // Without topo-master nothing is known about failures.
			if known, err := read[suspect.Answer](c, m, "/v1/suspects", "gang", namespace+"/"+answer.Name); err == nil {
				answer.Avoids = known.Avoids
			}
		}
		return output.Print(c, answer, whyText(answer, len(groups) > 0, time.Now()))
	}
	return c
}

// lister returns what answers about the cluster, and the groups; none without topo-master.
func (m *Master) lister(c *cobra.Command) (*explain.Lister, []v1alpha1.Group, error) {
	api, err := m.Cluster.Client()
	if err != nil {
		return nil, nil, err
	}
	lister := explain.NewLister(api, math.MaxInt, math.MaxInt, clock.RealClock{})
	t, err := read[struct {
		Tree   []v1alpha1.Group   `json:"tree"`
		Spares intstr.IntOrString `json:"spares"`
	}](c, m, "/v1/topology")
	if err != nil && m.server == "" {
		return lister, nil, nil // There may be no topo-master.
	}
	if err != nil {
		return nil, nil, err
	}
	lister.Spares = t.Spares
	return lister, t.Tree, nil
}

// whyText returns the answer for people.
func whyText(a *explain.Answer, grouped bool, now time.Time) string {
	var b strings.Builder
	b.WriteString(whyState(a))
	if len(a.Avoids) > 0 {
		fmt.Fprintf(&b, "Gangs failed, or cables are bad, on %s: the gang gets these nodes only without other room, "+
			"see heddle topo suspects.\n", cli.First(a.Avoids, maxRooms, ", "))
	}
	if a.Pods == a.Bound {
		return b.String()
	}
	b.WriteString(whyRoom(a, now))
	if !grouped {
		b.WriteString(withoutGroups)
	}
	return b.String()
}

const withoutGroups = "topo-master did not answer: groups are unknown, and every node counts alone.\n"

// whyRoom returns what pods without a node ask for, what keeps them off nodes, and for which of them there is room.
func whyRoom(a *explain.Answer, now time.Time) string {
	var b strings.Builder
	for _, ask := range a.Asks {
		each := "each of " + cli.Count(ask.Pods, "pod")
		if a.Pods == 1 {
			each = "it"
		}
		fmt.Fprintf(&b, "Asked for by %s: %s.\n", each, explain.Requests(ask.Requests))
	}
	for _, text := range a.Reported {
		b.WriteString("Reported: " + cli.Printable(text) + "\n")
	}
	b.WriteString(whyTables(a, now))
	b.WriteString("\nRoom now:\n")
	for _, text := range a.Fits {
		fmt.Fprintf(&b, "  %s\n", text)
	}
	if len(a.Fits) == 0 {
		b.WriteString("  for none of these pods, on any node\n")
	}
	if len(a.Victims) > 0 {
		b.WriteString("\nPreemption would make room: it evicts what has a lower priority, whole gangs:\n")
		for i := range a.Victims {
			v := &a.Victims[i]
			fmt.Fprintf(&b, "  %s: %s of priority %d\n", v.Name, cli.Count(v.Pods, "pod"), v.Priority)
		}
	}
	return b.String()
}

// whyState says what the pods wait for, in a line or two.
func whyState(a *explain.Answer) string {
	what := "Pod " + a.Namespace + "/" + a.Name
	if a.Gang {
		what = "Gang " + a.Namespace + "/" + a.Name
	}
	switch {
	case a.Pods == 0:
		return what + " waits for no node: it has failed.\n"
	case a.Pods == a.Bound:
		return what + " waits for no node: every pod has one.\n"
	case !a.Gang:
		return what + " has no node.\n"
	}
	must := "how many must before any starts is not known"
	if a.MinMember > 0 {
		must = fmt.Sprintf("%d must before any starts", a.MinMember)
	}
	text := fmt.Sprintf("%s: %d of %s have a node; %s.\n", what, a.Bound, cli.Count(a.Pods, "pod"), must)
	if a.Pods < a.MinMember {
		text += fmt.Sprintf("%d of them are not there, or have failed.\n", a.MinMember-a.Pods)
	}
	return text
}

// whyTables returns the reasons against nodes, and the groups of a gang.
func whyTables(a *explain.Answer, now time.Time) string {
	var b strings.Builder
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
			rows = append(rows, []string{g.Name, g.Kind, fmt.Sprintf("%d of %d", g.Fit, g.Of), holders(g.Holders, now)})
		}
		b.WriteString("\n" + cli.Table(rows))
		if more := len(a.Groups) - maxRooms; more > 0 {
			fmt.Fprintf(&b, "and %s with less room\n", cli.Count(more, "group"))
		}
	}
	return b.String()
}

// maxRooms bounds the groups in a table.
const maxRooms = 8

func holders(all []explain.Holder, now time.Time) string {
	parts := make([]string, len(all))
	for i := range all {
		h := &all[i]
		parts[i] = fmt.Sprintf("%s: %d %s for %s", h.Name, h.Amount, h.Resource, duration.HumanDuration(now.Sub(h.Since)))
		if !h.Until.IsZero() {
			parts[i] += ", ends in " + duration.HumanDuration(h.Until.Sub(now))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}
